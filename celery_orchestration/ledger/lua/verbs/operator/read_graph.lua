-- uses: schema records lanes rules index term views
--
-- read_graph: what each job depends on and conflicts with, and its state, as one JSON document. Reads only. If there
-- are very many jobs, only the first ones: called again with the names of the others, it returns those.
--
-- ARGV  how many jobs at most; then names of jobs, or nothing for all jobs
-- Returns  JSON: now, jobs[]: name, disabled, running, waiting (also runs that are not due yet), failed
--          (whether its last run failed), depends_on[] ({job, on, max_age_seconds, fresh}), conflicts[] (each pair is
--          listed once, at the job whose name comes first: a job may block all others), groups[] (of jobs that
--          run one at a time); more[] (names of the other jobs)
-- Errors   none
-- Called again: the same, unless something changed.

local names, more = cut(ARGV[2] and { unpack(ARGV, 2) } or call('SMEMBERS', K.jobs), tonumber(ARGV[1]))
local jobs = {}
for _, name in ipairs(names) do
  local j = job(name)
  if j then
    local conflicts = {}
    for _, other in ipairs(j.policy.conflicts) do
      if other > name then conflicts[#conflicts + 1] = other end
    end
    jobs[#jobs + 1] = { name = name, disabled = j.disabled ~= nil, running = j.running, waiting = j.waiting + j.parked,
      failed = j.last_ok == false, depends_on = j.policy.depends_on, conflicts = conflicts, groups = j.policy.groups }
  end
end

return cjson.encode({ now = NOW, jobs = jobs, more = more })

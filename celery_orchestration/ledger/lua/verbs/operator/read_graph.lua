-- uses: schema records lanes rules index term views
--
-- read_graph: of every job what it depends on, whom it conflicts with, and what its state follows from, as one JSON document.
-- Reads only. Of very many jobs only the first ones: called again with the names of the others it tells those.
--
-- ARGV  how many jobs at most; of some of them only: their names
-- Returns  JSON: now, jobs[]: name, disabled, running, waiting (those not due yet too), failed (its last run
--          did), depends_on[] ({job, on, max_age_seconds, fresh}), conflicts[] (whom it conflicts with; each pair is told once,
--          by the one whose name comes first: a job may block all others), groups[] (of which no two run together), more[]
--          (names of the others)
-- Errors   none
-- Called again: the same, as far as nothing changed.

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

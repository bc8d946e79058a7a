-- uses: schema records rules index term views
--
-- read_graph: of every job what it depends on, whom it conflicts with, and what its state follows from, as one JSON document.
-- Reads only. Of very many jobs only the first ones: called again with the names of the others it tells those.
--
-- ARGV  how many jobs at most; of some of them only: their names
-- Returns  JSON: now, jobs[]: name, off (it is disabled), running, waiting (those not due yet too), failed (its last run
--          did), deps[] ({job, on, max_age_ms, fresh}), conf[] (whom it conflicts with; each pair is told once, by the one
--          whose name comes first: a job may block all others), groups[] (of which no two run together), more[] (names of
--          the others)
-- Called again: the same, as far as nothing changed.

local names, more = cut(ARGV[2] and { unpack(ARGV, 2) } or call('SMEMBERS', P .. 'jobs'), tonumber(ARGV[1]))
local jobs = {}
for _, name in ipairs(names) do
  local j = job(name)
  if j then
    local conf = {}
    for _, other in ipairs(j.conf) do
      if other > name then conf[#conf + 1] = other end
    end
    jobs[#jobs + 1] = { name = name, off = j.off ~= nil, running = j.n, waiting = j.w + j.z, failed = j.ok == false,
      deps = j.deps, conf = conf, groups = j.groups }
  end
end

return cjson.encode({ now = NOW, jobs = jobs, more = more })

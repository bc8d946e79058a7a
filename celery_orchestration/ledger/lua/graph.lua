-- uses: records
--
-- graph: of every job what it depends on, whom it conflicts with, and what its state follows from, as one JSON document.
-- Reads only.
--
-- ARGV  none
-- Returns  JSON: now, jobs[] by name: name, off (it is disabled), running, waiting (those not due yet too), failed (its
--          last run did), deps[] ({job, on, max_age_ms, fresh}), conf[] (whom it conflicts with, as places in jobs[]
--          counted from 1; each pair is told once, by the one that comes first: a job may block all others)
-- Called again: the same, as far as nothing changed.

local jobs, place = {}, {}
local names = call('SMEMBERS', P .. 'jobs')
table.sort(names)
for _, name in ipairs(names) do
  local j = job(name)
  if j then
    jobs[#jobs + 1] = { name = name, off = j.off ~= nil, running = j.n, waiting = j.w + j.z, failed = j.ok == false,
      deps = j.deps }
    place[name] = #jobs
  end
end

for at, one in ipairs(jobs) do
  local later = {}
  for _, other in ipairs(job(one.name).conf) do
    if place[other] and place[other] > at then later[#later + 1] = place[other] end
  end
  one.conf = later
end

return cjson.encode({ now = NOW, jobs = jobs })

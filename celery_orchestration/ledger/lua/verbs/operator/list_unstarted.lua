-- uses: schema records
--
-- list_unstarted: runs of a job that have not started, a part at a time. Reads only.
--
-- ARGV  job, waiting | later | deadlines (of those that wait for the gate, for their time, or were handed over), how many of
--       that set to skip, how many to look at
-- Returns  { how many runs were read, { ids of the job's runs among them } }
-- Errors   none
-- Called again: the same, unless something changed.
local HERE = { waiting = true, later = true, granted = true, queued = true }
local from, found = tonumber(ARGV[3]), {}
local ids = call('ZRANGE', K[ARGV[2]], from, from + tonumber(ARGV[4]) - 1)
for _, id in ipairs(ids) do
  local r = load_run(id)
  if r and r.job == ARGV[1] and HERE[r.state] then found[#found + 1] = id end
end
return { #ids, found }

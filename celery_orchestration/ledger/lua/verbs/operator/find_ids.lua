-- uses: schema records
--
-- find_ids: the ids that a person may mean who knows how one begins. Reads only.
--
-- ARGV  id or its beginning, 1 (dead letters) | 0 (runs that have not ended), least length of a beginning, most running
--       runs, most waiting runs or dead letters to look through
-- Returns  { id } if that is one; else the runs of that task id; else the ids with that beginning, or none if it is the
--          id of a run that ended lately
-- Errors   none
-- Called again: the same, unless something changed.
local word, dead, least = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local most_running, most = tonumber(ARGV[4]), tonumber(ARGV[5])
local key_of = dead and K.dead_letter or K.run
if call('EXISTS', key_of(word)) == 1 then return { word } end

local found, known = {}, {}
local function look(ids)
  for _, id in ipairs(ids) do
    if not known[id] and string.sub(id, 1, #word) == word then
      known[id] = true
      found[#found + 1] = id
    end
  end
  return #ids
end

for _, id in ipairs(call('SRANDMEMBER', K.task_runs(word), most)) do
  if call('EXISTS', key_of(id)) == 1 then look({ id }) end
end
if #found > 0 or #word < least or call('EXISTS', K.done(word)) == 1 then return found end

if dead then
  look(call('ZREVRANGE', K.dead_letters, 0, most - 1))
  return found
end
local left = most_running
for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do
  if left > 0 then left = left - look(call('SMEMBERS', K.worker_runs(worker))) end
end
look(call('ZRANGE', K.deadlines, 0, most_running - 1))
look(call('ZRANGE', K.waiting, 0, most - 1))
look(call('ZRANGE', K.later, 0, most - 1))
return found

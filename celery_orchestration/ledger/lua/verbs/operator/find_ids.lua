-- uses: schema records
--
-- find_ids: the ids that somebody may mean who has the beginning of one. Reads only.
--
-- ARGV  id or its beginning, 1 (dead letters) | 0 (runs that have not ended), least length of a beginning, most running
--       runs, most waiting runs or dead letters to look through
-- Returns  { id } if that is one; else the runs of that task id; else those that begin so, but none if it is a run that has
--          just ended
local word, letters, least = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local most_running, most = tonumber(ARGV[4]), tonumber(ARGV[5])
if call('EXISTS', P .. (letters and 'dl:' or 'r:') .. word) == 1 then return { word } end

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

for _, id in ipairs(call('SRANDMEMBER', P .. 'p:' .. word, most)) do
  if call('EXISTS', P .. (letters and 'dl:' or 'r:') .. id) == 1 then look({ id }) end
end
if #found > 0 or #word < least or call('EXISTS', P .. 'd:' .. word) == 1 then return found end

if letters then
  look(call('ZREVRANGE', P .. 'dead', 0, most - 1))
  return found
end
local left = most_running
for _, worker in ipairs(call('ZRANGE', P .. 'ws', 0, -1)) do
  if left > 0 then left = left - look(call('SMEMBERS', P .. 'wr:' .. worker)) end
end
look(call('ZRANGE', P .. 'gr', 0, most_running - 1))
look(call('ZRANGE', P .. 'wait', 0, most - 1))
look(call('ZRANGE', P .. 'later', 0, most - 1))
return found

-- uses: records
--
-- letters: dead letters, the latest first, without their messages.
--
-- ARGV  job or '' (of all), how many to skip, how many
-- Returns  { {JSON: id, job, at, error, traceback, attempt, key, arrived, worker, recoveries, queue; 1 if it was revoked} }
local from, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local found = {}
if count <= 0 then return found end
for _, id in ipairs(call('ZREVRANGE', P .. (ARGV[1] == '' and 'dead' or 'dj:' .. ARGV[1]), from, from + count - 1)) do
  local v = call('HMGET', P .. 'dl:' .. id, 'i', 'revoked')
  if v[1] then found[#found + 1] = { v[1], v[2] and 1 or 0 } end
end
return found

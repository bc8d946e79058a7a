-- uses: records
--
-- entries: the schedule, for people.
--
-- ARGV  how many to skip, how many
-- Returns  { of each: {entry, fields and values...} | {entry} if it is corrupt }
local found = {}
local from, count = tonumber(ARGV[1]), tonumber(ARGV[2])
for _, entry in ipairs(count > 0 and call('ZRANGE', P .. 'entries', from, from + count - 1) or {}) do
  local names = { 'name', 'task', 'job', 'every', 'src', 'last', 'next', 'how', 'run', 'fires', 'skips', 'misses', 'off', 'cont', 'gen' }
  local v = redis.pcall('HMGET', P .. 'e:' .. entry, unpack(names))
  local one = { entry }
  for i, name in ipairs(v.err and {} or names) do
    if v[i] then
      one[#one + 1] = name
      one[#one + 1] = v[i]
    end
  end
  found[#found + 1] = one
end
return found

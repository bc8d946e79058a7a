-- uses: records
--
-- entries: the schedule, for people.
--
-- ARGV  how many to skip, how many; or '', '' and an entry: that one
-- Returns  { of each: {entry, fields and values...} | {entry} if it is corrupt }
local NAMES = { 'name', 'task', 'job', 'every', 'src', 'doc', 'last', 'at', 'next', 'how', 'run', 'fires', 'skips', 'misses',
  'off', 'cont', 'gen' }
local from, count, entry = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local found = {}

local function add(id)
  local v = redis.pcall('HMGET', P .. 'e:' .. id, unpack(NAMES))
  local one = { id }
  for i, name in ipairs(v.err and {} or NAMES) do
    if v[i] then
      one[#one + 1] = name
      one[#one + 1] = v[i]
    end
  end
  found[#found + 1] = one
end

if not entry then
  for _, id in ipairs(count > 0 and call('ZRANGE', P .. 'entries', from, from + count - 1) or {}) do add(id) end
elseif call('EXISTS', P .. 'e:' .. entry) == 1 or call('ZSCORE', P .. 'entries', entry) then
  add(entry)
end
return found

-- uses: schema records term
--
-- read_entries: the schedule, for people.
--
-- ARGV  how many to skip, how many; or '', '' and an entry: that one
-- Returns  { of each: {entry, fields and values...} | {entry} if it is corrupt }; a field `left` says that it
--            came from code, and that the leader does not have it
-- Errors   none
-- Called again: the same, unless something changed.
local NAMES = { 'name', 'task', 'job', 'every', 'source', 'written', 'last', 'at', 'next', 'how', 'run', 'fires', 'skips',
  'misses', 'paused', 'gap', 'generation' }
local from, count, entry = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local found = {}
ensure_type('entries')

local function add(id)
  local v = redis.pcall('HMGET', K.entry(id), unpack(NAMES))
  local one = { id }
  if v[5] == 'code' and is_left(id) then
    one[2], one[3] = 'left', '1'
  end
  for i, name in ipairs(v.err and {} or NAMES) do
    if v[i] then
      one[#one + 1] = name
      one[#one + 1] = v[i]
    end
  end
  found[#found + 1] = one
end

if not entry then
  -- Sorted by id: the order of the set changes whenever a leader adopts entries.
  local ids = call('ZRANGE', K.entries, 0, -1)
  table.sort(ids)
  for i = from + 1, math.min(#ids, from + count) do add(ids[i]) end
elseif call('EXISTS', K.entry(entry)) == 1 or call('ZSCORE', K.entries, entry) then
  add(entry)
end
return found

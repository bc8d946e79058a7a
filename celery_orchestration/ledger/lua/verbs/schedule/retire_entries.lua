-- uses: schema records term memory
--
-- retire_entries: the leader has adopted all its entries. Other entries of its service that came from code have no due
-- times any more, and a continuous one does not go on. They are deleted when no leader has had them for a day, and so
-- are entries of a service that nobody has led for a week.
--
-- ARGV  term
-- Returns  1 | 0 (another one leads: nothing changed)
-- Errors   none
-- Called again: the same.
local RETIRED_MS, CLOSED_MS = 86400000, 604800000
if not is_term(ARGV[1]) then return 0 end
allow_when_full()
local service = service_of_term(ARGV[1])
local since = call('HGET', lead_key(service), 'since')

local function is_closed(other)
  local ends = redis.pcall('HGET', lead_key(other), 'until')
  return type(ends) ~= 'string' or (tonumber(ends) or 0) < NOW - CLOSED_MS
end

for _, entry in ipairs(call('ZRANGEBYSCORE', K.entries, '-inf', '(' .. since)) do
  local key, own = K.entry(entry), service_of_entry(entry)
  if redis.pcall('HGET', key, 'source') ~= 'people' and (own == service or is_closed(own)) then
    if tonumber(call('ZSCORE', K.entries, entry)) < NOW - RETIRED_MS then
      call('DEL', key)
      call('ZREM', K.entries, entry)
    else
      redis.pcall('HDEL', key, 'gap', 'next')
    end
  end
end
return 1

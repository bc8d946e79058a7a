-- uses: schema records term memory
--
-- retire_entries: the leader has adopted all its entries. Of its service's entries that came from code and are not among them,
-- nothing is due any more, and a continuous one does not go on. Those that no leader had for a day go; so do those of a
-- service that nobody leads for a week.
--
-- ARGV  term
-- Returns  1 | 0 (another one leads: nothing changed)
-- Called again: the same.
local RETIRED_MS, CLOSED_MS = 86400000, 604800000
if not is_term(ARGV[1]) then return 0 end
make_way()
local service = service_of_term(ARGV[1])
local since = call('HGET', lead_key(service), 'since')

local function is_closed(other)
  local ends = redis.pcall('HGET', lead_key(other), 'until')
  return type(ends) ~= 'string' or (tonumber(ends) or 0) < NOW - CLOSED_MS
end

for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'entries', '-inf', '(' .. since)) do
  local key, own = P .. 'e:' .. entry, service_of_entry(entry)
  if redis.pcall('HGET', key, 'src') ~= 'people' and (own == service or is_closed(own)) then
    if tonumber(call('ZSCORE', P .. 'entries', entry)) < NOW - RETIRED_MS then
      call('DEL', key)
      call('ZREM', P .. 'entries', entry)
    else
      redis.pcall('HDEL', key, 'cont', 'next')
    end
  end
end
return 1

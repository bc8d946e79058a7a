-- uses: records term full
--
-- retire: the leader has adopted all its entries. Of those that came from code and are not among them, nothing is due any
-- more, and a continuous one does not go on. Those that no leader had for a day go.
--
-- ARGV  term
-- Returns  1 | 0 (another one leads: nothing changed)
-- Called again: the same.
local RETIRED_MS = 86400000
if not is_term(ARGV[1]) then return 0 end
make_way()
local since = call('HGET', P .. 'lead', 'since')
for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'entries', '-inf', '(' .. since)) do
  local key = P .. 'e:' .. entry
  if redis.pcall('HGET', key, 'src') ~= 'people' then
    if tonumber(call('ZSCORE', P .. 'entries', entry)) < NOW - RETIRED_MS then
      call('DEL', key)
      call('ZREM', P .. 'entries', entry)
    else
      redis.pcall('HDEL', key, 'cont', 'next')
    end
  end
end
return 1

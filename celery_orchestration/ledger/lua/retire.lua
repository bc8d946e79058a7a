-- uses: records term full
--
-- retire: the leader has adopted all its entries. Those that came from code, and that no leader had for a day, go.
--
-- ARGV  term
-- Returns  1 | 0 (another one leads: nothing changed)
-- Called again: the same.
local RETIRED_MS = 86400000
if not is_term(ARGV[1]) then return 0 end
make_way()
for _, entry in ipairs(call('ZRANGEBYSCORE', P .. 'entries', '-inf', int(NOW - RETIRED_MS))) do
  if redis.pcall('HGET', P .. 'e:' .. entry, 'src') ~= 'people' then
    call('DEL', P .. 'e:' .. entry)
    call('ZREM', P .. 'entries', entry)
  end
end
return 1

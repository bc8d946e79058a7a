-- uses: schema records term memory
--
-- record_next_due: when entries are due next, for people.
--
-- ARGV  term, then entry and due time (ms) of each
-- Returns  1 | 0 (another one leads: nothing changed)
-- Called again: the same.
if not is_term(ARGV[1]) then return 0 end
make_way()
for i = 2, #ARGV, 2 do
  -- One of another type is reported by adopt and dispatch; one that people removed must not come back.
  local key = P .. 'e:' .. ARGV[i]
  if redis.pcall('HEXISTS', key, 'gen') == 1 then call('HSET', key, 'next', ARGV[i + 1]) end
end
return 1

-- uses: records full
--
-- resign: a leader's term ends now.
--
-- ARGV  scheduler, term
-- Returns  1 | 0 (it did not lead)
-- Called again: 0.
make_way()
local v = call('HMGET', P .. 'lead', 'who', 'term', 'until')
if v[1] ~= ARGV[1] or v[2] ~= ARGV[2] or v[3] == '0' then return 0 end
call('HSET', P .. 'lead', 'until', 0)
return 1

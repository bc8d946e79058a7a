-- uses: schema records term memory
--
-- resign: a leader's term ends now.
--
-- ARGV  scheduler, term
-- Returns  1 | 0 (it did not lead)
-- Errors   none
-- Called again: 0.
local key = lead_key(service_of_term(ARGV[2]))
allow_when_full()
local held = read_hash(key, 'who', 'term', 'until')
if not held or held.who ~= ARGV[1] or held.term ~= ARGV[2] or held['until'] == 0 then return 0 end
call('HSET', key, 'until', 0)
return 1

-- uses: schema records
--
-- read_dead_letter: a dead letter whole, or the message of a run that waits.
--
-- ARGV  id, 1 (also of a run that waits; then without what happened) | 0
-- Returns  { JSON as in letters, 1 if it was revoked, message }, or {} if there is none
local v = call('HMGET', P .. 'dl:' .. ARGV[1], 'i', 'revoked', 'm')
local r = not v[1] and ARGV[2] == '1' and load_run(ARGV[1])
if r and (r.st == 'waiting' or r.st == 'later') then return { '{}', 0, call('HGET', P .. 'r:' .. r.id, 'm') } end
if not v[1] then return {} end
return { v[1], v[2] and 1 or 0, v[3] }

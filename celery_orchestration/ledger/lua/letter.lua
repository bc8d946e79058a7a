-- uses: records
--
-- letter: a dead letter whole.
--
-- ARGV  id
-- Returns  { JSON as in letters, 1 if it was revoked, message }, or {} if there is none
local v = call('HMGET', P .. 'dl:' .. ARGV[1], 'i', 'revoked', 'm')
if not v[1] then return {} end
return { v[1], v[2] and 1 or 0, v[3] }

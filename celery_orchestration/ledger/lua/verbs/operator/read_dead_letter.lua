-- uses: schema records
--
-- read_dead_letter: a dead letter with its message, or the message of a waiting run.
--
-- ARGV  id, 1 (also of a waiting run; then the JSON is {}) | 0
-- Returns  { JSON as in list_dead_letters, 1 if it was revoked, message }, or {} if there is none
-- Errors   none
-- Called again: the same, unless something changed.
local v = call('HMGET', K.dead_letter(ARGV[1]), 'info', 'revoked', 'message')
local r = not v[1] and ARGV[2] == '1' and load_run(ARGV[1])
if r and (r.state == 'waiting' or r.state == 'later') then return { '{}', 0, call('HGET', K.run(r.id), 'message') } end
if not v[1] then return {} end
return { v[1], v[2] and 1 or 0, v[3] }

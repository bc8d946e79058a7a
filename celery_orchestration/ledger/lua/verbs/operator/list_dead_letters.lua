-- uses: schema records
--
-- list_dead_letters: dead letters, the latest first, without their messages.
--
-- ARGV  1 (of all jobs) | 0, job, how many to skip, how many
-- Returns  { {JSON: id, job, at, error, traceback, attempt, key, arrived, worker, queue, figures; 1 if it was revoked} },
--          or nil for an unknown job
-- Errors   none
-- Called again: the same, unless something changed.
local all, name, from, count = ARGV[1] == '1', ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local found = {}
if not all and not job(name) and call('EXISTS', K.job_dead_letters(name)) == 0 then return false end
if count <= 0 then return found end
for _, id in ipairs(call('ZREVRANGE', all and K.dead_letters or K.job_dead_letters(name), from, from + count - 1)) do
  local v = call('HMGET', K.dead_letter(id), 'info', 'revoked')
  if v[1] then found[#found + 1] = { v[1], v[2] and 1 or 0 } end
end
return found

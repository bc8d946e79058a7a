-- uses: schema records
--
-- read_history: how the last runs of a job ended, the latest first.
--
-- ARGV  job, how many
-- Returns  { JSON of each, with fields as HISTORY in schema.lua has them }, or nil for an unknown job
-- Errors   none
-- Called again: the same, unless something changed.
if not job(ARGV[1]) then return false end
local count = math.min(tonumber(ARGV[2]), G.history)
return count > 0 and call('LRANGE', K.history(ARGV[1]), 0, count - 1) or {}

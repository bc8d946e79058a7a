-- uses: schema records
--
-- read_history: how the last runs of a job ended, the latest first.
--
-- ARGV  job, how many
-- Returns  { JSON of each: [id, attempt, outcome, arrived, started or false, ended, worker or false, fence or false,
--            recoveries, what it waited for first or false, what failed or false, room key, entry that fired it or false,
--            for when (ms) or false; of fires that made no run: how many] }, or nil for an unknown job. Those of an older
--            version end with the room key.
if not job(ARGV[1]) then return false end
local count = math.min(tonumber(ARGV[2]), G.history)
return count > 0 and call('LRANGE', P .. 'h:' .. ARGV[1], 0, count - 1) or {}

-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over workers memory
--
-- drain: a worker begins to stop. It shows as draining, its slots no longer count, and granted runs go to other
-- workers if possible. Its running runs go on. If its lease runs out, that does not count as a crash of its runs.
--
-- ARGV  worker, in how many ms its process will be gone, or '' (it ends when its runs have ended). With a number it
--       departs: its lease ends then and is not renewed, and a sweep takes its runs.
-- Returns  { granted: {id, grant number} to publish }
-- Errors   UNKNOWNWORKER
-- Called again: the same; what was granted and not published is granted again by a sweep.
local worker, gone_ms = ARGV[1], tonumber(ARGV[2])
local lease_end = tonumber(call('ZSCORE', K.leases, worker) or nil)
if not lease_end then return redis.error_reply('UNKNOWNWORKER ' .. worker) end

allow_when_full()
withdraw_slots(worker)
local departing = gone_ms or call('HGET', K.worker(worker), 'state') == 'departing'
call('HSET', K.worker(worker), 'state', departing and 'departing' or 'draining')
if gone_ms then
  -- The ledger clock has stood still since the last sweep: the next sweep adds the time that has passed.
  local passed = math.max(0, NOW - (tonumber(call('HGET', K.ledger, 'swept')) or NOW))
  call('ZADD', K.leases, int(math.min(lease_end, G.clock + passed + gone_ms)), worker)
end
refresh_stale()
hand_over(16)
flush()
return HAND.grants

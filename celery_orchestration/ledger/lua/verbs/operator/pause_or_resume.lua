-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over memory
--
-- pause_or_resume: a person stops the gate for all jobs, or opens it again. Running runs go on.
--
-- ARGV  '1' (paused) | '0', who, why
-- Returns  { granted: {id, grant number} for the caller to publish }
-- Errors   none
-- Called again: the same; what was granted and not published is granted again by a sweep.
allow_when_full()
local paused = ARGV[1] == '1'
audit(ARGV[2], paused and 'pause' or 'resume', '', ARGV[3])
decide('pause', ARGV[2])
if paused ~= G.paused then
  local who = paused and cjson.encode({ by = ARGV[2], why = ARGV[3], at = NOW }) or ''
  call('HSET', K.ledger, 'paused', ARGV[1], 'pause', who)
  G.paused = paused
end
hand_over(64)
flush()
return HAND.grants

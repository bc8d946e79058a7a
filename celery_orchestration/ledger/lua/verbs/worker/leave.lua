-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over workers memory
--
-- leave: a worker stops in good order. Runs that it still has wait again (with on_crash 'fail' they fail);
-- that does not count as a crash.
--
-- ARGV  worker
-- Returns  { more (1: call again, it has more runs), { granted: {id, grant number} to publish } }
-- Errors   none
-- Called again: nothing more to do.
allow_when_full()
local worker, more = ARGV[1], false
if call('EXISTS', K.worker(worker)) == 1 then
  local _, _, done = take_runs(worker, false, 200)
  if done then
    remove_worker(worker)
    refresh_stale()
  end
  more = not done
  hand_over(16)
  flush()
end
return { more and 1 or 0, HAND.grants }

-- uses: records gate room life entries hand_over workers full
--
-- leave: a worker stops in good order. Runs it still has go back to their queue (on_crash 'fail': they have failed); that is
-- no crash of theirs.
--
-- ARGV  worker
-- Returns  { granted: {id, grant number} to publish }
-- Called again: nothing more to do.
make_way()
local worker = ARGV[1]
if call('EXISTS', P .. 'w:' .. worker) == 1 then
  take_runs(worker, false, 100000)
  remove_worker(worker)
  hand_over(16)
  flush()
end
return HAND.grants

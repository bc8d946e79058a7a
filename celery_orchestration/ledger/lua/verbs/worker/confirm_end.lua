-- uses: schema records lanes rules statistics index room ended_runs transitions identity entries hand_over memory
--
-- confirm_end: Celery knows that these runs ended: their records are deleted.
-- Either an ending was carried out, or a worker found the message of a run that had not started, or of its next
-- attempt, revoked or expired.
--
-- ARGV  runs | messages, then of each: end_of_run (with the id of a run), or discarded (with the task id of a message, its
--         publication, and 1 if any known publication counts)
-- Returns  { { granted: {id, grant number} to publish } }
-- Errors   none
-- Called again: nothing more to do; what was granted and not published is granted again by a sweep.
allow_when_full()
local of_messages = ARGV[1] == 'messages'
for _, v in ipairs(read_arguments(of_messages and 'discarded' or 'end_of_run', 2)) do
  local r, attempt = nil, v.attempt
  if of_messages then
    r = select(2, run_of(v.id, v.publication, v.anonymous == '1'))
  else
    r = load_run(v.id)
  end
  if r and r.state == 'released' then
    call('ZREM', K.released, r.id)
    forget(r, true)
  elseif r and r.state ~= 'running' and (r.attempt == attempt or r.state == 'retrying' and r.attempt < attempt) then
    local j = job(r.job) -- nil if the job was deleted meanwhile, although this ending is left
    if r.state == 'ending' then
      call('ZREM', K.deadlines, r.id)
    else
      withdraw(j, r)
      note_end(j, r, 'revoked', nil, false)
      ended(j, r, nil)
      refresh(j)
      refresh_dependents(j)
    end
    r.attempt = attempt
    local letter = r.state == 'ending' and (r.why == 'crashed' and CRASH or r.why == 'unregistered' and UNREGISTERED)
    if letter then dead_letter(r, letter) else forget(r, true) end
  elseif r and r.state == 'running' and attempt > r.attempt then
    -- The next attempt is over before the end of this one was reported: settle() reads this done-marker.
    mark_done(r, attempt)
  end
end
hand_over(16)
flush()
return { HAND.grants }

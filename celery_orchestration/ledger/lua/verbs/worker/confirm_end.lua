-- uses: schema records statistics rules index room transitions identity entries hand_over memory
--
-- confirm_end: Celery knows that these runs ended; their records go.
-- Either an ending was carried out, or a worker found the message of a run that had not started, or of its next
-- attempt, revoked or expired.
--
-- ARGV  worker or '', then for each: id, attempt, and 'run' (it is a run's id) or '=' and the publication, or '*' (it is the
--       task id of a message, of that publication or of any)
-- Returns  { { granted: {id, grant number} to publish } }
-- Called again: nothing more to do; what was granted and not published is granted again by a sweep.
make_way()
for i = 2, #ARGV, 3 do
  local r, which = nil, ARGV[i + 2]
  if which == 'run' then
    r = load_run(ARGV[i])
  else
    r = select(2, run_of(ARGV[i], string.sub(which, 2), string.sub(which, 1, 1) == '*'))
  end
  local a = tonumber(ARGV[i + 1])
  if r and r.st == 'released' then
    call('ZREM', P .. 'released', r.id)
    forget(r, true)
  elseif r and r.st ~= 'running' and (r.a == a or r.st == 'retrying' and r.a < a) then
    local j = job(r.job) -- nil if its job is gone meanwhile: an ending keeps no job
    if r.st == 'ending' then
      call('ZREM', P .. 'gr', r.id)
    else
      withdraw(j, r)
      note_down(j, r, 'revoked', nil, false)
      ended(j, r, nil)
      refresh(j)
      refresh_dependents(j)
    end
    r.a = a
    local letter = r.st == 'ending' and (r.why == 'crashed' and CRASH or r.why == 'unregistered' and UNREGISTERED)
    if letter then dead_letter(r, letter) else forget(r, true) end
  elseif r and r.st == 'running' and a > r.a then
    -- The next attempt of a run is over before the end of this one is told: settle() looks here.
    mark_done(r, a)
  end
end
hand_over(16)
flush()
return { HAND.grants }

-- Transitions: every change of a run's state, and what follows from it. Needs records, rules, index, room, statistics,
-- ended_runs.

local GRANT_MS = 3000

-- When a retry that was sent through the broker counts as lost: after ten leases, then twice as long each time.
function retry_deadline(tries)
  return int(G.clock + 10 * SESSION.lease * 2 ^ math.min(tries, 12))
end

-- A new attempt of a run takes over what it has in common with the attempt before it.
function inherit(r, before)
  for _, field in ipairs(RUN.inherited) do r[field] = before[field] end
end

-- While a disabled job may be tried again, the first run that goes is its probe run.
local function claim_probe(j, r)
  if j.disabled and j.probe == '' and not is_forced(r.rank) then j.probe, j.dirty = r.id, true end
end

-- The run starts on a worker; it holds room already. A start gives it a new fence, which voids all fences before.
function start(j, r, worker, message)
  r.state = 'running'
  r.worker = worker
  r.fence = tick()
  STATS.started(j, r)
  j.last_run = r.id
  r.grant, r.destination, r.tries = nil, nil, 0
  r.deps_checked = true
  j.last_start = G.tick
  j.dirty = true
  claim_probe(j, r)
  if not r.started then
    r.started = true
    j.busy = j.busy + 1
    no_longer_first(j, r)
    if j.busy == 1 then refresh_dependents(j) end
  end
  call('SADD', K.worker_runs(worker), r.id)
  save_run(r, nil, message)
end

-- The run holds room, and somebody has to publish it to that queue. Granting it again voids older copies.
function grant(j, r, queue)
  claim_probe(j, r)
  if r.destination ~= queue then
    if r.destination then count_under_way(r.destination, -1) end
    count_under_way(queue, 1)
  end
  r.state = 'granted'
  r.grant = tick()
  r.destination = queue
  call('ZADD', K.deadlines, int(G.clock + GRANT_MS), r.id)
  save_run(r)
end

-- The run is no longer on its way to a worker.
function ungrant(r)
  call('ZREM', K.deadlines, r.id)
  if r.destination then count_under_way(r.destination, -1) end
  r.grant, r.destination = nil, nil
end

-- The run that was granted waits again.
function take_back(j, r)
  ungrant(r)
  free(j, r.key)
  enqueue(j, r)
  refresh(j)
end

-- How many runs ended and failed in this call.
DONE, FAILED = nil

-- Jobs that failures have disabled in this call: { name, why }.
DISABLED = nil

on_call(function() DONE, FAILED, DISABLED = 0, 0, {} end)

function cool_down(j)
  j.probe = nil
  if j.policy.cool_down_seconds then set_timer(j.name, 'cool_down', NOW + j.policy.cool_down_seconds * 1000) end
end

-- A run has ended. ok: true (succeeded), false (failed) or nil (counts as neither). note: the error.
function ended(j, r, ok, note)
  if ok ~= nil then
    j.last_ok = ok
    j.last_end = tick()
    j.last_end_ms = NOW
    if ok then
      j.last_success, j.failures = j.last_end, 0
    else
      j.failures, j.last_error = (j.failures or 0) + 1, note
      if j.policy.max_consecutive_failures and j.failures >= j.policy.max_consecutive_failures and not j.disabled then
        local why = j.failures .. ' failures in a row, the last: ' .. (note or '?')
        switch_off(j, 'failures', why)
        cool_down(j)
        DISABLED[#DISABLED + 1] = { j.name, why }
      end
    end
  end
  if j.probe == r.id then
    if ok then
      switch_on(j, 'probe', 'run ' .. r.id .. ' succeeded')
    elseif ok == false then
      cool_down(j)
    else
      j.probe = ''
    end
  end
  if r.started then
    r.started = false
    j.busy = j.busy - 1
  else
    no_longer_first(j, r)
  end
  j.dirty = true
end

-- The run becomes an ending: a worker has to report to Celery that it ends, and how ('revoked', 'expired', 'skipped',
-- 'crashed', 'unregistered').
function ending(r, why)
  r.state = 'ending'
  r.why = why
  call('ZADD', K.deadlines, int(G.clock + GRANT_MS), r.id)
  save_run(r)
end

-- The higher attempt that waits for r; nil if there is none, or its record is lost.
function following(r)
  local x = r.has_next_attempt and load_run(r.id, K.next_attempt) or nil
  if r.has_next_attempt and not x then
    audit('ledger', 'lost', r.id, r.job)
    call('ZREM', K.waiting, r.id)
    r.has_next_attempt = nil
  end
  return x
end

-- r is over and its record is deleted. If a higher attempt waited for it, that attempt goes to the gate. started: the
-- run as a whole still counts as started.
local function promote(r, started)
  local x = following(r)
  if not x then return end
  call('RENAME', K.next_attempt(r.id), K.run(r.id))
  local j = job(x.job)
  if not j then
    -- No release has its job any more.
    call('ZREM', K.waiting, x.id)
    if x.expires then call('ZREM', K.expiring, x.id) end
    return ending(x, 'unregistered')
  end
  x.started = started
  if not j.policy.keyed then x.key = '' end
  call('ZREM', K.waiting, x.id)
  if x.eta and x.eta > NOW then
    put_off(j, x)
    return
  end
  enqueue(j, x)
  refresh(j)
end

-- r is over without an outcome of its own: the higher attempt that waits for it continues the run. If that is of another
-- job (the run was replaced), r's job has ended it.
local function continue_with_retry(j, r)
  if load_run(r.id, K.next_attempt).job ~= r.job then
    ended(j, r, nil)
    refresh_dependents(j)
  end
  forget(r, false)
  promote(r, r.started)
end

-- A run that is not running leaves its state, and with it its room, lane or grant. Its record stays.
function withdraw(j, r)
  if r.state == 'waiting' then
    dequeue(j, r)
  elseif r.state == 'later' then
    no_longer_put_off(j, r)
  elseif r.state == 'retrying' then
    call('ZREM', K.deadlines, r.id)
  elseif r.state == 'granted' or r.state == 'queued' then
    ungrant(r)
    free(j, r.key)
  end
  no_longer_first(j, r)
  refresh(j)
end

-- A run that has not started is called off: it ends without an outcome.
function call_off(j, r, why)
  withdraw(j, r)
  note_end(j, r, why, nil, false)
  ended(j, r, nil)
  ending(r, why)
  refresh(j)
  refresh_dependents(j)
end

CRASH, UNREGISTERED = 'its process or worker died', 'no live worker has this job'

-- The worker is no longer kept free for this run.
function no_longer_alone(r)
  if not r.alone then return end
  if SESSION.worker == r.worker then SESSION.alone = nil end
  call('HDEL', K.worker(r.worker), 'alone')
end

-- A running run came back without an outcome. died: 'process' or 'worker' says what died; nil: the run was stopped or
-- never began, which is no crash. begun: its code may have begun; then a job with on_crash 'fail' never begins it
-- again. Returns 'waits', 'superseded', 'dead' (the caller makes it a dead letter or an ending), or 'failed' (Celery
-- knows already that it timed out).
function recover(j, r, died, begun)
  local timed_out = note_of(r, 'timed_out')
  call('SREM', K.worker_runs(r.worker), r.id)
  no_longer_alone(r)
  local worker, fence = r.worker, r.fence
  r.worker, r.fence = nil, nil
  call('HDEL', K.run(r.id), 'progress')
  free(j, r.key)
  if timed_out and timed_out.failed then
    r.worker, r.fence = worker, fence
    note_end(j, r, 'failed', timed_out.what, true)
    ended(j, r, false, timed_out.what)
    dead_letter(r, timed_out.what)
    promote(r, false)
    refresh_dependents(j)
    refresh(j)
    return 'failed'
  end
  if following(r) then
    continue_with_retry(j, r)
    refresh(j)
    return 'superseded'
  end
  local recoveries = died and count_figure(r, 'recoveries') or 0
  if died then STATS.count(j, 'recovered') end
  local fails = begun and j.policy.on_crash == 'fail'
  if fails or (died and recoveries > j.policy.max_recoveries) then
    if died == 'worker' and not fails and not r.alone then
      -- Other runs were there, too. A try alone shows whether it was this one that took the worker down.
      r.alone = true
    else
      r.worker, r.fence = worker, fence
      note_end(j, r, 'crashed', CRASH, true)
      r.worker, r.fence = nil, nil
      ended(j, r, false, CRASH)
      refresh_dependents(j)
      refresh(j)
      return 'dead'
    end
  end
  enqueue(j, r)
  refresh(j)
  return 'waits'
end

local SUCCEEDED = { succeeded = true, failed = false }

-- The outcome of a running run; `o` is an argument `outcome`. Returns 'ok', 'refused' (its fence is void: nothing changes),
-- or, for the outcomes 'crashed', 'interrupted' and 'returned', what recover returns. Adds the job to `after` if its
-- run ended.
function settle(o, after)
  local id, outcome, note, trace = o.id, o.outcome, o.note, o.traceback
  local r = load_run(id)
  if not r or r.state ~= 'running' or r.fence ~= o.fence then return 'refused' end
  r.ran, r.ago = o.ran_ms, o.ended_ago_ms
  local j = job(r.job)
  if outcome == 'crashed' or outcome == 'interrupted' or outcome == 'returned' then
    local what = recover(j, r, outcome == 'crashed' and 'process' or nil, outcome ~= 'returned')
    if what == 'dead' then
      DONE, FAILED = DONE + 1, FAILED + 1
      dead_letter(r, note ~= '' and note or CRASH, trace)
      after[#after + 1] = j
    end
    return what
  end
  call('SREM', K.worker_runs(r.worker), id)
  no_longer_alone(r)
  free(j, r.key)
  following(r)
  if outcome == 'retry' then
    if r.has_next_attempt then
      continue_with_retry(j, r)
    elseif (done_of(r) or -1) > r.attempt then
      -- Its next attempt has ended already: it was revoked, or it expired.
      note_end(j, r, 'revoked', note, true)
      ended(j, r, nil)
      forget(r, false)
      refresh_dependents(j)
      after[#after + 1] = j
    else
      -- The message stays, in case the retry's message gets lost.
      STATS.count(j, 'retried')
      j.last_error = note ~= '' and note or j.last_error
      r.state, r.worker, r.fence, r.alone = 'retrying', nil, nil, nil
      save_run(r)
      call('HDEL', K.run(id), 'progress')
      call('ZADD', K.deadlines, retry_deadline(r.tries), id)
    end
  elseif outcome == 'requeued' and r.entry and not r.has_next_attempt then
    -- For its entry the run goes on: the message that is back in the broker's queue counts as its next attempt.
    note_end(j, r, outcome, note, true)
    r.attempt, r.state, r.worker, r.fence, r.alone = r.attempt - 1, 'retrying', nil, nil, nil
    save_run(r)
    call('ZADD', K.deadlines, retry_deadline(r.tries), id)
  else
    if outcome ~= 'requeued' then DONE = DONE + 1 end
    note_end(j, r, outcome, note, true)
    ended(j, r, SUCCEEDED[outcome], note)
    if outcome == 'failed' then
      FAILED = FAILED + 1
      dead_letter(r, note, trace)
    else
      forget(r, outcome ~= 'requeued')
    end
    promote(r, false)
    refresh_dependents(j)
    after[#after + 1] = j
  end
  refresh(j)
  return 'ok'
end

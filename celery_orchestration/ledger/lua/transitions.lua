-- A run's life: every change of its state. Needs records, rules, index, room, statistics.

local GRANT_MS = 3000

-- A retry is sent through the broker: when it is taken for lost. Ten leases, then twice as long each time.
local function retry_deadline(tries)
  return int(G.clk + 10 * SESSION.lease * 2 ^ math.min(tries or 0, 12))
end

-- The first run to go while its job may be tried again is the probe.
local function claim_probe(j, r)
  if j.off and j.probe == '' and r.rank >= 0 then j.probe, j.dirty = r.id, true end
end

-- The run starts on a worker; it holds room already. A start gives it a new fence, and voids all before.
local function start(j, r, worker, message)
  r.st = 'running'
  r.own = worker
  r.fence = tick()
  STATS.started(j, r)
  j.last = r.id
  r.gn, r.dest, r.tries = nil, nil, 0
  r.jd = true
  j.begun = G.tick
  j.dirty = true
  claim_probe(j, r)
  if not r.sd then
    r.sd = true
    j.busy = j.busy + 1
    no_longer_first(j, r)
    if j.busy == 1 then refresh_dependents(j) end
  end
  call('SADD', P .. 'wr:' .. worker, r.id)
  save_run(r, nil, message)
end

-- The run holds room, and somebody has to publish it to that queue. Granting it again voids older copies.
local function grant(j, r, queue)
  claim_probe(j, r)
  if r.dest ~= queue then
    if r.dest then out(r.dest, -1) end
    out(queue, 1)
  end
  r.st = 'granted'
  r.gn = tick()
  r.dest = queue
  call('ZADD', P .. 'gr', int(G.clk + GRANT_MS), r.id)
  save_run(r)
end

-- The run is no longer on its way to a worker.
local function ungrant(r)
  call('ZREM', P .. 'gr', r.id)
  if r.dest then out(r.dest, -1) end
  r.gn, r.dest = nil, nil
end

-- The run that was granted waits again.
local function take_back(j, r)
  ungrant(r)
  free(j, r.key)
  enqueue(j, r)
  refresh(j)
end

-- How many runs ended and failed in this call.
local DONE, FAILED

local function worker_name(worker)
  if not worker then return false end
  if worker == SESSION.worker then return SESSION.name end
  return call('HGET', P .. 'w:' .. worker, 'name') or worker
end

-- Runs of continuous entries that ended in this call: lib/entries.lua goes on with these.
local ENDED_CONTINUOUS

-- For people: a record of the history.
local function keep(j, fields)
  if G.history <= 0 then return end
  local kept = call('LPUSH', P .. 'h:' .. j.name, cjson.encode(fields))
  if kept > G.history * 1.2 then call('LTRIM', P .. 'h:' .. j.name, 0, G.history - 1) end
end

-- For people: how a run ended. started: whether it was running just now. Its worker may have told how long its code ran and
-- how long ago that was (settle): after an outage the ledger knows neither.
local function note_down(j, r, outcome, note, started)
  local over = NOW - (r.ago or 0)
  local began = started and (r.ran and over - r.ran or r.at)
  keep(j, { r.id, r.a, outcome, math.min(r.enq, began or over), began or false, over, worker_name(r.own),
    r.fence and int(r.fence) or false, r.rec, r.wf or false, note and note ~= '' and note or false, r.key,
    r.ent or false, r.due or false })
  STATS.count(j, outcome)
  if started then
    j.took = over - began
    STATS.observe(j, 'run', j.took)
  end
  if r.cont and outcome ~= 'requeued' and outcome ~= 'released' then ENDED_CONTINUOUS[#ENDED_CONTINUOUS + 1] = r end
end

-- Jobs that failures have disabled in this call: { name, why }.
local DISABLED

on_call(function() DONE, FAILED, ENDED_CONTINUOUS, DISABLED = 0, 0, {}, {} end)

local function cool_down(j)
  j.probe = nil
  if j.cool then
    call('ZADD', P .. 'cool', int(NOW + j.cool), j.name)
    look_at(NOW + j.cool)
  end
end

-- A run that started has ended. ok: true succeeded, false failed, nil: it counts neither way. note: what failed.
local function ended(j, r, ok, note)
  if ok ~= nil then
    j.ok = ok
    j.ended = tick()
    j.ends_at = NOW
    if ok then
      j.good, j.fails = j.ended, 0
    else
      j.fails, j.err = (j.fails or 0) + 1, note
      if j.fmax and j.fails >= j.fmax and not j.off then
        local why = j.fails .. ' failures in a row, the last: ' .. (note or '?')
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
  if r.sd then
    r.sd = false
    j.busy = j.busy - 1
  else
    no_longer_first(j, r)
  end
  j.dirty = true
end

-- The highest attempt of the run that ended, as far as it is remembered; or nil. r: its id and publication.
local function done_of(r)
  local attempt, pub = string.match(call('GET', P .. 'd:' .. r.id) or '', '^(-?%d+) (.*)$')
  return pub == r.pub and tonumber(attempt) or nil
end

-- The done-marker makes sure that no copy of a message starts this attempt again.
local function mark_done(r, attempt)
  call('SET', P .. 'd:' .. r.id, int(attempt) .. ' ' .. r.pub, 'PX', G.done_ms)
end

-- The record of an attempt goes.
local function forget(r, marker)
  delete_run(r)
  if marker then mark_done(r, r.a) end
end

-- A dead letter goes.
local function remove_dead_letter(id, name)
  local r = load_run(id, 'dl:')
  if r and r.tid then call('SREM', P .. 'p:' .. r.tid, id) end
  call('DEL', P .. 'dl:' .. id)
  call('ZREM', P .. 'dead', id)
  call('ZREM', P .. 'lost', id)
  call('ZREM', P .. 'dj:' .. name, id)
end

-- The run failed for good: its record becomes a dead letter. trace: the traceback, or ''.
local function dead_letter(r, note, trace)
  if G.letters <= 0 then return forget(r, true) end
  mark_done(r, r.a)
  local key = P .. 'dl:' .. r.id
  call('RENAME', P .. 'r:' .. r.id, key)
  call('HDEL', key, 'p', 'o')
  call('HSET', key, 'i', cjson.encode({ id = r.id, job = r.job, at = NOW, error = note or '', traceback = trace or '',
    attempt = r.a, key = r.key, arrived = r.enq, worker = worker_name(r.own) or nil, recoveries = r.rec, queue = r.q }))
  call('ZADD', P .. 'dead', int(NOW), r.id)
  call('ZADD', P .. 'dj:' .. r.job, int(NOW), r.id)
  local over = call('ZCARD', P .. 'dj:' .. r.job) - G.letters
  for _, id in ipairs(over > 0 and call('ZRANGE', P .. 'dj:' .. r.job, 0, over - 1) or {}) do remove_dead_letter(id, r.job) end
end

-- Somebody has to tell Celery that the run ends, and how ('revoked', 'expired', 'skipped', 'crashed', 'unregistered'): an
-- ending.
local function ending(r, why)
  r.st = 'ending'
  r.why = why
  call('ZADD', P .. 'gr', int(G.clk + GRANT_MS), r.id)
  save_run(r)
end

-- The higher attempt that waits for r, or nil: there is none, or its record is gone.
local function following(r)
  local x = r.behind and load_run(r.id, 'x:') or nil
  if r.behind and not x then
    audit('ledger', 'lost', r.id, r.job)
    call('ZREM', P .. 'wait', r.id)
    r.behind = nil
  end
  return x
end

-- r is over and its record gone: if a higher attempt waited for it, that goes to the gate. `sd`: the run as a whole
-- still counts as started.
local function promote(r, sd)
  local x = following(r)
  if not x then return end
  call('RENAME', P .. 'x:' .. r.id, P .. 'r:' .. r.id)
  local j = job(x.job)
  if not j then
    -- No release has its job any more.
    call('ZREM', P .. 'wait', x.id)
    if x.ex then call('ZREM', P .. 'due', x.id) end
    return ending(x, 'unregistered')
  end
  x.sd = sd
  if not j.keyed then x.key = '' end
  call('ZREM', P .. 'wait', x.id)
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
  if load_run(r.id, 'x:').job ~= r.job then
    ended(j, r, nil)
    refresh_dependents(j)
  end
  forget(r, false)
  promote(r, r.sd)
end

-- The run leaves whatever state it is in but running, with its room, lane, grant; the record stays.
local function withdraw(j, r)
  if r.st == 'waiting' then
    dequeue(j, r)
  elseif r.st == 'later' then
    no_longer_put_off(j, r)
  elseif r.st == 'retrying' then
    call('ZREM', P .. 'gr', r.id)
  elseif r.st == 'granted' or r.st == 'queued' then
    ungrant(r)
    free(j, r.key)
  end
  no_longer_first(j, r)
  refresh(j)
end

-- A run that has not started is called off: it ends without an outcome.
local function call_off(j, r, why)
  withdraw(j, r)
  note_down(j, r, why, nil, false)
  ended(j, r, nil)
  ending(r, why)
  refresh(j)
  refresh_dependents(j)
end

local CRASH, UNREGISTERED = 'its process or worker died', 'no live worker has this job'

-- The worker is not kept free for this run any more.
local function no_longer_alone(r)
  if not r.al then return end
  if SESSION.worker == r.own then SESSION.alone = nil end
  call('HDEL', P .. 'w:' .. r.own, 'alone')
end

-- A running run came back without an outcome: its process died (counted), its whole worker did (counted == 'worker'), or
-- it was stopped or never began (not counted). begun: its code may have begun; then a job with on_crash 'fail' never begins
-- it again. Returns 'requeued', 'superseded' or 'dead'; the caller buries or ends a dead one. Or 'failed': Celery knew that
-- its time was over, and it has ended.
local function recover(j, r, counted, begun)
  local over = noted(r, 'o')
  call('SREM', P .. 'wr:' .. r.own, r.id)
  no_longer_alone(r)
  local own, fence = r.own, r.fence
  r.own, r.fence = nil, nil
  call('HDEL', P .. 'r:' .. r.id, 'p')
  free(j, r.key)
  if over and over.more then
    r.own, r.fence = own, fence
    note_down(j, r, 'failed', over.what, true)
    ended(j, r, false, over.what)
    dead_letter(r, over.what)
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
  if counted then
    r.rec = r.rec + 1
    STATS.count(j, 'recovered')
  end
  local fails = begun and j.crash == 'fail'
  if fails or (counted and r.rec > j.recmax) then
    if counted == 'worker' and not fails and not r.al then
      -- Others ran there as well: whose fault it was shows when it is tried alone.
      r.al = true
    else
      r.own, r.fence = own, fence
      note_down(j, r, 'crashed', CRASH, true)
      r.own, r.fence = nil, nil
      ended(j, r, false, CRASH)
      refresh_dependents(j)
      refresh(j)
      return 'dead'
    end
  end
  enqueue(j, r)
  refresh(j)
  return 'requeued'
end

-- The outcome of a running run. Returns 'ok', 'refused' (its fence is void: nothing changes), or, for the
-- outcomes 'crashed', 'interrupted' and 'returned', what recover says. Jobs that ended are noted in `after`. ran, ago: ms
-- that its code ran (or nil), and since then.
local SUCCEEDED = { succeeded = true, failed = false }

local function settle(id, fence, outcome, note, trace, ran, ago, after)
  local r = load_run(id)
  if not r or r.st ~= 'running' or r.fence ~= fence then return 'refused' end
  r.ran, r.ago = ran, ago
  local j = job(r.job)
  if outcome == 'crashed' or outcome == 'interrupted' or outcome == 'returned' then
    local what = recover(j, r, outcome == 'crashed', outcome ~= 'returned')
    if what == 'dead' then
      DONE, FAILED = DONE + 1, FAILED + 1
      dead_letter(r, note ~= '' and note or CRASH, trace)
      after[#after + 1] = j
    end
    return what
  end
  call('SREM', P .. 'wr:' .. r.own, id)
  no_longer_alone(r)
  free(j, r.key)
  following(r)
  if outcome == 'retry' then
    if r.behind then
      continue_with_retry(j, r)
    elseif (done_of(r) or -1) > r.a then
      -- Its next attempt is over already: it was revoked, or had expired.
      note_down(j, r, 'revoked', note, true)
      ended(j, r, nil)
      forget(r, false)
      refresh_dependents(j)
      after[#after + 1] = j
    else
      -- The message stays, for the case that the retry's gets lost.
      STATS.count(j, 'retried')
      j.err = note ~= '' and note or j.err
      r.st, r.own, r.fence, r.al = 'retrying', nil, nil, nil
      save_run(r)
      call('HDEL', P .. 'r:' .. id, 'p')
      call('ZADD', P .. 'gr', retry_deadline(r.tries), id)
    end
  elseif outcome == 'requeued' and r.ent and not r.behind then
    -- Its entry is not done with it: the message that is back in the broker's queue counts as its next attempt.
    note_down(j, r, outcome, note, true)
    r.a, r.st, r.own, r.fence, r.al = r.a - 1, 'retrying', nil, nil, nil
    save_run(r)
    call('ZADD', P .. 'gr', retry_deadline(r.tries), id)
  else
    if outcome ~= 'requeued' then DONE = DONE + 1 end
    note_down(j, r, outcome, note, true)
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

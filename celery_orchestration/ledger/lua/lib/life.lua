-- A run's life: every change of its state. Needs records, gate, room.

local GRANT_MS = 3000

-- The run starts on a worker; it holds room already. A start gives it a new fence, and voids all before.
local function start(j, r, worker, message)
  r.st = 'running'
  r.own = worker
  r.fence = tick()
  r.gn, r.dest, r.tries = nil, nil, 0
  r.jd = true
  j.begun = G.tick
  j.dirty = true
  if not r.sd then
    r.sd = true
    j.busy = j.busy + 1
    if j.busy == 1 then refresh_dependents(j) end
  end
  call('SADD', P .. 'wr:' .. worker, r.id)
  save_run(r, nil, message)
end

-- The run holds room, and somebody has to publish it to that queue. Granting it again voids older copies.
local function grant(r, queue)
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

-- Jobs that failures have disabled in this call: { name, why }.
local DISABLED = {}

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
        DISABLED[#DISABLED + 1] = { j.name, why }
      end
    end
  end
  if r.sd then
    r.sd = false
    j.busy = j.busy - 1
  end
  j.dirty = true
end

-- The record of an attempt goes; the done-marker makes sure that no copy of its message starts it again.
local function forget(r, marker)
  call('DEL', P .. 'r:' .. r.id)
  if marker then call('SET', P .. 'd:' .. r.id, int(r.a), 'PX', G.done_ms) end
end

-- Somebody has to tell Celery that the run ends, and how ('revoked', 'expired', 'crashed'): an ending.
local function ending(r, why)
  r.st = 'ending'
  r.why = why
  call('ZADD', P .. 'gr', int(G.clk + GRANT_MS), r.id)
  save_run(r)
end

-- r is over and its record gone: if a higher attempt waited for it, that goes to the gate. `sd`: the run as a whole
-- still counts as started.
local function promote(r, sd)
  if not r.behind then return end
  local x = load_run(r.id, 'x:')
  call('RENAME', P .. 'x:' .. r.id, P .. 'r:' .. r.id)
  local j = job(x.job)
  if not j then
    -- No release has its job any more.
    call('ZREM', P .. 'wait', x.id)
    if x.ex then call('ZREM', P .. 'due', x.id) end
    return ending(x, 'revoked')
  end
  x.sd = sd
  if not j.keyed then x.key = '' end
  enqueue(j, x)
  refresh(j)
end

-- r is over without an outcome of its own: the higher attempt that waits for it continues the run. If that is of another
-- job (the run was replaced), r's job has ended it.
local function give_way(j, r)
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
  elseif r.st == 'granted' or r.st == 'queued' then
    ungrant(r)
    free(j, r.key)
  end
  refresh(j)
end

-- A running run came back without an outcome: its process died (counted) or never began it (not counted).
-- Returns 'requeued', 'superseded' or 'dead'; the caller ends a dead one. Or 'failed': its time was over, it has ended.
local function recover(j, r, counted)
  local over = noted(r, 'o')
  call('SREM', P .. 'wr:' .. r.own, r.id)
  r.own, r.fence = nil, nil
  free(j, r.key)
  if over and over.more then
    ended(j, r, false, over.what)
    forget(r, true)
    promote(r, false)
    refresh_dependents(j)
    refresh(j)
    return 'failed'
  end
  if r.behind then
    give_way(j, r)
    refresh(j)
    return 'superseded'
  end
  if counted then
    r.rec = r.rec + 1
    if j.crash == 'fail' or r.rec > j.recmax then
      ended(j, r, false, 'its process or worker died')
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
-- outcomes 'crashed' and 'returned', what recover says. Jobs that ended are noted in `after`.
local SUCCEEDED = { succeeded = true, failed = false }

local function settle(id, fence, outcome, note, after)
  local r = load_run(id)
  if not r or r.st ~= 'running' or r.fence ~= fence then return 'refused' end
  local j = job(r.job)
  if outcome == 'crashed' or outcome == 'returned' then
    local what = recover(j, r, outcome == 'crashed')
    if what == 'dead' then
      forget(r, true)
      after[#after + 1] = j
    end
    return what
  end
  call('SREM', P .. 'wr:' .. r.own, id)
  free(j, r.key)
  if outcome == 'retry' then
    if r.behind then
      give_way(j, r)
    elseif (tonumber(call('GET', P .. 'd:' .. id) or '') or -1) > r.a then
      -- Its next attempt is over already: it was revoked, or had expired.
      ended(j, r, nil)
      forget(r, false)
      refresh_dependents(j)
      after[#after + 1] = j
    else
      r.st, r.own, r.fence = 'retrying', nil, nil
      save_run(r)
      call('HDEL', P .. 'r:' .. id, 'm')
    end
  else
    ended(j, r, SUCCEEDED[outcome], note)
    forget(r, outcome ~= 'requeued')
    promote(r, false)
    refresh_dependents(j)
    after[#after + 1] = j
  end
  refresh(j)
  return 'ok'
end

-- A run's life: every change of its state. Needs records, gate, room.

local GRANT_MS = 3000

-- The run starts on a worker; it holds room already. A start gives it a new fence, and voids all before.
local function start(j, r, worker)
  r.st = 'running'
  r.own = worker
  r.fence = int(tick())
  r.gn = ''
  r.dest = ''
  r.tries = 0
  r.jd = true
  j.begun = G.tick
  j.dirty = true
  if not r.sd then
    r.sd = true
    j.busy = j.busy + 1
    if j.busy == 1 then refresh_dependents(j) end
  end
  call('SADD', P .. 'wr:' .. worker, r.id)
  save_run(r)
end

-- The run holds room, and somebody has to publish it to that queue. Granting it again voids older copies.
local function grant(r, queue)
  if r.dest ~= queue then
    if r.dest and r.dest ~= '' then out(r.dest, -1) end
    out(queue, 1)
  end
  r.st = 'granted'
  r.gn = int(tick())
  r.dest = queue
  call('ZADD', P .. 'gr', int(G.clk + GRANT_MS), r.id)
  save_run(r)
end

-- The run is no longer on its way to a worker.
local function ungrant(r)
  call('ZREM', P .. 'gr', r.id)
  if r.dest and r.dest ~= '' then out(r.dest, -1) end
  r.gn = ''
  r.dest = ''
end

-- A run that started has ended. ok: '1' succeeded, '0' failed, nil: it counts neither way.
local function ended(j, r, ok)
  if ok then
    j.ok = ok
    j.ended = tick()
    j.ends_at = NOW
    if ok == '1' then j.good = j.ended end
  end
  if r.sd then
    r.sd = false
    j.busy = j.busy - 1
  end
  j.dirty = true
end

-- The record of an attempt goes; the done-marker makes sure that no copy of its message starts it again.
local function forget(r, marker)
  call('DEL', P .. 'r:' .. r.id, P .. 'm:' .. r.id)
  if marker then call('SET', P .. 'd:' .. r.id, int(r.a), 'PX', G.done_ms) end
end

-- The attempt before it is over: the higher attempt of the same run goes to the gate. Returns whether there is
-- one. `sd`: the run as a whole still counts as started.
local function promote(id, sd)
  local x = load_run(id, 'x:')
  if not x then return false end
  call('DEL', P .. 'x:' .. id)
  call('RENAME', P .. 'y:' .. id, P .. 'm:' .. id)
  x.sd = sd
  local j = job(x.job)
  enqueue(j, x)
  refresh(j)
  return true
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

-- Somebody has to tell Celery that the run ends, and how ('revoked', 'expired', 'crashed'): an ending.
local function ending(r, why)
  r.st = 'ending'
  r.why = why
  call('ZADD', P .. 'gr', int(G.clk + GRANT_MS), r.id)
  save_run(r)
end

-- A running run came back without an outcome: its process died (counted) or never began it (not counted).
-- Returns 'requeued', 'superseded' or 'dead'; the caller ends a dead one.
local function recover(j, r, counted)
  if r.own ~= '' then call('SREM', P .. 'wr:' .. r.own, r.id) end
  r.own = ''
  r.fence = ''
  free(j, r.key)
  if call('EXISTS', P .. 'x:' .. r.id) == 1 then
    local same = call('HGET', P .. 'x:' .. r.id, 'job') == r.job
    local sd = r.sd
    if not same then ended(j, r, nil) end
    forget(r, false)
    promote(r.id, same and sd)
    refresh(j)
    return 'superseded'
  end
  if counted then
    r.rec = r.rec + 1
    if j.crash == 'fail' or r.rec > j.recmax then
      ended(j, r, '0')
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
local OUTCOME = { succeeded = '1', failed = '0' }

local function settle(id, fence, outcome, after)
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
    local sd = r.sd
    call('DEL', P .. 'm:' .. id)
    if call('EXISTS', P .. 'x:' .. id) == 1 then
      call('DEL', P .. 'r:' .. id)
      promote(id, sd)
    else
      r.st, r.own, r.fence = 'retrying', '', ''
      save_run(r)
    end
  else
    ended(j, r, OUTCOME[outcome])
    forget(r, outcome ~= 'requeued')
    promote(id, false)
    refresh_dependents(j)
    after[#after + 1] = j
  end
  refresh(j)
  return 'ok'
end

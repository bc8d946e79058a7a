-- uses: schema records statistics rules index room transitions entries hand_over memory
--
-- claim_runs: in a new epoch a worker tells what it runs. That is running, with the very fence it has, even beyond caps,
-- unless the ledger knows better. What the ledger takes for running there and is not, goes back to its queue.
--
-- ARGV  worker, epoch,
--       count of outcomes that were taken lately, then for each: id, fence, outcome, what failed or '',
--         traceback or '', how long its code ran (ms) or '', how long ago that ended (ms)
--         (those that the ledger forgot are taken again)
--       count of runs, then for each: id, attempt, job, room key, priority, '', expires (ms) or '', own queue,
--         granted queue or '', message, '', '=' and publication, '', fence, task id
-- Returns  { { of each run: ok | void (ended, superseded, or started elsewhere since) | unknown (no policy) },
--            count of outcomes taken again, count of runs that go back to their queue,
--            { jobs that failures disabled: {name, why} } }
-- Errors   UNKNOWNWORKER; NEWEPOCH epoch: another one than told has begun
-- Called again: the same, with both counts 0.

local worker, epoch = ARGV[1], ARGV[2]
if call('EXISTS', P .. 'w:' .. worker) == 0 then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
if epoch ~= G.epoch then return redis.error_reply('NEWEPOCH ' .. (G.epoch or '')) end
make_way()

-- An attempt that the ledger has, and that was over when the claimed one started, leaves its room, lane or grant.
-- Returns the higher attempt that waits behind it, if any.
local function step_back(r)
  local j = job(r.job)
  local x = r.behind and load_run(r.id, 'x:') or nil
  if r.st == 'running' then
    call('SREM', P .. 'wr:' .. r.own, r.id)
    no_longer_alone(r)
    free(j, r.key)
    refresh(j)
  else
    withdraw(j, r)
    call('ZREM', P .. 'released', r.id)
  end
  return x
end

local function drop_behind(x)
  call('DEL', P .. 'x:' .. x.id)
  call('ZREM', P .. 'wait', x.id)
  if x.ex then call('ZREM', P .. 'due', x.id) end
end

-- Another publication of its task id came before the claim, and was given the run id: it gets one of its own.
local function move_aside(r)
  local j = job(r.job)
  withdraw(j, r)
  r.tid = r.id
  r.id = r.tid .. '~' .. r.pub
  if j.probe == r.tid then j.probe = r.id end
  call('RENAME', P .. 'r:' .. r.tid, P .. 'r:' .. r.id)
  if r.st == 'later' then put_off(j, r) else enqueue(j, r) end
  refresh(j)
end

-- Does the ledger know better? r: what it has of the run.
local function is_void(r, id, pub, a, fence)
  if not r then return (done_of({ id = id, pub = pub }) or -1) >= a end
  if r.pub ~= pub then return true end
  return r.a > a or r.st == 'ending' or (r.a == a and (r.fence or 0) > fence)
end

local MOVES = { waiting = true, later = true, granted = true, queued = true }

local function claim(id, a, name, key, priority, ex, q, gq, message, pub, fence, task)
  local j, r = job(name), load_run(id)
  if not j then return 'unknown' end
  if r and r.pub ~= pub and MOVES[r.st] then
    move_aside(r)
    r = nil
  end
  G.tick = math.max(G.tick, fence)
  G.dirty = true
  if is_void(r, id, pub, a, fence) then return 'void' end
  if r and r.a == a and r.st == 'running' and r.fence == fence and r.own == worker then return 'ok' end
  local new = { id = id, job = name, key = j.keyed and key or '', a = a, rank = (3 - priority) * CLASS + next_seq(),
    rec = 0, ex = ex, q = q, gq = gq, enq = NOW, sd = false, pub = pub, tid = task ~= id and task or nil }
  if r then
    local x = step_back(r)
    if x and x.a > a then new.behind = true elseif x then drop_behind(x) end
    if r.job == name then
      new.rank, new.rec, new.enq, new.sd, new.al, new.wf = r.rank, r.rec, r.enq, r.sd, r.al, r.wf
      new.ent, new.due, new.cont = r.ent, r.due, r.cont
    else
      ended(job(r.job), r, nil)
      refresh_dependents(job(r.job))
    end
    delete_run(r)
  end
  local begun = j.begun or 0
  take(j, new.key)
  start(j, new, worker, message)
  new.fence, j.begun = fence, math.max(begun, fence)
  save_run(new)
  refresh(j)
  return 'ok'
end

local at, again = 4, 0
for _ = 1, tonumber(ARGV[3]) do
  local taken = settle(ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3], ARGV[at + 4],
    tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6]), HAND.after)
  if taken ~= 'refused' then again = again + 1 end
  at = at + 7
end

-- Before the claims: one of another publication of the same task id may be in the way of theirs.
local publications, back = {}, 0
for i = 1, tonumber(ARGV[at]) do
  local v = at + 15 * i - 14
  publications[ARGV[v]] = string.sub(ARGV[v + 11], 2)
end
for _, id in ipairs(call('SMEMBERS', P .. 'wr:' .. worker)) do
  local r = load_run(id)
  if not r or r.st ~= 'running' or r.own ~= worker then
    call('SREM', P .. 'wr:' .. worker, id)
  elseif publications[id] ~= r.pub then
    -- It may have run. A sweep tells Celery of one that must not run again.
    if recover(job(r.job), r, false, true) == 'dead' then ending(r, 'crashed') end
    back = back + 1
  end
end

local answers = {}
for i = 1, tonumber(ARGV[at]) do
  local v = at + 15 * i - 14
  answers[i] = claim(ARGV[v], tonumber(ARGV[v + 1]), ARGV[v + 2], ARGV[v + 3], tonumber(ARGV[v + 4]), tonumber(ARGV[v + 6]),
    ARGV[v + 7], ARGV[v + 8], ARGV[v + 9], string.sub(ARGV[v + 11], 2), tonumber(ARGV[v + 13]), ARGV[v + 14])
end

call('HSET', P .. 'w:' .. worker, 'epoch', epoch)
flush()
return { answers, again, back, DISABLED }

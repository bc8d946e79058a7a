-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over memory
--
-- claim_runs: in a new epoch a worker reports what it runs. The ledger takes these runs as running, with the fences
-- that they have, even beyond caps, unless it knows better. Runs that it has as running on this worker, but that the
-- worker does not report, wait again, or fail (on_crash).
--
-- ARGV  worker, epoch,
--       count of outcomes that were taken lately, then of each: outcome (those that the ledger forgot are taken again)
--       count of runs, then of each: arrival (with the id of the run), claim
-- Returns  { { of each run: ok | void (ended, superseded, or started elsewhere since) | unknown (no policy) },
--            count of outcomes taken again, count of runs that it did not report,
--            { jobs that failures disabled: {name, why} } }
-- Errors   UNKNOWNWORKER; NEWEPOCH epoch: another epoch than the worker's has begun
-- Called again: the same, with both counts 0.

local worker, epoch = ARGV[1], ARGV[2]
if call('EXISTS', K.worker(worker)) == 0 then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
if epoch ~= G.epoch then return redis.error_reply('NEWEPOCH ' .. (G.epoch or '')) end
allow_when_full()

-- The attempt that the ledger has was over when the claimed one started: it gives up its room, lane or grant.
-- Returns the higher attempt that waits behind it, if any.
local function step_back(r)
  local j = job(r.job)
  local x = r.has_next_attempt and load_run(r.id, K.next_attempt) or nil
  if r.state == 'running' then
    call('SREM', K.worker_runs(r.worker), r.id)
    no_longer_alone(r)
    free(j, r.key)
    refresh(j)
  else
    withdraw(j, r)
    call('ZREM', K.released, r.id)
  end
  return x
end

local function drop_early(x)
  call('DEL', K.next_attempt(x.id))
  call('ZREM', K.waiting, x.id)
  if x.expires then call('ZREM', K.expiring, x.id) end
end

-- Another publication of the task id came before the claim and got the run id of the claimed run: it gets another id.
local function move_aside(r)
  local j = job(r.job)
  withdraw(j, r)
  r.task_id = r.id
  r.id = r.task_id .. '~' .. r.publication
  if j.probe == r.task_id then j.probe = r.id end
  call('RENAME', K.run(r.task_id), K.run(r.id))
  if r.state == 'later' then put_off(j, r) else enqueue(j, r) end
  refresh(j)
end

-- Does the ledger know better than the claim `v`? r: the run as the ledger has it, or nil.
local function is_void(r, v)
  if not r then return (done_of(v) or -1) >= v.attempt end
  if r.publication ~= v.publication then return true end
  return r.attempt > v.attempt or r.state == 'ending' or (r.attempt == v.attempt and (r.fence or 0) > v.fence)
end

local MOVES = { waiting = true, later = true, granted = true, queued = true }

local function claim(v)
  local j, r = job(v.job), load_run(v.id)
  if not j then return 'unknown' end
  if r and r.publication ~= v.publication and MOVES[r.state] then
    move_aside(r)
    r = nil
  end
  G.tick = math.max(G.tick, v.fence)
  G.dirty = true
  if is_void(r, v) then return 'void' end
  if r and r.attempt == v.attempt and r.state == 'running' and r.fence == v.fence and r.worker == worker then return 'ok' end
  local new = run_record({ id = v.id, job = v.job, key = j.policy.keyed and v.key or nil, attempt = v.attempt,
    rank = (3 - v.priority) * CLASS + next_seq(), expires = v.expires_ms, queue = v.queue,
    granted_queue = v.granted_queue, arrived = NOW, publication = v.publication,
    task_id = v.task_id ~= v.id and v.task_id or nil })
  if r then
    local x = step_back(r)
    if x and x.attempt > v.attempt then new.has_next_attempt = true elseif x then drop_early(x) end
    if r.job == v.job then
      inherit(new, r)
      new.rank, new.started, new.alone = r.rank, r.started, r.alone
    else
      ended(job(r.job), r, nil)
      refresh_dependents(job(r.job))
    end
    delete_run(r)
  end
  local begun = j.last_start or 0
  take(j, new.key)
  start(j, new, worker, v.message)
  new.fence, j.last_start = v.fence, math.max(begun, v.fence)
  save_run(new)
  refresh(j)
  return 'ok'
end

local taken, at = read_arguments('outcome', 4, tonumber(ARGV[3]))
local again = 0
for _, outcome in ipairs(taken) do
  if settle(outcome, HAND.after) ~= 'refused' then again = again + 1 end
end

local runs, count = {}, tonumber(ARGV[at])
at = at + 1
for i = 1, count do
  local run, more = nil, nil
  run, at = read_argument('arrival', at)
  more, at = read_argument('claim', at)
  run.fence, run.task_id = more.fence, more.task_id
  runs[i] = run
end

-- This comes before the claims: a run of another publication of the same task id may have the id of a claimed run.
local publications, back = {}, 0
for _, run in ipairs(runs) do publications[run.id] = run.publication end
for _, id in ipairs(call('SMEMBERS', K.worker_runs(worker))) do
  local r = load_run(id)
  if not r or r.state ~= 'running' or r.worker ~= worker then
    call('SREM', K.worker_runs(worker), id)
  elseif publications[id] ~= r.publication then
    -- Its code may have run. If it must not run again, a sweep tells Celery.
    if recover(job(r.job), r, false, true) == 'dead' then ending(r, 'crashed') end
    back = back + 1
  end
end

local answers = {}
for i, run in ipairs(runs) do answers[i] = claim(run) end

call('HSET', K.worker(worker), 'epoch', epoch)
flush()
return { answers, again, back, DISABLED }

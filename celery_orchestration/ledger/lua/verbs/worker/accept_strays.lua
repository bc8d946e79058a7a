-- uses: schema records lanes rules statistics index room ended_runs transitions identity entries hand_over memory
--
-- accept_strays: messages came to a worker that lacks their jobs. Each waits here for a worker that has its job; a run that was
-- handed over waits again. If no live release has the job, and the ledger does not know the run, it becomes a dead
-- letter.
--
-- ARGV  worker, then of each: stray (anonymous: 1 if it may be of any publication that is known, see lib/identity.lua)
-- Returns  { { of each: wait (the ledger has it: acknowledge it) | drop (it is known already: acknowledge it)
--                     | nobody (it is a dead letter: discard it) | later (ask again: the attempt before it has not ended, or
--                       its job's policy is about to be installed) | full (Redis is full: ask again) },
--            { granted: {id, grant number} for the caller to publish } }
-- Errors   UNKNOWNWORKER
-- Called again: drop in place of wait; else the same.
local worker = ARGV[1]
if call('EXISTS', K.worker(worker)) == 0 then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
local full, unwritable = is_full(K.worker(worker), 'name')
if unwritable then return unwritable end

local function a_release_has(name)
  for _, rel in ipairs(call('ZRANGE', K.release_order, 0, -1)) do
    if call('SISMEMBER', K.release_jobs(rel), name) == 1 then return true end
  end
  return false
end

-- Nobody knows the job. There may be any number of such jobs, so one bound holds for all their dead letters.
local function dead_letter_unknown(r, message)
  save_run(r, nil, message)
  dead_letter(r, UNREGISTERED)
  if G.dead_letters <= 0 then return end
  call('ZADD', K.unknown_dead_letters, int(NOW), r.id)
  local over = call('ZCARD', K.unknown_dead_letters) - G.dead_letters
  for _, id in ipairs(over > 0 and call('ZRANGE', K.unknown_dead_letters, 0, over - 1) or {}) do
    local letter = load_run(id, K.dead_letter)
    if letter then remove_dead_letter(id, letter.job) end
    call('ZREM', K.unknown_dead_letters, id)
  end
end

-- Compares the message with what the ledger knows of its run. Returns the answer if that decides it, else nil and the
-- attempt before it.
local function known(v, id, r, done)
  if not r then
    if call('ZSCORE', K.unknown_dead_letters, id) then return 'nobody' end
    return done and done >= v.attempt and 'drop' or nil
  end
  if r.state == 'released' then
    call('ZREM', K.released, id)
    forget(r, false)
    return nil
  end
  if v.attempt < r.attempt or r.state == 'ending' then return 'drop' end
  if v.attempt == r.attempt then
    if (r.state ~= 'granted' and r.state ~= 'queued') or v.grant ~= r.grant then return 'drop' end
    take_back(job(r.job), r)
    return 'wait'
  end
  if r.state == 'running' then return 'later' end
  local old = job(r.job)
  withdraw(old, r)
  if r.job ~= v.job then
    ended(old, r, nil)
    refresh_dependents(old)
  end
  forget(r, false)
  return nil, r
end

local function take_in(v)
  local j = job(v.job)
  if not j and a_release_has(v.job) then return 'later' end
  local id, found, done = run_of(v.id, v.publication, v.anonymous == '1')
  if full and not found then return 'full' end
  local answer, before = known(v, id, found, done)
  if answer then return answer end
  local r = run_record({ id = id, job = v.job, attempt = v.attempt, rank = (3 - v.priority) * CLASS + next_seq(),
    expires = v.expires_ms, queue = v.queue, granted_queue = v.granted_queue, arrived = NOW, stray = true,
    publication = found and found.publication or v.publication, task_id = id ~= v.id and v.id or nil })
  if not j or (j.policy.hash == 'gone' and not before) then
    r.stray = nil
    dead_letter_unknown(r, v.message)
    return 'nobody'
  end
  if before and before.job == v.job then
    inherit(r, before)
    r.rank, r.deps_checked, r.started = before.rank, before.deps_checked, before.started
  end
  enqueue(j, r, v.message)
  refresh(j)
  return 'wait'
end

local answers = {}
for i, stray in ipairs(read_arguments('stray', 2)) do answers[i] = take_in(stray) end
hand_over(16)
flush()
return { answers, HAND.grants }

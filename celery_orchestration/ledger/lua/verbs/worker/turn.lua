-- uses: schema records session lanes rules statistics index room ended_runs transitions identity entries hand_over
--   wake memory
--
-- turn: one round trip of a worker. Records the outcomes of runs that ended, does what is due, hands over free room,
-- and asks the gate about runs that arrived, in this order, so that a run never waits for one that is over.
--
-- ARGV  worker, number of the call, mode ('enforce' | 'observe'), free slots offered,
--       count of outcomes, then of each: outcome (note: what failed, or ''; ran_ms: how long its code ran, or '')
--         outcome: succeeded | failed | ignored | rejected | revoked | retry | requeued (back in the broker's queue)
--                  | crashed (its process died) | interrupted (it had begun, and was stopped) | returned (never begun)
--       count of arrivals, then of each: arrival (key: its room key; grant: its number, or ''; eta_ms: not before, or
--         '': an arrival with a time has no slot; anonymous: 1 if any known publication counts, see lib/identity.lua;
--         queued_ms: how long it was in its queue, or '')
-- Returns  { runs that wait, more (1: call again, there is more to hand over),
--            { outcome's answer: ok | refused (void fence, nothing changed) | waits (again) | superseded | dead | failed },
--            { arrival's answer: {start, fence, run id} | {start, fence, run id, reason...} (observe: would have waited)
--                              | {wait} | {drop, why} | {unknown} (no policy for this job: register again)
--                              | {full} (Redis has no room for more runs: ask again later)
--                              | {kept} (this worker is kept free for another run: ask again) },
--            { granted: {id, grant number} for the caller to publish }, { started here: {id, fence, message} },
--            { jobs that failures disabled: {name, why} }, { endings: {id, why} to carry out },
--            ms until something is due, or -1,
--            { of each run that starts, has waited and is traced: {run id, JSON [{kind: gate | delay | hand_over,
--              from, to (ms), why: words, by: {id, fence, trace} of the run that it waited for}]} } }
-- Errors   UNKNOWNWORKER, NEWEPOCH
-- Called again with the same number it gives the same answer.

local worker, number, observe = ARGV[1], ARGV[2], ARGV[3] == 'observe'
local STARTS = 6 -- the place of the runs that start here in the reply

local function with_messages(reply)
  reply[STARTS] = starts_with_messages(reply[STARTS])
  return reply
end

local before, problem = replayed(worker, 'turn', number)
if problem then return problem end
if before then return with_messages(before) end

-- If Redis is full, outcomes are taken and room is handed over, but nothing new is taken in.
local full, unwritable = is_full(K.worker(worker), 'call:turn')
if unwritable then return unwritable end

HAND.here = { worker = worker, free = tonumber(ARGV[4]), queues = SESSION.queues, release = SESSION.release }

local outcomes, at = read_arguments('outcome', 6, tonumber(ARGV[5]))
local arrivals = read_arguments('arrival', at + 1, tonumber(ARGV[at]))
local settled, admitted = {}, {}
for i, outcome in ipairs(outcomes) do settled[i] = settle(outcome, HAND.after) end

local function rank_of(arrival, seq)
  return (3 - arrival.priority) * CLASS + seq
end

-- Each arrival has a slot. Arrivals that will have to wait leave their slots to the runs that are handed over.
HAND.here.spare = function()
  local found = 0
  for i, arrival in ipairs(arrivals) do
    local j = not arrival.grant and not arrival.eta_ms and job(arrival.job)
    if j then
      local r = { id = arrival.id, key = j.policy.keyed and arrival.key or '', rank = rank_of(arrival, G.seq + i) }
      arrival.waits = HAND.here.kept or reason_to_wait(j, r) ~= nil
      if arrival.waits then found = found + 1 end
    end
  end
  return found
end

-- pumped: this call has looked for runs to hand over. changed: after that, an arrival may have opened the gate for others.
-- An arrival of a run that the ledger did not know cannot do that.
local pumped, changed = false, false

local function pump(limit)
  pumped = true
  if observe then
    let_go(limit)
  elseif not HAND.here.kept then -- else a granted run might come to this worker, which cannot take it
    hand_over(limit)
  end
end

local endings, more_due, due = {}, false, 0
if G.next and G.next <= NOW then endings, more_due, due = wake(64) end
if (G.alone > 0 or SESSION.alone) and not observe then try_alone() end
if #settled > 0 or HAND.here.free > 0 or due > 0 or call('EXISTS', K.unseen_jobs) == 1 then pump(16) end

-- Compares the arrival with what the ledger knows of the run (its record, or the attempt that ended). Returns the
-- answer if that decides it, else nil, the attempt before it, and whether that one is running.
local function known(r, done, arrival)
  if not r then return done and done >= arrival.attempt and { 'drop', 'ended' } or nil end
  changed = true
  if r.state == 'released' then
    -- Somebody published it past the gate, but it came to a worker with a gate.
    call('ZREM', K.released, r.id)
    forget(r, false)
    return nil
  end
  local attempt, number = arrival.attempt, arrival.grant
  if attempt < r.attempt then return { 'drop', 'superseded' } end
  if attempt == r.attempt and not r.stray then
    if (r.state == 'granted' or r.state == 'queued') and number and number == r.grant then
      if HAND.here.kept then return { 'kept' } end
      if G.clock < G.opens and not observe then
        -- In a new epoch somebody may be about to claim the run.
        take_back(job(r.job), r)
        return { 'wait' }
      end
      ungrant(r)
      start(job(r.job), r, worker)
      return { 'start', int(r.fence), r.id }
    end
    return { 'drop', r.state }
  end
  if r.state == 'running' then
    local x = following(r)
    if x and x.attempt >= attempt then return { 'drop', 'superseded' } end
    return nil, r, true
  end
  if r.state == 'ending' then return { 'drop', 'ending' } end
  local old = job(r.job)
  withdraw(old, r)
  if r.job ~= arrival.job then
    ended(old, r, nil)
    refresh_dependents(old)
    HAND.after[#HAND.after + 1] = old
  end
  forget(r, false)
  return nil, r, false
end

local function admit(arrival)
  local name, message = arrival.job, arrival.message
  local j = job(name)
  if not j then return { 'unknown' } end
  local id, found, done = run_of(arrival.id, arrival.publication, arrival.anonymous == '1')
  if full and not (arrival.grant and found) then return { 'full' } end
  local answer, before_it, running = known(found, done, arrival)
  if answer then return answer end
  if arrival.queued_ms then STATS.observe(j, 'queue', arrival.queued_ms) end
  local r = run_record({ id = id, job = name, key = j.policy.keyed and arrival.key or nil, attempt = arrival.attempt,
    rank = rank_of(arrival, next_seq()), expires = arrival.expires_ms, queue = arrival.queue,
    granted_queue = arrival.granted_queue, arrived = NOW, eta = arrival.eta_ms,
    publication = found and found.publication or arrival.publication, task_id = id ~= arrival.id and arrival.id or nil })
  if before_it and before_it.job == name then
    inherit(r, before_it)
    r.deps_checked = before_it.started
    if before_it.started or not before_it.stray then r.rank = before_it.rank end
  end
  if running then
    r.state = 'early'
    save_run(r, K.next_attempt, message)
    before_it.has_next_attempt = true
    save_run(before_it)
    call('ZADD', K.waiting, int(r.rank), id)
    note_expiry(r)
    return { 'wait' }
  end
  r.started = before_it and before_it.job == name and before_it.started
  if r.eta then
    STATS.waits(r, nil, nil, message)
    put_off(j, r, message)
    if before_it and not r.started then refresh_dependents(j) end -- the attempt before may have kept them waiting
    return { 'wait' }
  end
  if is_dropped(j, r) and not observe then
    save_run(r, nil, message)
    call_off(j, r, 'skipped')
    endings[#endings + 1] = { id, 'skipped' }
    return { 'wait' }
  end
  local reason = reason_to_wait(j, r) or HAND.here.kept and { 'slot', r.queue } or nil
  -- hand_over has not finished: waiting runs come first for the room of all jobs.
  if not reason and HAND.more and G.max_running then reason = { 'global' } end
  if not reason or observe then
    take(j, r.key)
    start(j, r, worker, message)
    refresh(j)
    if not reason then return { 'start', int(r.fence), id } end
    call('HINCRBY', K.observed(name), as_recorded(reason), 1)
    return { 'start', int(r.fence), id, unpack(reason) }
  end
  local words = as_recorded(reason)
  r.first_wait = r.first_wait or words
  STATS.waits(r, reason, words, message)
  enqueue(j, r, message)
  refresh(j)
  return { 'wait' }
end

for i, arrival in ipairs(arrivals) do
  admitted[i] = admit(arrival)
  -- A dropped message with a grant is a copy of our own, which is normal. It is not counted.
  if admitted[i][1] == 'drop' and not arrival.grant then call('HINCRBY', K.job(arrival.job), 'copies', 1) end
  local slot = (admitted[i][1] == 'start' and 0 or 1) - (arrival.waits and 1 or 0)
  if not arrival.eta_ms then HAND.here.free = HAND.here.free + slot end
end
HAND.here.spare = nil

local waiting = call('ZCARD', K.waiting)
if waiting > 0 and #arrivals > 0 and (observe or not pumped or changed or HAND.more or HAND.here.free > 0) then
  pump(16)
  waiting = call('ZCARD', K.waiting)
end
flush()
local reply = remember({ waiting, (HAND.more or more_due) and 1 or 0, settled, admitted, HAND.grants, HAND.starts, DISABLED,
  endings, G.next and math.max(0, G.next - NOW) or -1, STATS.traces }, DONE, FAILED)
return with_messages(reply)

-- uses: schema records session lanes rules statistics index room ended_runs transitions entries hand_over wake
--   workers memory epoch clock
--
-- sweep: does what no other call does. Advances the ledger clock, takes the runs of workers whose lease ran out, does
-- what is due, grants lost runs again, and hands over. Any node may call it at any time.
--
-- ARGV  worker, number of the call, interval between sweeps (ms), most runs to handle in one call
-- Returns  { more (1: call again at once), { granted: {id, grant number} to publish },
--            { endings: {id, why} to carry out }, { names of workers found dead }, count of runs recovered,
--            releases of the live workers, releases the installed policies were merged from,
--            { queues that live workers serve }, { jobs that failures disabled: {name, why} },
--            { runs whose retry got lost, to be sent again },
--            ms until something is due and a turn should be made, or -1, number of the last decision,
--            { messages that came to workers without their job, for the caller to take in } }
-- Errors   UNKNOWNWORKER, NEWEPOCH
-- Called again with the same number it gives the same answer.

local RELEASED_MS = 60000
-- How often all workers are counted anew, in case a record has vanished.
local COUNT_MS = 60000
local worker, number, interval, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
allow_when_full()
declare_if_moved()
local before, problem = replayed(worker, 'sweep', number)
if problem then return problem end
if before then return before end

local more, endings, dead_names, recovered, retries = false, {}, {}, 0, {}

advance_clock(interval)

local left = limit -- of the runs that may be taken in this call
-- Workers whose leases have ended, by the ledger clock.
local expired = call('ZRANGEBYSCORE', K.leases, '-inf', '(' .. int(G.clock), 'LIMIT', 0, limit)
more = #expired == limit
for _, gone in ipairs(expired) do
  if left <= 0 then
    more = true
    break
  end
  if gone ~= worker then
    ensure_worker_types(gone)
    local drained = call('HEXISTS', K.worker(gone), 'state') == 1
    local dead, back, done = take_runs(gone, not drained and 'worker' or nil, left)
    recovered = recovered + #back + #dead
    left = left - #back - #dead
    for _, id in ipairs(dead) do endings[#endings + 1] = { id, 'crashed' } end
    if done then
      local name, kind = remove_worker(gone)
      name = name or gone
      note_death(name, kind, #back + #dead)
      dead_names[#dead_names + 1] = name
    else
      more = true
    end
  end
end

if NOW - (tonumber(call('HGET', K.ledger, 'counted')) or 0) > COUNT_MS then count_workers() end
more = refresh_stale() or more

local woken, more_due = wake(limit)
for _, one in ipairs(woken) do endings[#endings + 1] = one end

for _, id in ipairs(call('ZRANGEBYSCORE', K.dead_letters, '-inf', int(NOW - G.dead_letter_ms), 'LIMIT', 0, limit)) do
  local r = load_run(id, K.dead_letter)
  if r then remove_dead_letter(id, r.job) else call('ZREM', K.dead_letters, id) end
end

-- Somebody released these runs and did not publish them: they go back to the gate.
for _, id in ipairs(call('ZRANGE', K.released, 0, limit - 1)) do
  local r = load_run(id)
  if r and r.state == 'released' and NOW - r.since > RELEASED_MS then
    call('ZREM', K.released, id)
    local j = job(r.job)
    if j and r.eta and r.eta > NOW then
      put_off(j, r)
    elseif j then
      enqueue(j, r)
      refresh(j)
    else
      ending(r, 'unregistered')
      endings[#endings + 1] = { id, 'unregistered' }
    end
  end
end

local late = call('ZRANGEBYSCORE', K.deadlines, '-inf', '(' .. int(G.clock), 'LIMIT', 0, limit)
for _, id in ipairs(late) do
  local r = load_run(id)
  if r and r.state == 'ending' then
    ending(r, r.why)
    endings[#endings + 1] = { id, r.why }
  elseif r and (r.state == 'granted' or r.state == 'queued') then
    local queue = destination(r)
    if slots_of(queue) > 0 and have_job(r.job, queue) == 'all' then
      if r.state == 'queued' then r.tries = r.tries + 1 end
      grant(job(r.job), r, queue)
      HAND.grants[#HAND.grants + 1] = { id, int(r.grant) }
    else
      take_back(job(r.job), r)
    end
  elseif r and r.state == 'retrying' then
    r.tries = r.tries + 1
    save_run(r)
    call('ZADD', K.deadlines, retry_deadline(r.tries), id)
    retries[#retries + 1] = id
  else
    call('ZREM', K.deadlines, id)
  end
end

-- Runs whose messages came to workers that lack their jobs go to a worker that has them. If it dies before it has taken
-- them in, another worker gets them after this time.
local STRAY_MS = 30000
local strays = {}
if not SESSION.stops and call('EXISTS', K.astray) == 1 then
  local serves = {}
  for _, queue in ipairs(cjson.decode(SESSION.queues)) do serves[queue] = true end
  -- Each sweep of a worker reads the next part: very many of these runs may be of jobs that nobody has.
  local from, part = tonumber(call('HGET', K.worker(worker), 'strays') or nil) or 0, 10 * limit
  local ids = call('ZRANGEBYSCORE', K.astray, '-inf', int(G.clock), 'LIMIT', from, part)
  call('HSET', K.worker(worker), 'strays', #ids == part and from + part or 0)
  for _, id in ipairs(ids) do
    local r = #strays < limit and load_run(id)
    local serves_it = r and (serves[r.queue] or serves[r.granted_queue])
    if serves_it and call('SISMEMBER', K.release_jobs(SESSION.release), r.job) == 1 then
      call('ZADD', K.astray, int(G.clock + STRAY_MS), id)
      strays[#strays + 1] = call('HGET', K.run(id), 'message')
    elseif r == nil then
      call('ZREM', K.astray, id)
    end
  end
end

-- Some jobs start only in slots that a worker with the job offers.
local some_lack_them = false
for _, queue in ipairs(call('SMEMBERS', K.open_sets)) do
  some_lack_them = some_lack_them or string.find(queue, '\n', 1, true) ~= nil
end

fire_continuous()
if call('ZCARD', K.waiting) > 0 then hand_over(limit) end
more = more or HAND.more or more_due or #late == limit
flush()
-- Only turns start runs that are tried alone, and runs of jobs that some workers lack.
return remember({ more and 1 or 0, HAND.grants, endings, dead_names, recovered, live_releases(),
  call('HGET', K.ledger, 'releases') or '', call('HKEYS', K.slots), DISABLED, retries,
  (G.alone > 0 or some_lack_them) and 0 or G.next and math.max(0, G.next - NOW) or -1,
  int(tonumber(call('HGET', K.ledger, 'decisions') or nil) or 0), strays })

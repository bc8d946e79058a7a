-- uses: schema records statistics session rules index room transitions entries hand_over due workers memory epoch clock
--
-- sweep: what nobody else notices. Advances the ledger clock, takes the runs of workers whose lease ran out, does what is
-- due, grants again what was granted and got lost, and hands over. Any worker may call it at any time.
--
-- ARGV  worker, number of the call, interval between sweeps (ms), most runs to handle in one call
-- Returns  { more (1: call again at once), { granted: {id, grant number} to publish },
--            { endings: {id, why} to carry out }, { names of workers found dead }, count of runs recovered,
--            releases of the live workers, releases the installed policies were merged from,
--            { queues that live workers serve }, { jobs that failures disabled: {name, why} },
--            { runs whose retry got lost, to be sent again },
--            ms until a turn is to be made because something is due, or -1, number of the last decision,
--            { messages that came to workers without their job, for the caller to take in } }
-- Errors   UNKNOWNWORKER, NEWEPOCH
-- Called again with the same number it gives the same answer.

local RELEASED_MS = 60000
-- How often the workers are counted anew, should a record have vanished: that looks at all of them.
local COUNT_MS = 60000
local worker, number, interval, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
make_way()
same_epoch()
local before, problem = replayed(worker, 'sweep', number)
if problem then return problem end
if before then return before end

local more, endings, dead_names, recovered, retries = false, {}, {}, 0, {}

advance_clock(interval)

local left = limit -- of the runs that may be taken in this call
local late_workers = call('ZRANGEBYSCORE', P .. 'ws', '-inf', '(' .. int(G.clk), 'LIMIT', 0, limit)
more = #late_workers == limit
for _, gone in ipairs(late_workers) do
  if left <= 0 then
    more = true
    break
  end
  if gone ~= worker then
    see_to_worker(gone)
    local drained = call('HEXISTS', P .. 'w:' .. gone, 'state') == 1
    local dead, back, done = take_runs(gone, not drained and 'worker', left)
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

if NOW - (tonumber(call('HGET', P .. 'g', 'counted')) or 0) > COUNT_MS then count_workers() end
more = refresh_stale() or more

local woken, more_due = wake(limit)
for _, one in ipairs(woken) do endings[#endings + 1] = one end

for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'dead', '-inf', int(NOW - G.letters_ms), 'LIMIT', 0, limit)) do
  local r = load_run(id, 'dl:')
  if r then remove_dead_letter(id, r.job) else call('ZREM', P .. 'dead', id) end
end

-- Somebody let them out and did not publish them: they are the gate's again.
for _, id in ipairs(call('ZRANGE', P .. 'released', 0, limit - 1)) do
  local r = load_run(id)
  if r and r.st == 'released' and NOW - r.at > RELEASED_MS then
    call('ZREM', P .. 'released', id)
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

local late = call('ZRANGEBYSCORE', P .. 'gr', '-inf', '(' .. int(G.clk), 'LIMIT', 0, limit)
for _, id in ipairs(late) do
  local r = load_run(id)
  if r and r.st == 'ending' then
    ending(r, r.why)
    endings[#endings + 1] = { id, r.why }
  elseif r and (r.st == 'granted' or r.st == 'queued') then
    local queue = destination(r)
    if slots_of(queue) > 0 and have_job(r.job, queue) == 'all' then
      if r.st == 'queued' then r.tries = r.tries + 1 end
      grant(job(r.job), r, queue)
      HAND.grants[#HAND.grants + 1] = { id, int(r.gn) }
    else
      take_back(job(r.job), r)
    end
  elseif r and r.st == 'retrying' then
    r.tries = r.tries + 1
    save_run(r)
    call('ZADD', P .. 'gr', retry_deadline(r.tries), id)
    retries[#retries + 1] = id
  else
    call('ZREM', P .. 'gr', id)
  end
end

-- Runs whose messages came to workers that lack their jobs go to one that has them. It may die before it has taken them in.
local STRAY_MS = 30000
local strays = {}
if not SESSION.stops and call('EXISTS', P .. 'astray') == 1 then
  local serves = {}
  for _, queue in ipairs(cjson.decode(SESSION.queues)) do serves[queue] = true end
  -- Each sweep of a worker looks at the next part: very many may be of jobs that nobody has.
  local from, part = tonumber(call('HGET', P .. 'w:' .. worker, 'strays') or nil) or 0, 10 * limit
  local ids = call('ZRANGEBYSCORE', P .. 'astray', '-inf', int(G.clk), 'LIMIT', from, part)
  call('HSET', P .. 'w:' .. worker, 'strays', #ids == part and from + part or 0)
  for _, id in ipairs(ids) do
    local r = #strays < limit and load_run(id)
    if r and (serves[r.q] or serves[r.gq]) and call('SISMEMBER', P .. 'rj:' .. SESSION.rel, r.job) == 1 then
      call('ZADD', P .. 'astray', int(G.clk + STRAY_MS), id)
      strays[#strays + 1] = call('HGET', P .. 'r:' .. id, 'm')
    elseif r == nil then
      call('ZREM', P .. 'astray', id)
    end
  end
end

-- Some jobs start only in slots that a worker offers which has them.
local some_lack_them = false
for _, queue in ipairs(call('SMEMBERS', P .. 'opens')) do
  some_lack_them = some_lack_them or string.find(queue, '\n', 1, true) ~= nil
end

fire_continuous()
if call('ZCARD', P .. 'wait') > 0 then hand_over(limit) end
more = more or HAND.more or more_due or #late == limit
flush()
-- Runs that are tried alone are started by turns only.
return remember({ more and 1 or 0, HAND.grants, endings, dead_names, recovered, live_releases(),
  call('HGET', P .. 'g', 'releases') or '', call('HKEYS', P .. 'slots'), DISABLED, retries,
  (G.alone > 0 or some_lack_them) and 0 or G.next and math.max(0, G.next - NOW) or -1,
  int(tonumber(call('HGET', P .. 'g', 'decisions') or nil) or 0), strays })

-- Handing over: room that is free goes to the waiting runs that may start, in rank order. Needs records, rules, index,
-- room, transitions.
--
-- A run goes to a slot that the calling worker offers (it starts there at once: `starts`), else it is granted and
-- the caller publishes it (`grants`), as long as fewer granted runs are on their way to a queue than live workers
-- have slots for it.

-- What this call hands over. grants: runs for the caller to publish; starts: runs that start in a slot of the calling worker;
-- after: jobs with a run that ended (settle fills it); more: call again, not all was handed over; found: see dependents_of.
-- here: { worker, free, release, queues, spare, kept } of the calling worker, or nil. spare: a function that finds more free
-- slots, called once, when one is needed; kept: it is kept free for one run.
HAND = nil

on_call(function() HAND = { grants = {}, starts = {}, after = {}, more = false, found = {} } end)

local function served_here(name, queue)
  local here = HAND.here
  if not here.serves then
    here.serves = {}
    for _, q in ipairs(cjson.decode(here.queues)) do here.serves[q] = true end
  end
  return here.serves[queue] and call('SISMEMBER', K.release_jobs(here.release), name) == 1
end

-- Where the next run of an open set (`at`) can go: 'here' (a slot of the calling worker), 'queue', or nil. If some
-- workers that serve the queue lack the job, a message might come to one of them: then a run can only go 'here'.
local function place_for(name, at)
  local here = HAND.here
  local queue, some = at, nil
  if string.find(at, '\n', 1, true) then queue, some = string.match(at, '^(.*)\n(.*)$') end
  if here and here.free <= 0 and here.spare then
    here.free = here.free + here.spare()
    here.spare = nil
  end
  if here and here.free > 0 and not here.kept and served_here(name, queue) then return 'here' end
  if some then return nil end
  local under_way = tonumber(call('HGET', K.under_way, queue)) or 0
  if under_way < slots_of(queue) then return 'queue' end
  return nil
end

local function hand(j, id, queue, place)
  local r = load_run(id)
  if not r then return drop_lost(j, head(j)) end
  dequeue(j, r)
  take(j, r.key)
  r.deps_checked = true
  if place == 'here' then
    HAND.here.free = HAND.here.free - 1
    start(j, r, HAND.here.worker)
    HAND.starts[#HAND.starts + 1] = { id, int(r.fence) }
  else
    grant(j, r, queue)
    HAND.grants[#HAND.grants + 1] = { id, int(r.grant) }
  end
  refresh(j)
end

-- The job in the open sets that ranks first and has a place to go: { rank, own_rank, name, queue, place }, or nil.
local function best_open()
  local best = nil
  for _, queue in ipairs(call('SMEMBERS', K.ready_sets)) do
    local e = call('ZRANGE', K.open(queue), 0, 0, 'WITHSCORES')
    local rank = tonumber(e[2])
    if e[1] and (not best or rank < best.rank) then
      local place = place_for(e[1], queue)
      if place then best = { rank = rank, own_rank = rank, name = e[1], queue = queue, place = place } end
    end
  end
  return best
end

-- Refreshes the next part of the jobs that depend on one that started or ended, if they were too many for one call.
-- Returns whether there are more.
local function refresh_unseen()
  local names = call('SPOP', K.unseen_jobs, REFRESHES.most)
  if #names == 0 then return false end
  for _, name in ipairs(names) do
    local j = job(name)
    if j then refresh(j) end
  end
  if call('EXISTS', K.unseen_jobs) == 1 then return true end
  local after = call('SMEMBERS', K.jobs_with_unseen_dependents)
  call('DEL', K.jobs_with_unseen_dependents)
  for _, name in ipairs(after) do
    local d = job(name)
    if d then
      refresh(d)
      HAND.after[#HAND.after + 1] = d
    end
  end
  return false
end

-- The dependents of d whose first waiting run lacks only room or its turn, the best first. If there are very many, they
-- are found once in a call, and each is used once.
local function dependents_of(d)
  if HAND.found[d.name] then return HAND.found[d.name] end
  local names, found = d.policy.dependents, {}
  for from = 1, #names, 1000 do
    local part = { unpack(names, from, math.min(from + 999, #names)) }
    for i, rank in ipairs(call('ZMSCORE', K.bars, unpack(part))) do
      if rank then found[#found + 1] = { name = part[i], rank = tonumber(rank) } end
    end
  end
  table.sort(found, function(a, b) return a.rank < b.rank end)
  if #names > REFRESHES.most then HAND.found[d.name] = found end
  return found
end

-- When D ends, jobs that wait for D go before D's next run: they may pass it, and only it, in the order of their own
-- ranks. If there are very many, only the first are tried.
local function best_after(best)
  local only_forced = nil
  for _, d in ipairs(HAND.after) do
    if d.bar_rank then
      if only_forced == nil then only_forced = held_back(0) ~= nil end
      local dependents = dependents_of(d)
      for i = 1, math.min(#dependents, REFRESHES.most) do
        local name = dependents[i].name
        local j = job(name)
        local h = not is_blocked(j) and head(j)
        if h and not (only_forced and not is_forced(h.rank)) then
          local rank = math.min(h.rank, d.bar_rank - 0.5)
          local first = not best or rank < best.rank or rank == best.rank and h.rank < best.own_rank
          if first and bars_others(j, h) and not barred(j, h.rank, d.name) then
            local r = load_run(h.id)
            if not r then drop_lost(j, h) end
            local queue = r and open_set(name, destination(r))
            local place = queue and place_for(name, queue)
            if place then
              best = { rank = rank, own_rank = h.rank, name = name, queue = queue, place = place }
              if #d.policy.dependents > REFRESHES.most then table.remove(dependents, i) end
              break
            end
          end
        end
      end
    end
  end
  return best
end

function hand_over(limit)
  fire_continuous()
  local unseen = refresh_unseen()
  HAND.more = unseen
  for _ = 1, limit do
    if held_back(-1) then return end -- not even a forced run could start
    local best = best_after(best_open())
    if not best or held_back(best.own_rank) then return end
    local j = job(best.name)
    local h = head(j)
    -- A dependency can become too old without any event. Then refresh moves j to where it belongs, and the search goes
    -- on.
    if h and bars_others(j, h) then hand(j, h.id, best.queue, best.place) else refresh(j) end
  end
  local best = best_open()
  HAND.more = unseen or best ~= nil and not held_back(best.own_rank)
end

-- Observe mode: everything that waits is let go, whatever the gate says, as far as there are slots for it.
function let_go(limit)
  fire_continuous()
  refresh_unseen()
  take_from(K.waiting, limit, 10 * limit, function(id)
    local r = load_run(id)
    local queue = r and r.state == 'waiting' and open_set(r.job, destination(r))
    local place = queue and place_for(r.job, queue)
    if place then hand(job(r.job), id, queue, place) end
    return place
  end)
end

-- A run that took its workers down too often is tried once more, alone: one worker that serves it is kept free until no
-- other run is there, then it starts. So runs beside it do not become dead letters with it.

local function let_go_of_alone(worker, r)
  if r and r.alone and r.state == 'waiting' then call('HSET', K.alone, r.id, '') end
  call('HDEL', K.worker(worker), 'alone')
  SESSION.alone = nil
end

-- Is this worker kept free for the run, and not about to stop?
local function is_promised(id, worker)
  if worker == '' then return false end
  local v = call('HMGET', K.worker(worker), 'alone', 'state')
  return v[1] == id and not v[2]
end

local MOST_ALONE = 32

local function keep_free(here)
  -- If there are very many, a random part of them: each gets its turn.
  local all, first = call('HRANDFIELD', K.alone, MOST_ALONE, 'WITHVALUES'), nil
  for i = 1, #all, 2 do
    local r = load_run(all[i])
    if not r then
      call('HDEL', K.alone, all[i])
      G.alone, G.dirty = G.alone - 1, true
    end
    if r and (not first or r.rank < first.rank) and not is_promised(all[i], all[i + 1]) and not reason_to_wait(job(r.job), r)
      and served_here(r.job, destination(r)) then
      first = r
    end
  end
  if not first then return end
  SESSION.alone = first.id
  call('HSET', K.alone, first.id, here.worker)
  call('HSET', K.worker(here.worker), 'alone', first.id)
end

function try_alone()
  local here = HAND.here
  if not SESSION.alone and not SESSION.stops and G.alone > 0 then keep_free(here) end
  if not SESSION.alone then return end
  local r = load_run(SESSION.alone)
  local waits = r and r.alone and r.state == 'waiting'
  if waits and not SESSION.stops and not reason_to_wait(job(r.job), r) then
    here.kept = true
    if here.free > 0 and call('SCARD', K.worker_runs(here.worker)) == 0 then hand(job(r.job), r.id, nil, 'here') end
  elseif r and r.alone and r.worker == here.worker then
    here.kept = true
  else
    let_go_of_alone(here.worker, r)
  end
end

-- The runs that start here, each with its message, as verbs return them. The reply that is remembered lacks the
-- messages.
function starts_with_messages(starts)
  local found = {}
  for i, s in ipairs(starts) do found[i] = { s[1], s[2], call('HGET', K.run(s[1]), 'message') or '' } end
  return found
end

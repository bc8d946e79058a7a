-- The gate: rules 1 to 5 of the design, and where a job with waiting runs stands (bar, open).
-- Needs records.

local function age_ms(t)
  return NOW - math.floor(t / 1000)
end

-- The arrival of the first run of d that waits and has not started: runs of those that depend on d wait for it if they
-- arrived after it.
local function fires_from(d)
  while true do
    local e = redis.pcall('ZRANGE', P .. 'sq:' .. d.name, 0, 0, 'WITHSCORES')
    if e.err then set_aside('sq:' .. d.name, e.err) end
    if not e[1] then return nil end
    local r = load_run(e[1])
    if r and not r.sd and r.st ~= 'ending' then return tonumber(e[2]) end
    -- A worker of an older release started it, and does not know of this set.
    call('ZREM', P .. 'sq:' .. d.name, e[1])
  end
end

-- Rule 4 for a run of j of this rank. Returns nil if every dependency is met, else which one is not and how:
-- {dependency, 'unknown' | 'busy' | 'fires' | 'disabled' | 'never' | 'failed' | 'old' | 'stale'}.
local function unmet(j, rank)
  for _, dep in ipairs(j.deps) do
    local d = job(dep.job)
    if not d then return { dep.job, 'unknown' } end
    if d.busy > 0 then return { dep.job, 'busy' } end
    local from = fires_from(d)
    if from and from < rank % CLASS then return { dep.job, d.off and 'disabled' or 'fires' } end
    if dep.on ~= 'idle' then
      local how = nil
      if not d.ended then
        how = 'never'
      elseif dep.on == 'success' and d.ok ~= true then
        how = 'failed'
      elseif dep.max_age_ms and age_ms(d.ended) > dep.max_age_ms then
        how = 'old'
      elseif dep.fresh and j.begun and d.ended <= j.begun then
        how = 'stale'
      end
      if how then return { dep.job, d.off and 'disabled' or how } end
    end
  end
  return nil
end

local function lane_of(j, key, jd)
  return P .. (jd and 'k:' or 'l:') .. j.name .. ':' .. key
end

local function index_of(j, jd)
  return P .. (jd and 'jk:' or 'jl:') .. j.name
end

local function room_taken(j, key)
  if not j.keyed then return j.n end
  return tonumber(call('HGET', P .. 'n:' .. j.name, key)) or 0
end

-- Rule 2, without the global cap.
local function has_room(j, key)
  return not j.cap or room_taken(j, key) < j.cap
end

local function first_in(lane)
  local e = call('ZRANGE', lane, 0, 0, 'WITHSCORES')
  if e[1] then return e[1], tonumber(e[2]) end
  return nil
end

-- Until which arrival runs of j wait for no waiting run of a dependency; nil: whenever they arrived.
local function free_until(j)
  local arrival = nil
  for _, dep in ipairs(j.deps) do
    local d = job(dep.job)
    local from = d and fires_from(d)
    if from and (not arrival or from < arrival) then arrival = from end
  end
  return arrival
end

-- The first in a set by rank of those that arrived before; of all, if there is none. The order of arrival is that of the
-- rank within a priority only.
local function first_until(set, arrival)
  for class = arrival and -1 or 4, 3 do
    local e = call('ZRANGEBYSCORE', set, int(class * CLASS), '(' .. int(class * CLASS + arrival), 'WITHSCORES', 'LIMIT', 0, 1)
    if e[1] then return e[1], tonumber(e[2]) end
  end
  return first_in(set)
end

local function first(j, jd)
  local key, arrival = '', not jd and free_until(j) or nil
  if j.keyed then
    key = first_until(index_of(j, jd), arrival)
    if not key then return nil end
  end
  local id, rank = first_until(lane_of(j, key, jd), arrival)
  return id and { id = id, key = key, rank = rank, jd = jd }
end

-- Rule 1 for one run: is its job enabled, or does the run pass all the same? It does if it was forced, or is the one that
-- tries whether the job works again.
local function enabled_for(j, id, rank)
  return not j.off or rank < 0 or j.probe == '' or j.probe == id
end

-- The waiting run of j that goes first: the best one that has room. Where the best one still has unmet dependencies, the
-- best one that was judged. While another run tries whether the job works again, that one, or a forced one.
local function head(j)
  if j.w <= 0 or (not j.keyed and j.cap and j.n >= j.cap) then return nil end
  local new = j.w > j.wk and first(j, false) or nil
  local judged = j.wk > 0 and first(j, true) or nil
  if j.off and j.probe and j.probe ~= '' then
    local r = load_run(j.probe)
    if r and r.st == 'waiting' and not r.al and has_room(j, r.key) and not (judged and judged.rank < 0) then
      judged = { id = r.id, key = r.key, rank = r.rank, jd = true }
      new = new and new.rank < 0 and new or nil
    end
  end
  if new and judged then
    return new.rank < judged.rank and not unmet(j, new.rank) and new or judged
  end
  return new or judged
end

-- How many jobs of a group hold room; read once a call.
local HELD

on_call(function() HELD = {} end)

local function held(group)
  HELD[group] = HELD[group] or call('SCARD', P .. 'held:' .. group)
  return HELD[group]
end

-- Is another job of the group holding room?
local function group_blocks(j, group)
  return held(group) > (j.n > 0 and 1 or 0)
end

-- Rule 3: does a job that j conflicts with hold room?
local function is_blocked(j)
  if j.blk > 0 then return true end
  for _, group in ipairs(j.groups) do
    if group_blocks(j, group) then return true end
  end
  return false
end

-- The job of a group that goes first, but for these two: its name and rank. It bars all others of the group.
local function first_of_group(group, name, except)
  local e = call('ZRANGE', P .. 'bar:' .. group, 0, 2, 'WITHSCORES')
  for i = 1, #e, 2 do
    if e[i] ~= name and e[i] ~= except then return e[i], tonumber(e[i + 1]) end
  end
  return nil
end

-- Rule 5 against other jobs: does a conflicting job have a waiting run that ranks before? Returns the name of the first.
-- `except` names a job whose runs do not count.
local function barred(j, rank, except)
  local found = nil
  for from = 1, #j.conf, 1000 do
    local part = { unpack(j.conf, from, math.min(from + 999, #j.conf)) }
    for i, r in ipairs(call('ZMSCORE', P .. 'bar', unpack(part))) do
      local before = r and tonumber(r)
      if before and before < rank and part[i] ~= except then found, rank = part[i], before end
    end
  end
  for _, group in ipairs(j.groups) do
    local name, before = first_of_group(group, j.name, except)
    if name and before < rank then found, rank = name, before end
  end
  return found
end

-- Rule 5 against the run's own lane: the run that goes before it.
local function lane_bars(j, key, rank)
  if j.w <= 0 then return nil end
  local id, other = first_in(lane_of(j, key, true))
  if id and other < rank and enabled_for(j, id, other) then return id end
  id, other = first_until(lane_of(j, key, false), free_until(j))
  if id and other < rank and enabled_for(j, id, other) and not unmet(j, other) then return id end
  return nil
end

local function slots_of(queue)
  return tonumber(call('HGET', P .. 'slots', queue)) or 0
end

-- Releases of the live workers that serve a queue, or nil if that is not known (a version before this counts only slots).
-- Kept for this call.
local RELEASES

on_call(function() RELEASES = {} end)

local function releases_at(queue)
  if RELEASES[queue] == nil then
    local flat, sum, found = call('HGETALL', P .. 'sr:' .. queue), 0, {}
    for i = 1, #flat, 2 do
      sum = sum + tonumber(flat[i + 1])
      found[#found + 1] = flat[i]
    end
    table.sort(found)
    RELEASES[queue] = sum == slots_of(queue) and found or false
  end
  return RELEASES[queue] or nil
end

-- Which of the workers that serve a queue have a job: 'all', also if nobody serves it; the releases that have it, as one
-- text; or nil: none has it.
local function have_job(name, queue)
  local rels = releases_at(queue)
  if not rels then return 'all' end
  local having = {}
  for _, rel in ipairs(rels) do
    if call('SISMEMBER', P .. 'rj:' .. rel, name) == 1 then having[#having + 1] = rel end
  end
  if #having == #rels then return 'all' end
  return having[1] and table.concat(having, ' ')
end

-- Where a run is handed over: the pool's granted queue if somebody who has its job serves it, else its own queue.
local function destination(r)
  if r.gq ~= '' and slots_of(r.gq) > 0 and have_job(r.job, r.gq) then return r.gq end
  return r.q
end

-- The open set of a job on a queue, or nil: it would come to nobody who has it.
local function open_set(name, queue)
  local who = have_job(name, queue)
  if who == 'all' or not who then return who and queue end
  return queue .. '\n' .. who
end

-- Does a waiting run come to nobody, because no live worker has its job? Returns the words for it.
local function unclaimed(j, r)
  if j.hash ~= 'gone' and have_job(j.name, destination(r)) then return nil end
  return { 'nobody', j.name, call('HGET', P .. 'j:' .. j.name, 'seen') or '' }
end

local refresh, refresh_dependents

-- The record of a waiting run is gone, or could not be read: the run is lost, and must not keep others waiting.
local function strike(j, h)
  local lane = lane_of(j, h.key, h.jd)
  audit('ledger', 'lost', h.id, j.name)
  call('ZREM', lane, h.id)
  call('ZREM', P .. 'wait', h.id)
  call('ZREM', P .. 'sq:' .. j.name, h.id)
  j.w, j.wk, j.dirty = j.w - 1, j.wk - (h.jd and 1 or 0), true
  if j.w == 0 then call('SREM', P .. 'waitjobs', j.name) end
  local _, rank = first_in(lane)
  if j.keyed and rank then call('ZADD', index_of(j, h.jd), int(rank), h.key) end
  if j.keyed and not rank then call('ZREM', index_of(j, h.jd), h.key) end
  refresh(j)
  refresh_dependents(j)
end

-- Puts j into the open set it belongs to, or takes it out. What it depends on besides j itself: the room and
-- the bars of the jobs it conflicts with. h: its head, if it bars; moved: whether that is another than before.
local function place(j, h, moved)
  local at = nil
  if h and not is_blocked(j) and not barred(j, h.rank) then
    local r = load_run(h.id)
    if not r then return strike(j, h) end
    at = open_set(j.name, destination(r))
  end
  if j.at and j.at ~= at then
    call('ZREM', P .. 'open:' .. j.at, j.name)
    if call('EXISTS', P .. 'open:' .. j.at) == 0 then
      call('SREM', P .. 'opens', j.at)
      call('SREM', P .. 'ready', j.at)
    end
  end
  if at and (moved or j.at ~= at) then
    call('ZADD', P .. 'open:' .. at, int(j.br), j.name)
    call('SADD', P .. 'opens', at)
    if slots_of(queue_of(at)) > 0 then call('SADD', P .. 'ready', at) end
  end
  if j.at ~= at then
    j.at = at
    j.dirty = true
  end
end

local function reopen(j)
  place(j, j.br and not is_blocked(j) and head(j) or nil, false)
end

-- Of a group only the job that goes first may be open: when j comes, goes or moves in it, the first of the others is the
-- only one for which something changes.
local function reopen_group(group, j)
  local name = first_of_group(group, j.name)
  if name then reopen(job(name)) end
end

-- Very many jobs may depend on one: so many are looked at when it begins or ends, as many again by the hand-over of each
-- call, and the rest by the next calls.
local LOOKS = { most = 100 }

on_call(function() LOOKS.left = LOOKS.most end)

-- Do waiting runs of j stay because not all that depend on it were looked at? They go before its next run.
local function holds_back(j)
  return #j.depd > LOOKS.most and call('SISMEMBER', P .. 'after', j.name) == 1
end

-- Judges the head of j anew; tells those it conflicts with if what it bars has changed.
refresh = function(j)
  local h = head(j)
  local br = nil
  if h and enabled_for(j, h.id, h.rank) and (h.jd or not unmet(j, h.rank)) and not holds_back(j) then
    br = h.rank
  end
  local changed = br ~= j.br
  if changed then
    j.br = br
    j.dirty = true
    if br then call('ZADD', P .. 'bar', int(br), j.name) else call('ZREM', P .. 'bar', j.name) end
    for _, group in ipairs(j.groups) do
      if br then call('ZADD', P .. 'bar:' .. group, int(br), j.name) else call('ZREM', P .. 'bar:' .. group, j.name) end
    end
  end
  place(j, br and h or nil, changed)
  if changed then
    for _, name in ipairs(with_waiters(j.conf)) do reopen(job(name)) end
    for _, group in ipairs(j.groups) do reopen_group(group, j) end
  end
end

refresh_dependents = function(j)
  local names = with_waiters(j.depd)
  local now = math.min(#names, LOOKS.left)
  LOOKS.left = LOOKS.left - now
  for i = 1, now do refresh(job(names[i])) end
  for from = now + 1, #names, 1000 do
    call('SADD', P .. 'unseen', unpack(names, from, math.min(from + 999, #names)))
  end
  if #names > now and call('SADD', P .. 'after', j.name) == 1 then refresh(j) end
end

-- The job that blocks j, by name the first if there are several.
local function blocking(j)
  local found = nil
  if j.blk > 0 then
    for _, name in ipairs(j.conf) do
      local k = job(name)
      if k and k.n > 0 and (not found or name < found) then found = name end
    end
  end
  for _, group in ipairs(j.groups) do
    for _, name in ipairs(group_blocks(j, group) and call('SMEMBERS', P .. 'held:' .. group) or {}) do
      if name ~= j.name and (not found or name < found) then found = name end
    end
  end
  return found
end

-- May a run of j with this room key start now? Returns nil if so, else what it waits for: a list of words that
-- operate/reasons.py turns into a sentence. Rule 5 for the global cap is the order in which hand_over grants.
local function closed(j, r)
  if G.clk < G.opens then return { 'epoch' } end
  if G.paused and r.rank >= 0 then return { 'paused' } end
  if not enabled_for(j, r.id, r.rank) then return { 'disabled', j.off } end
  if not has_room(j, r.key) then return { 'room', j.name, r.key } end
  if G.cap and G.total >= G.cap then return { 'global' } end
  local holder = blocking(j)
  if holder then return { 'blocked', holder } end
  local dep = not r.jd and unmet(j, r.rank)
  if dep then return { 'depends', dep[1], dep[2] } end
  local first = lane_bars(j, r.key, r.rank)
  if first then return { 'behind', j.name, first } end
  local other = barred(j, r.rank)
  if other then return { 'behind', other } end
  return nil
end

-- The same as one text, for the history and what is observed: without room keys and ids, of which there may be any number.
local function in_words(reason)
  if not reason then return nil end
  local most = reason[1] == 'disabled' and 1 or reason[1] == 'depends' and 3 or 2
  return table.concat(reason, ' ', 1, math.min(#reason, most))
end

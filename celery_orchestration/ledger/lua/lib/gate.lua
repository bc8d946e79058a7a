-- The gate: rules 1 to 5 of the design, and where a job with waiting runs stands (bar, open).
-- Needs records.

local function age_ms(t)
  return NOW - math.floor(t / 1000)
end

-- Rule 4. Returns nil if every dependency of j is met, else which one is not and how:
-- {dependency, 'unknown' | 'busy' | 'never' | 'failed' | 'old' | 'stale'}.
local function unmet(j)
  for _, dep in ipairs(j.deps) do
    local d = job(dep.job)
    if not d then return { dep.job, 'unknown' } end
    if d.busy > 0 then return { dep.job, 'busy' } end
    if dep.on ~= 'idle' then
      if not d.ended then return { dep.job, 'never' } end
      if dep.on == 'success' and d.ok ~= true then return { dep.job, 'failed' } end
      if dep.max_age_ms and age_ms(d.ended) > dep.max_age_ms then return { dep.job, 'old' } end
      if dep.fresh and j.begun and d.ended <= j.begun then return { dep.job, 'stale' } end
    end
  end
  return nil
end

local function lane_of(j, key)
  return P .. 'l:' .. j.name .. ':' .. key
end

local function room_taken(j, key)
  if not j.keyed then return j.n end
  return tonumber(call('HGET', P .. 'n:' .. j.name, key)) or 0
end

-- Rule 2, without the global cap.
local function has_room(j, key)
  return not j.cap or room_taken(j, key) < j.cap
end

-- The waiting run of j that would go first: the head of the best lane that has room.
local function head(j)
  if j.w <= 0 then return nil end
  local key = ''
  if j.keyed then
    key = call('ZRANGE', P .. 'jl:' .. j.name, 0, 0)[1]
    if not key then return nil end
  elseif j.cap and j.n >= j.cap then
    return nil
  end
  local e = call('ZRANGE', lane_of(j, key), 0, 0, 'WITHSCORES')
  if not e[1] then return nil end
  local score = tonumber(e[2])
  return { id = e[1], key = key, score = score, rank = rank_of(score), jd = score < 0 }
end

-- Rule 5 against other jobs: does a conflicting job have a waiting run that ranks before? Returns its name.
-- `except` names a job whose runs do not count.
local function barred(j, rank, except)
  for from = 1, #j.conf, 1000 do
    local part = { unpack(j.conf, from, math.min(from + 999, #j.conf)) }
    for i, r in ipairs(call('ZMSCORE', P .. 'bar', unpack(part))) do
      if r and tonumber(r) < rank and part[i] ~= except then return part[i] end
    end
  end
  return nil
end

-- Rule 5 against the run's own lane.
local function lane_bars(j, key, rank)
  local e = call('ZRANGE', lane_of(j, key), 0, 0, 'WITHSCORES')
  if not e[1] then return nil end
  local score = tonumber(e[2])
  if rank_of(score) < rank and (score < 0 or not unmet(j)) then return e[1] end
  return nil
end

local function slots_of(queue)
  return tonumber(call('HGET', P .. 'slots', queue)) or 0
end

-- Where a run is handed over: the pool's granted queue if somebody serves it, else its own queue.
local function destination(r)
  if r.gq ~= '' and slots_of(r.gq) > 0 then return r.gq end
  return r.q
end

-- Puts j into the open set it belongs to, or takes it out. What it depends on besides j itself: the room and
-- the bars of the jobs it conflicts with.
local function reopen(j)
  local at = nil
  local h = j.br and j.blk == 0 and head(j)
  if h and not barred(j, h.rank) then at = destination(load_run(h.id)) end
  if j.at and j.at ~= at then
    call('ZREM', P .. 'open:' .. j.at, j.name)
    if call('EXISTS', P .. 'open:' .. j.at) == 0 then call('SREM', P .. 'opens', j.at) end
  end
  if at then
    call('ZADD', P .. 'open:' .. at, int(j.br), j.name)
    call('SADD', P .. 'opens', at)
  end
  if j.at ~= at then
    j.at = at
    j.dirty = true
  end
end

-- Judges the head of j anew; tells those it conflicts with if what it bars has changed.
local function refresh(j)
  local h = head(j)
  local br = nil
  if h and not j.off and (h.jd or not unmet(j)) then br = h.rank end
  local changed = br ~= j.br
  if changed then
    j.br = br
    j.dirty = true
    if br then call('ZADD', P .. 'bar', int(br), j.name) else call('ZREM', P .. 'bar', j.name) end
  end
  reopen(j)
  if changed then
    for _, name in ipairs(with_waiters(j.conf)) do reopen(job(name)) end
  end
end

local function refresh_dependents(j)
  for _, name in ipairs(with_waiters(j.depd)) do refresh(job(name)) end
end

-- May a run of j with this room key start now? Returns nil if so, else what it waits for: a list of words that
-- operate/reasons.py turns into a sentence. Rule 5 for the global cap is the order in which hand_over grants.
local function closed(j, r)
  if G.paused then return { 'paused' } end
  if j.off then return { 'disabled', j.off } end
  if not has_room(j, r.key) then return { 'room', j.name, r.key } end
  if G.cap and G.total >= G.cap then return { 'global' } end
  if j.blk > 0 then return { 'blocked' } end
  local dep = not r.jd and unmet(j)
  if dep then return { 'depends', dep[1], dep[2] } end
  local first = lane_bars(j, r.key, r.rank)
  if first then return { 'behind', j.name, first } end
  local other = barred(j, r.rank)
  if other then return { 'behind', other } end
  return nil
end

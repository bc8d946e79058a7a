-- The rules of the gate: may a run start now, and if not, what does it wait for? Needs records.

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

-- Rule 1 for one run: is its job enabled, or does the run pass all the same? It does if it was forced, or is the one that
-- tries whether the job works again.
local function enabled_for(j, id, rank)
  return not j.off or rank < 0 or j.probe == '' or j.probe == id
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

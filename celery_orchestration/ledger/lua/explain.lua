-- uses: records gate
--
-- explain: what keeps a job, or a run, from running, down to the root. Reads only.
--
-- ARGV  job | run, its name or id, 1 if the job exists, though the ledger may not know it
-- Returns  JSON: now, clock_left (ms until the gate opens after the ledger may have forgotten something), pause, total,
--          cap, live (how many workers), names[] (of all workers), led (whether a scheduler leads), eviction (Redis's policy, if it can be had), slots{}, under_way{}, jobs{} (of those in the chain), entries{} (of those: what fires them),
--          workers{} (of runs in the chain), chain[], each with: job, run or nothing (nobody has asked for one: what one
--          would wait for now), why: the words of closed() or nothing, queue: if that matters, cycle: the chain is back at
--          this one of it (from 1). Or nil: there is no such job, or run that has not ended.
-- Fences are strings: JSON numbers of Lua have 14 digits.

local MOST_RUNS, DEEPEST, MOST_ENTRIES = 2000, 100, 2000
local chain, jobs, workers, at = {}, {}, {}, {}
local live, observing, names, active = 0, 0, {}, {}

local there = members()
for _, member in ipairs(there) do
  local v = call('HMGET', P .. 'w:' .. member[1], 'name', 'kind', 'beat', 'lease', 'mode')
  local one = { name = v[1], beat = tonumber(v[3]), lease = tonumber(v[4]), left = member[2] - G.clk }
  one.silent = one.left <= 0 or NOW - (one.beat or 0) > (one.lease or 0) / 2
  if v[2] ~= 'beat' then names[#names + 1] = v[1] end
  if v[2] ~= 'beat' and not one.silent then
    live = live + 1
    if v[5] == 'observe' then observing = observing + 1 end
  end
  workers[member[1]] = one
end

-- Runs that hold room, are to be tried again or are just ending, by job.
local count = 0
local function note_active(id)
  count = count + 1
  local r = count <= MOST_RUNS and load_run(id)
  if not r then return end
  active[r.job] = active[r.job] or {}
  table.insert(active[r.job], r)
end

for _, member in ipairs(there) do
  for _, id in ipairs(call('SMEMBERS', P .. 'wr:' .. member[1])) do note_active(id) end
end
for _, id in ipairs(call('ZRANGE', P .. 'gr', 0, MOST_RUNS - 1)) do note_active(id) end

local HOLDS = { running = true, granted = true, queued = true }

-- The one of these runs that is most likely to hang: on a worker that is silent, or else since longest.
local function slowest(name, fits)
  local found = nil
  for _, r in ipairs(active[name] or {}) do
    local w = workers[r.own or '']
    r.hangs = w and w.silent and 1 or 0
    local before = found and r.hangs == found.hangs and (r.at < found.at or (r.at == found.at and r.rank < found.rank))
    if fits(r) and (not found or r.hangs > found.hangs or before) then found = r end
  end
  return found
end

local function holder(name, key)
  return slowest(name, function(r) return HOLDS[r.st] and (not key or key == '' or r.key == key) end)
end

local function shown(r)
  local over, progress = noted(r, 'o'), noted(r, 'p')
  return { id = r.id, job = r.job, key = r.key, state = r.st, attempt = r.a, fence = r.fence and int(r.fence), worker = r.own,
    recoveries = r.rec, arrived = r.enq, since = r.at, expires = r.ex, queue = r.dest or r.q, eta = r.eta,
    priority = 3 - math.floor(r.rank / CLASS), started = r.sd or false, over = over, progress = progress }
end

local function link(name, r, why, queue)
  chain[#chain + 1] = { job = name, run = r and shown(r), why = why, queue = queue or nil }
  jobs[name] = true
end

-- The chain is where it has been: they wait for each other.
local function been(what)
  if at[what] then
    chain[#chain].cycle = at[what]
    return true
  end
  at[what] = #chain + 1
  return #chain >= DEEPEST
end

-- The waiting run of a job that goes first, whether or not there is room for it.
local function first_waiting(j)
  local h = j.w > 0 and head(j)
  if h then return load_run(h.id) end
  for _, jd in ipairs({ true, false }) do
    local id = not j.keyed and first_in(lane_of(j, '', jd))
    if id then return load_run(id) end
  end
  -- A keyed one without room, or one that is tried alone: among the first that wait.
  for _, id in ipairs(j.w + j.z > 0 and call('ZRANGE', P .. 'wait', 0, MOST_RUNS - 1) or {}) do
    local r = load_run(id)
    if r and r.job == j.name then return r end
  end
  for _, id in ipairs(j.z > 0 and call('ZRANGE', P .. 'later', 0, MOST_RUNS - 1) or {}) do
    local r = load_run(id)
    if r and r.job == j.name then return r end
  end
  return nil
end

local of_run, of_job

-- What the words lead to.
local function follow(words)
  local rule, name, how = words[1], words[2], words[3]
  local r = nil
  if rule == 'room' or rule == 'blocked' then
    r = holder(name, rule == 'room' and how)
  elseif rule == 'behind' then
    local j = job(name)
    r = how and load_run(how) or j and first_waiting(j)
  elseif rule == 'depends' and how == 'fires' then
    local id = call('ZRANGE', P .. 'sq:' .. name, 0, 0)[1]
    r = id and load_run(id)
  elseif rule == 'depends' and how == 'busy' then
    local j = job(name)
    r = slowest(name, function(one) return one.sd end) or j and first_waiting(j)
  elseif rule == 'depends' then
    of_job(name)
  end
  if r then of_run(r) end
end

of_run = function(r)
  if been('r ' .. r.id) then return end
  local j = job(r.job)
  if r.st == 'waiting' and j then
    local queue = destination(r)
    local words = closed(j, r) or r.al and { 'alone' } or { 'slot', queue }
    link(r.job, r, words, words[1] == 'slot' and queue)
    follow(words)
  elseif r.st == 'later' then
    link(r.job, r, { 'due', int(r.eta) })
  elseif r.st == 'granted' or r.st == 'queued' then
    link(r.job, r, nil, r.dest or r.q)
  else
    link(r.job, r)
  end
end

of_job = function(name)
  if been('j ' .. name) then return end
  local j = job(name)
  if not j or j.hash == 'gone' then
    link(name, nil, { 'unknown' })
    return
  end
  local r = first_waiting(j) or slowest(name, function() return true end)
  if r then
    at['j ' .. name] = nil
    of_run(r)
    return
  end
  -- Nobody has asked for a run: what would one wait for? Where workers only observe, for nothing.
  local words = (live == 0 or observing < live) and closed(j, { id = '', key = '', rank = 2 * CLASS + G.seq + 1 }) or nil
  link(name, nil, words)
  if words then follow(words) end
end

if ARGV[1] == 'job' then
  if ARGV[3] ~= '1' and not job(ARGV[2]) then return false end
  of_job(ARGV[2])
else
  local r = load_run(ARGV[2])
  if not r then return false end
  local x = r.behind and load_run(r.id, 'x:')
  if x then link(x.job, x, { 'attempt' }) end
  of_run(r)
end

local told = {}
for name in pairs(jobs) do
  local j = job(name)
  told[name] = j and { cap = j.cap, keyed = j.keyed, running = j.n, busy = j.busy, waiting = j.w, later = j.z, off = j.off,
    fails = j.fails, fmax = j.fmax, err = j.err, succeeded = j.ok, ended = j.ends_at,
    succeeded_at = j.good and math.floor(j.good / 1000), begun = j.begun and math.floor(j.begun / 1000), took = j.took,
    probe = j.off and j.probe, cools = j.off and tonumber(call('ZSCORE', P .. 'cool', name)) or nil, deps = j.deps,
    conf = { unpack(j.conf, 1, 100) }, conflicts = #j.conf, crash = j.crash, recmax = j.recmax, cool = j.cool, drop = j.drop }
end

local entries = {}
local ids = redis.pcall('ZRANGE', P .. 'entries', 0, MOST_ENTRIES - 1)
for _, id in ipairs(ids.err and {} or ids) do
  local v = redis.pcall('HMGET', P .. 'e:' .. id, 'job', 'prev', 'last', 'at', 'next', 'cont', 'off', 'name', 'every')
  if not v.err and v[1] and jobs[v[1]] then
    local due = entries[v[1]] or {}
    entries[v[1]] = due
    due[#due + 1] = { prev = tonumber(v[2] or nil), last = tonumber(v[3] or nil), at = tonumber(v[4] or nil),
      next = tonumber(v[5] or nil), gap = tonumber(v[6] or nil), paused = v[7] ~= false, off = v[7] or nil, name = v[8] or id,
      every = v[9] or '' }
  end
end

local named = {}
for _, one in ipairs(chain) do
  local own = one.run and one.run.worker
  if own then named[own] = workers[own] end
end
local function numbers(key)
  local found, flat = {}, call('HGETALL', P .. key)
  for i = 1, #flat, 2 do found[flat[i]] = tonumber(flat[i + 1]) end
  return next(found) and found or nil
end

local memory = redis.pcall('INFO', 'memory')
local lead = redis.pcall('HMGET', P .. 'lead', 'until')
local pause = call('HGET', P .. 'g', 'pause')
return cjson.encode({ now = NOW, clock_left = math.max(0, G.opens - G.clk), pause = G.paused and pause or nil,
  total = G.total, cap = G.cap, live = live, names = names, slots = numbers('slots'), under_way = numbers('out'),
  eviction = type(memory) == 'string' and string.match(memory, 'maxmemory_policy:([%w-]+)') or nil, jobs = told, chain = chain,
  workers = next(named) and named or nil,
  entries = next(entries) and entries or nil, led = not lead.err and (tonumber(lead[1] or nil) or 0) >= NOW })

-- uses: schema records lanes rules index term views memory
--
-- explain: what keeps a job, or a run, from running, down to the root cause. Reads only.
--
-- ARGV  job | run, its name or id, 1 if the job exists although the ledger may not know it, priority to assume for a
--       run that nobody has asked for, most entries to list, service of the caller
-- Returns  JSON: now, clock_left (ms until the gate opens after the ledger may have forgotten something), pause, total,
--          max_running, live (how many workers), names[] (of all workers), led (whether a scheduler leads), eviction (Redis's
--          policy, if INFO is allowed), full (whether Redis is full), slots{}, under_way{}, jobs{} (those in the
--          chain), entries (how many the schedule has), fires[] (as in read_status), workers{} (of runs in the chain),
--          chain[]. Each link of the chain has: job; run (missing if nobody has asked for one: then why is what it
--          would wait for now); why (the words of reason_to_wait, if it waits); queue (if it matters); cycle (the chain
--          is back at this link, counted from 1). Or nil: there is no such job, or no such run that has not ended.
-- Errors   none
-- Called again: the same, unless something changed.

local MOST_RUNS, DEEPEST = 2000, 100
local chain, jobs, workers, at = {}, {}, {}, {}
local live, observing, names, active = 0, 0, {}, {}

local there = nodes()
for _, node in ipairs(there) do
  local w = read_hash(K.worker(node[1]), 'name', 'kind', 'heartbeat', 'lease', 'mode')
  local one = { name = w.name, heartbeat = w.heartbeat, lease = w.lease, left = node[2] - G.clock }
  one.silent = one.left <= 0 or NOW - (one.heartbeat or 0) > (one.lease or 0) / 2
  if w.kind ~= 'beat' then names[#names + 1] = w.name end
  if w.kind ~= 'beat' and not one.silent then
    live = live + 1
    if w.mode == 'observe' then observing = observing + 1 end
  end
  workers[node[1]] = one
end

-- Runs that hold room, will be retried, or are endings, by job.
local count = 0
local function note_active(id)
  count = count + 1
  local r = count <= MOST_RUNS and load_run(id)
  if not r then return end
  active[r.job] = active[r.job] or {}
  table.insert(active[r.job], r)
end

for _, node in ipairs(there) do
  for _, id in ipairs(call('SMEMBERS', K.worker_runs(node[1]))) do note_active(id) end
end
for _, id in ipairs(call('ZRANGE', K.deadlines, 0, MOST_RUNS - 1)) do note_active(id) end

local HOLDS = { running = true, granted = true, queued = true }

-- The run that most likely hangs: one on a silent worker, else the one that has been in its state for longest. fits:
-- which runs count.
local function slowest(name, fits)
  local found = nil
  for _, r in ipairs(active[name] or {}) do
    local w = workers[r.worker or '']
    r.hangs = w and w.silent and 1 or 0
    local before = found and r.hangs == found.hangs
      and (r.since < found.since or (r.since == found.since and r.rank < found.rank))
    if fits(r) and (not found or r.hangs > found.hangs or before) then found = r end
  end
  return found
end

local function holder(name, key)
  return slowest(name, function(r) return HOLDS[r.state] and (not key or key == '' or r.key == key) end)
end

local function link(name, r, why, queue)
  chain[#chain + 1] = { job = name, run = r and shown(r, true), why = why, queue = queue or nil }
  jobs[name] = true
end

-- Does the chain end here? Yes if it has been here before (its links wait for each other), or if it is very long.
local function ends_here(what)
  if at[what] then
    chain[#chain].cycle = at[what]
    return true
  end
  at[what] = #chain + 1
  return #chain >= DEEPEST
end

-- The first run of a job in a set (waiting or later). Each set is read once.
local firsts = {}
local function first_of(name, set)
  if not firsts[set] then
    firsts[set] = {}
    for _, id in ipairs(call('ZRANGE', K[set], 0, MOST_RUNS - 1)) do
      local r = load_run(id)
      if r and not firsts[set][r.job] then firsts[set][r.job] = r end
    end
  end
  return firsts[set][name]
end

-- The waiting run of a job that goes first, whether or not there is room for it.
local function first_waiting(j)
  local h = j.waiting > 0 and head(j)
  if h then return load_run(h.id) end
  for _, checked in ipairs({ true, false }) do
    local id = not j.policy.keyed and first_in(lane_of(j, '', checked))
    if id then return load_run(id) end
  end
  -- A keyed job without room, or a run that is tried alone: search the first waiting runs.
  return j.waiting + j.parked > 0 and first_of(j.name, 'waiting') or j.parked > 0 and first_of(j.name, 'later') or nil
end

local of_run, of_job

-- Adds what a reason leads to.
local function follow(words)
  local rule, name, how = words[1], words[2], words[3]
  local r = nil
  if rule == 'room' or rule == 'blocked' then
    r = holder(name, rule == 'room' and how)
  elseif rule == 'behind' then
    local j = job(name)
    r = how and load_run(how) or j and first_waiting(j)
  elseif rule == 'depends' and how == 'earlier' then
    local id = call('ZRANGE', K.unstarted(name), 0, 0)[1]
    r = id and load_run(id)
  elseif rule == 'depends' and how == 'busy' then
    local j = job(name)
    r = slowest(name, function(one) return one.started end) or j and first_waiting(j)
  elseif rule == 'depends' then
    of_job(name)
  end
  if r then of_run(r) end
end

of_run = function(r)
  if ends_here('run ' .. r.id) then return end
  local j = job(r.job)
  if r.state == 'waiting' and j then
    local queue = destination(r)
    local words = reason_shown(j, r, queue)
    link(r.job, r, words, words[1] == 'slot' and queue)
    follow(words)
  elseif r.state == 'waiting' then
    link(r.job, r, { 'unknown' })
  elseif r.state == 'later' then
    link(r.job, r, { 'due', int(r.eta) })
  elseif r.state == 'granted' or r.state == 'queued' then
    link(r.job, r, nil, r.destination or r.queue)
  else
    link(r.job, r)
  end
end

of_job = function(name)
  if ends_here('job ' .. name) then return end
  local j = job(name)
  if not j then
    link(name, nil, { 'unknown' })
    return
  end
  local r = first_waiting(j) or slowest(name, function() return true end)
  if r then
    at['job ' .. name] = nil
    of_run(r)
    return
  end
  if j.policy.hash == 'gone' then
    link(name, nil, { 'nobody', name, call('HGET', K.job(name), 'seen') or '' })
    return
  end
  -- Nobody has asked for a run: what would one wait for? If all workers only observe: for nothing.
  local next_one = { id = '', key = '', rank = (3 - tonumber(ARGV[4])) * CLASS + G.seq + 1 }
  local words = (live == 0 or observing < live) and reason_to_wait(j, next_one) or nil
  link(name, nil, words)
  if words then follow(words) end
end

if ARGV[1] == 'job' then
  if ARGV[3] ~= '1' and not job(ARGV[2]) then return false end
  of_job(ARGV[2])
else
  local r = load_run(ARGV[2])
  if not r then return false end
  local x = r.has_next_attempt and load_run(r.id, K.next_attempt)
  if x then link(x.job, x, { 'attempt' }) end
  of_run(r)
end

local shown_by_name = {}
for name in pairs(jobs) do
  local j, one = job(name), shown_job(name)
  if one then
    one.policy = { depends_on = j.policy.depends_on }
    for option, value in pairs(j.policy) do
      if type(value) ~= 'table' then one.policy[option] = value end -- the others can be long
    end
    shown_by_name[name] = one
  end
end

local named = {}
for _, one in ipairs(chain) do
  local worker = one.run and one.run.worker
  if worker then named[worker] = workers[worker] end
end

local eviction, full = memory()
return cjson.encode({ now = NOW, clock_left = math.max(0, G.opens - G.clock), total = G.total, max_running = G.max_running,
  pause = G.paused and call('HGET', K.ledger, 'pause') or nil, live = live, names = names, slots = counts(K.slots),
  under_way = counts(K.under_way), eviction = eviction, full = full, jobs = shown_by_name, chain = chain,
  workers = next(named) and named or nil,
  entries = count_entries(), fires = shown_entries(0, tonumber(ARGV[5])), led = leader(ARGV[6]) ~= nil })

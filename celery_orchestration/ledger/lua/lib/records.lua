-- The records of the ledger itself, of workers, jobs and runs: how they are read and written. Needs schema.
--
-- This file is long because each kind of record is needed when one of another kind is set aside.

-- ------------------------------------------------------------------------------- keys of another type

-- Redis does not undo the writes of a verb that fails. So one corrupt key could do lasting harm: the history of one job is a
-- string, the verb fails there, and the room of another job, whose run had just ended, is never freed. Therefore a key of a
-- job, run or worker that has another type than declared is set aside when a verb uses it. It is empty then, and the verb
-- continues.

-- Fills a lane that was set aside. Its runs are still in K.waiting.
local function refill(lane)
  for _, id in ipairs(call('ZRANGE', K.waiting, 0, -1)) do
    local r = load_run(id)
    if r and r.state == 'waiting' and not r.alone and not r.stray
      and (r.deps_checked and K.lane_checked or K.lane)(r.job, r.key) == lane then call('ZADD', lane, int(r.rank), id) end
  end
end

local function heal(problem, command, key, ...)
  local family = key and string.match(without_prefix(key), '^([^:]+):')
  if family and string.find(problem, 'WRONGTYPE', 1, true) then
    set_aside(key, problem)
    if family == 'worker' then count_workers() end
    if family == 'lane' or family == 'lane_checked' then refill(key) end
  end
  return redis.call(command, key, ...)
end

-- redis.pcall and type. healing_call makes all calls to Redis, so these are looked up once for each call of a verb.
local ask, type_of

local function healing_call(...)
  local found = ask(...)
  if type_of(found) == 'table' and found.err then return heal(found.err, ...) end
  return found
end

on_call(function()
  ask, type_of = redis.pcall, type
  call = healing_call
end)

-- ---------------------------------------------------------------------------------------------- globals

-- One table for all calls, with all fields set anew in each call: a table that has its fields already need not grow.
G = {}

on_call(function()
  G.dirty = nil
  local v = call('HMGET', K.ledger, unpack(GLOBAL))
  local defaults = GLOBAL.defaults
  for i = 1, #GLOBAL - 2 do
    local name = GLOBAL[i]
    G[name] = tonumber(v[i]) or defaults[name]
  end
  G.epoch, G.paused = v[#GLOBAL - 1] or nil, v[#GLOBAL] == '1'
end)

-- Fences and the order of events: always rising, close to Redis's clock in microseconds.
function tick()
  G.dirty = true
  G.tick = math.max(G.tick + 1, TIME[1] * 1000000 + TIME[2])
  return G.tick
end

-- The order of arrivals.
function next_seq()
  G.dirty = true
  G.seq = G.seq + 1
  return G.seq
end

-- Who changed what: for people.
function audit(who, what, about, why)
  call('LPUSH', K.audit, cjson.encode({ at = NOW, who = who, what = what, about = about, why = why }))
  call('LTRIM', K.audit, 0, 999)
end

-- A record that cannot be read must not stop all other jobs: it is set aside.
local MOST_CORRUPT = 20

function note_corrupt(what, why)
  if call('HLEN', K.corrupt) >= MOST_CORRUPT then call('DEL', K.corrupt) end
  call('HSET', K.corrupt, what, cjson.encode({ at = NOW, why = why }))
end

function set_aside(key, why)
  local what = without_prefix(key)
  note_corrupt(what, why)
  if call('EXISTS', key) == 1 then call('RENAME', key, K.set_aside(what)) end
  audit('ledger', 'corrupt', what, why)
end

-- All jobs depend on this key. If it does not have its declared type, it is set aside, and empty from then on. Returns
-- true in that case.
function ensure_type(name, ...)
  local key, wanted = K[name], KEY[name]
  if not wanted then key, wanted = key(...), KEYS_OF[name] end
  local found = call('TYPE', key).ok
  local is_corrupt = found ~= 'none' and found ~= wanted
  if is_corrupt then set_aside(key, 'it is a ' .. found) end
  return is_corrupt
end

-- A live worker of this release and kind came (1) or went (-1).
function count_worker(release, kind, by)
  for _, what in ipairs({ 'release:' .. release, 'kind:' .. kind }) do
    if call('HINCRBY', K.live, what, by) <= 0 then call('HDEL', K.live, what) end
  end
  if call('HEXISTS', K.live, 'release:' .. release) == 1 then
    call('HDEL', K.stopped_releases, release)
  else
    call('HSET', K.stopped_releases, release, int(NOW))
  end
end

-- The queue of an open set.
function queue_of(open)
  return string.match(open, '^[^\n]*')
end

-- Counts the live workers and their slots anew, from all records that can be read.
function count_workers()
  for _, queue in ipairs(call('HKEYS', K.slots)) do call('DEL', K.release_slots(queue)) end
  call('DEL', K.slots, K.live, K.ready_sets)
  for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do
    local w = read_hash(K.worker(worker), 'queues', 'slots', 'state', 'release', 'kind') or {}
    local sound, queues = pcall(cjson.decode, not w.state and w.queues or '[]')
    for _, queue in ipairs(sound and queues or {}) do
      call('HINCRBY', K.slots, queue, w.slots or 0)
      call('HINCRBY', K.release_slots(queue), w.release or '', w.slots or 0)
    end
    if w.release then count_worker(w.release, w.kind or '', 1) end
  end
  for _, queue in ipairs(call('SMEMBERS', K.open_sets)) do
    if call('HEXISTS', K.slots, queue_of(queue)) == 1 then call('SADD', K.ready_sets, queue) end
  end
  call('HSET', K.ledger, 'counted', int(NOW))
end

-- Records of a worker that cannot be read are set aside: it registers again, or its lease runs out.
function ensure_worker_types(worker)
  ensure_type('worker_runs', worker)
  if ensure_type('worker', worker) then count_workers() end
end

-- Workers and schedulers whose records can be read: { id, end of its lease }.
function nodes()
  local found, ends = {}, call('ZRANGE', K.leases, 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    ensure_worker_types(ends[i])
    if call('HEXISTS', K.worker(ends[i]), 'name') == 1 then
      found[#found + 1] = { ends[i], tonumber(ends[i + 1]) }
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------- jobs

-- The jobs that this call has read, by name; false: there is none.
J = nil
local restore

on_call(function() J = {} end)

-- Long policies that were unpacked lately, by their packed text: those of jobs with very many dependents or conflicts, which
-- take a while to unpack. Others are unpacked in every call: keeping them makes Lua's memory larger, and every call slower.
-- Nobody may change one of these tables.
local LONG_POLICIES = { least = 2000, most = 50, count = 0, known = {} }

-- A policy, or nil if it cannot be read.
local function policy_of(text)
  local policy = LONG_POLICIES.known[text]
  if policy then return policy end
  policy = unpacked(text)
  if not policy or type(policy.dependents) ~= 'table' or not policy.hash then return nil end
  if #text >= LONG_POLICIES.least then
    if LONG_POLICIES.count >= LONG_POLICIES.most then LONG_POLICIES.count, LONG_POLICIES.known = 0, {} end
    LONG_POLICIES.count, LONG_POLICIES.known[text] = LONG_POLICIES.count + 1, policy
  end
  return policy
end

-- A job, or nil if the ledger has no policy for it. Its fields: see schema.lua.
function job(name)
  local j = J[name]
  if j ~= nil then return j or nil end
  local v = redis.pcall('HMGET', K.job(name), 'policy', 'state', 'blocked', 'disabled', 'minute')
  if v.err then return restore(name, v.err) end
  if not v[1] then
    if call('HEXISTS', K.installed, name) == 1 then return restore(name, 'it is gone') end
    J[name] = false
    return nil
  end
  local policy = policy_of(v[1])
  if not policy then return restore(name, 'its policy cannot be read') end
  if v[2] then
    j = unpacked(v[2])
    if not j or type(j.waiting_checked) ~= 'number' or type(j.running) ~= 'number' then
      return restore(name, 'its state cannot be read')
    end
  else
    j = { running = 0, busy = 0, waiting = 0, waiting_checked = 0, parked = 0 }
  end
  j.name, j.policy, j.blocked, j.disabled, j.minute = name, policy, tonumber(v[3]) or 0, v[4] or nil, v[5] or nil
  J[name] = j
  return j
end

function save_policy(name, policy)
  call('HSET', K.job(name), 'policy', cmsgpack.pack(policy))
  call('HSET', K.installed, name, policy.hash)
  J[name] = nil
end

function flush()
  for name, j in pairs(J) do
    if j and j.dirty then
      local state = packed_state(j)
      if j.sum then
        call('HSET', K.job(name), 'blocked', j.blocked, 'state', state, 'minute', STATS.packed(j))
      else
        call('HSET', K.job(name), 'blocked', j.blocked, 'state', state)
      end
    end
  end
  if G.dirty then
    call('HSET', K.ledger, 'tick', int(G.tick), 'seq', int(G.seq), 'total', G.total, 'next', G.next and int(G.next) or '',
      'alone', G.alone)
    G.dirty = false
  end
end

-- Something is due at this time: the verbs turn and sweep call wake() then.
function note_due(ms)
  if not G.next or ms < G.next then
    G.next = ms
    G.dirty = true
  end
end

-- At this time the job is refreshed: the rule may open then.
function set_timer(name, rule, ms)
  call('ZADD', K.timers, int(ms), rule .. ':' .. name)
  note_due(ms)
end

function timer_of(name, rule)
  return tonumber(call('ZSCORE', K.timers, rule .. ':' .. name) or nil)
end

function clear_timer(name, rule)
  call('ZREM', K.timers, rule .. ':' .. name)
end

-- Somebody paused, disabled or enabled something, or changed the schedule: nodes refresh their copy (verb
-- read_decisions). While nodes restore the decisions of an emptied ledger (verb restore_decisions), new decisions of
-- people override those.
function decide(subject, who)
  call('HINCRBY', K.ledger, 'decisions', 1)
  if who ~= 'failures' and who ~= 'probe' and (not G.epoch or G.clock < G.opens) then
    call('HSET', K.decided, subject, 'people')
  end
end

function switch_off(j, who, why)
  -- If failures had disabled the job, that is kept when a person disables it, too.
  local before = j.disabled and cjson.decode(j.disabled)
  local failures = before and (before.by == 'failures' and before.why or before.failures)
  j.disabled = cjson.encode({ by = who, why = why, at = NOW, failures = failures or nil })
  call('HSET', K.job(j.name), 'disabled', j.disabled)
  call('SADD', K.disabled_jobs, j.name)
  decide('job:' .. j.name, who)
  audit(who, 'disable', j.name, why)
end

function switch_on(j, who, why)
  audit(who, 'enable', j.name, why)
  j.disabled, j.failures, j.probe, j.dirty = nil, 0, nil, true
  call('HDEL', K.job(j.name), 'disabled')
  call('SREM', K.disabled_jobs, j.name)
  clear_timer(j.name, 'cool_down')
  decide('job:' .. j.name, who)
end

-- Goes through a sorted set from its beginning, until `limit` members were taken out, or `most` stayed. take(id) takes
-- one out, or returns false.
function take_from(key, limit, most, take)
  local stay = 0
  while limit > 0 and stay < most do
    local ids = call('ZRANGE', key, stay, stay + limit - 1)
    if #ids == 0 then return end
    for _, id in ipairs(ids) do
      if take(id) then limit = limit - 1 else stay = stay + 1 end
    end
  end
end

-- The jobs of these that have runs in their lanes.
function with_waiters(names)
  local found = {}
  for from = 1, #names, 1000 do
    local part = { unpack(names, from, math.min(from + 999, #names)) }
    for i, yes in ipairs(call('SMISMEMBER', K.waiting_jobs, unpack(part))) do
      if yes == 1 then found[#found + 1] = part[i] end
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------- runs

-- A run, or nil. Its fields: see schema.lua. key_of: where it is, K.run by default.
function load_run(id, key_of)
  local key = (key_of or K.run)(id)
  local text = redis.pcall('HGET', key, 'record')
  if not text then return nil end
  local r = unpacked(text)
  if not r or type(r.job) ~= 'string' or type(r.queue) ~= 'string' then
    set_aside(key, type(text) == 'table' and text.err or 'it cannot be read')
    return nil
  end
  r.id, r.was = id, r.state
  return run_record(r)
end

-- The states in which a run waits, and what kind of wait each is.
STATS.WAITS = { waiting = 'gate', later = 'delay', granted = 'hand_over', queued = 'hand_over' }

-- If the run leaves a state in which it waited, that wait is added to r.spent.
function STATS.spend(r)
  local kind, ms = STATS.WAITS[r.was], NOW - r.since
  if kind and ms > 0 then
    local spent = r.spent or {}
    spent[kind] = (spent[kind] or 0) + ms
    if spent.traced then STATS.keep_wait(spent.traced, kind, r.since) end
    r.spent = spent
  end
  r.was = nil
end

function save_run(r, key_of, message)
  if r.was then STATS.spend(r) end
  r.since, r.was = NOW, r.state
  local record = packed_run(r)
  if r.task_id then call('SADD', K.task_runs(r.task_id), r.id) end
  if message then
    call('HSET', (key_of or K.run)(r.id), 'record', record, 'message', message)
  else
    call('HSET', (key_of or K.run)(r.id), 'record', record)
  end
end

-- Counts something of a run: its attempts share the count, and history, status and dead letters show it. Returns how often.
function count_figure(r, figure)
  r.figures = r.figures or {}
  r.figures[figure] = (r.figures[figure] or 0) + 1
  return r.figures[figure]
end

-- Adds the figures of a run to what is shown of it.
function with_figures(shown, r)
  for figure, count in pairs(r.figures or {}) do shown[figure] = count end
  return shown
end

-- The record of a run is removed.
function delete_run(r)
  call('DEL', K.run(r.id))
  if r.task_id then call('SREM', K.task_runs(r.task_id), r.id) end
end

-- What was recorded about the current start of a run, in a field of its hash: { fence, at (ms), ... }, or nil.
function note_of(r, field)
  local found = r.fence and unpacked(call('HGET', K.run(r.id), field))
  return found and found.fence == r.fence and found or nil
end

-- A job whose record is gone, or could not be read, begins anew: none of its runs starts until a node has installed its policy
-- again. Counts and last outcome come from its runs and history.
restore = function(name, why)
  set_aside(K.job(name), why)
  local j = { name = name, blocked = 0, running = 0, busy = 0, waiting = 0, waiting_checked = 0, parked = 0, dirty = true,
    disabled = cjson.encode({ by = 'ledger', why = 'its record could not be read (' .. why .. ')', at = NOW }),
    policy = { hash = 'corrupt', keyed = false, conflicts = {}, groups = {}, depends_on = {}, dependents = {},
      on_crash = 'fail', max_recoveries = 2 } }
  local seen = {}
  local function count(ids)
    for _, id in ipairs(ids) do
      local r = not seen[id] and load_run(id)
      seen[id] = true
      if r and r.job == name then
        if r.key ~= '' then j.policy.keyed = true end
        if r.state == 'later' or (r.state == 'waiting' and (r.alone or r.stray)) then
          j.parked = j.parked + 1
        elseif r.state == 'waiting' then
          j.waiting, j.waiting_checked = j.waiting + 1, j.waiting_checked + (r.deps_checked and 1 or 0)
        elseif r.state == 'granted' or r.state == 'queued' or r.state == 'running' then
          j.running = j.running + 1
        end
        if r.started then j.busy = j.busy + 1 end
      end
    end
  end
  for _, key in ipairs({ K.waiting, K.later, K.deadlines }) do count(call('ZRANGE', key, 0, -1)) end
  for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do count(call('SMEMBERS', K.worker_runs(worker))) end
  for _, text in ipairs(call('LRANGE', K.history(name), 0, 99)) do
    local past = cjson.decode(text)
    if past.outcome == 'succeeded' or past.outcome == 'failed' then
      j.last_ok, j.last_end, j.last_end_ms = past.outcome == 'succeeded', past.ended * 1000, past.ended
      break
    end
  end
  call('ZREM', K.bars, name)
  for _, group in ipairs(call('HKEYS', K.groups)) do
    call('ZREM', K.group_bars(group), name)
    call('SREM', K.group_holders(group), name)
  end
  for _, queue in ipairs(call('SMEMBERS', K.open_sets)) do call('ZREM', K.open(queue), name) end
  save_policy(name, j.policy)
  call('HSET', K.job(name), 'disabled', j.disabled)
  call('HDEL', K.ledger, 'releases')
  J[name] = j
  return j
end

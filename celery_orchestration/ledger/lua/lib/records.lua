-- The records of the ledger itself, of workers, jobs and runs: how they are read and written. Needs schema.

-- ---------------------------------------------------------------------------------------------- globals

local G

on_call(function()
  G = {}
  local v = call('HMGET', P .. 'g', 'tick', 'seq', 'clk', 'total', 'cap', 'paused', 'done_ms', 'next', 'alone', 'history',
    'letters', 'letters_ms', 'epoch', 'opens')
  G.tick = tonumber(v[1]) or 0
  G.seq = tonumber(v[2]) or 0
  G.clk = tonumber(v[3]) or 0
  G.total = tonumber(v[4]) or 0
  G.cap = tonumber(v[5])
  G.paused = v[6] == '1'
  G.done_ms = tonumber(v[7]) or 7200000
  G.next = tonumber(v[8])
  G.alone = tonumber(v[9]) or 0
  G.history = tonumber(v[10]) or 100
  G.letters = tonumber(v[11]) or 1000
  G.letters_ms = tonumber(v[12]) or 1209600000
  G.epoch = v[13] or nil
  G.opens = tonumber(v[14]) or 0
end)

-- Fences and the order of events: always rising, close to Redis's clock in microseconds.
local function tick()
  G.dirty = true
  G.tick = math.max(G.tick + 1, TIME[1] * 1000000 + TIME[2])
  return G.tick
end

-- The order of arrivals.
local function next_seq()
  G.dirty = true
  G.seq = G.seq + 1
  return G.seq
end

-- Who changed what: for people.
local function audit(who, what, about, why)
  call('LPUSH', P .. 'audit', cjson.encode({ at = NOW, who = who, what = what, about = about, why = why }))
  call('LTRIM', P .. 'audit', 0, 999)
end

-- A record that somebody else wrote over must not stop all others: it is set aside.
local MOST_BAD = 20

local function note_bad(key, why)
  if call('HLEN', P .. 'bad') >= MOST_BAD then call('DEL', P .. 'bad') end
  call('HSET', P .. 'bad', key, cjson.encode({ at = NOW, why = why }))
end

local function set_aside(key, why)
  note_bad(key, why)
  if call('EXISTS', P .. key) == 1 then call('RENAME', P .. key, P .. 'bad:' .. key) end
  audit('ledger', 'corrupt', key, why)
end

-- A key that all depend on is of its type, or empty. Returns true if it was another's.
local function see_to(key, wanted)
  local found = call('TYPE', P .. key).ok
  local is_bad = found ~= 'none' and found ~= wanted
  if is_bad then set_aside(key, 'it is a ' .. found) end
  return is_bad
end

-- A live worker of this release and kind came (1) or went (-1).
local function count_worker(release, kind, by)
  for _, what in ipairs({ 'r:' .. release, 'k:' .. kind }) do
    if call('HINCRBY', P .. 'live', what, by) <= 0 then call('HDEL', P .. 'live', what) end
  end
  if call('HEXISTS', P .. 'live', 'r:' .. release) == 1 then
    call('HDEL', P .. 'stopped', release)
  else
    call('HSET', P .. 'stopped', release, int(NOW))
  end
end

-- The queue of an open set.
local function queue_of(open)
  return string.match(open, '^[^\n]*')
end

-- The slots of all workers that can be read, and how many there are, counted anew.
local function count_workers()
  for _, queue in ipairs(call('HKEYS', P .. 'slots')) do call('DEL', P .. 'sr:' .. queue) end
  call('DEL', P .. 'slots', P .. 'live', P .. 'ready')
  for _, worker in ipairs(call('ZRANGE', P .. 'ws', 0, -1)) do
    local v = redis.pcall('HMGET', P .. 'w:' .. worker, 'queues', 'slots', 'state', 'rel', 'kind')
    local sound, queues = pcall(cjson.decode, not v.err and not v[3] and v[1] or '[]')
    for _, queue in ipairs(sound and queues or {}) do
      call('HINCRBY', P .. 'slots', queue, tonumber(v[2]) or 0)
      call('HINCRBY', P .. 'sr:' .. queue, v[4] or '', tonumber(v[2]) or 0)
    end
    if not v.err and v[4] then count_worker(v[4], v[5] or '', 1) end
  end
  for _, queue in ipairs(call('SMEMBERS', P .. 'opens')) do
    if call('HEXISTS', P .. 'slots', queue_of(queue)) == 1 then call('SADD', P .. 'ready', queue) end
  end
  call('HSET', P .. 'g', 'counted', int(NOW))
end

-- Records of a worker that cannot be read are set aside: it registers again, or its lease runs out.
local function see_to_worker(worker)
  see_to('wr:' .. worker, 'set')
  if see_to('w:' .. worker, 'hash') then count_workers() end
end

-- Workers and schedulers whose records can be read: { id, end of its lease }.
local function members()
  local found, ends = {}, call('ZRANGE', P .. 'ws', 0, -1, 'WITHSCORES')
  for i = 1, #ends, 2 do
    see_to_worker(ends[i])
    if call('HEXISTS', P .. 'w:' .. ends[i], 'name') == 1 then
      found[#found + 1] = { ends[i], tonumber(ends[i + 1]) }
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------- jobs

-- The jobs that this call has read, by name; false: there is none.
local J
local restore

on_call(function() J = {} end)

-- A job, or nil if the ledger has no policy for it.
--   cap, keyed: how many runs at once, by room key; conf: jobs it conflicts with, but for those in its groups; deps, depd: its dependencies and
--   dependents; crash, recmax: what happens to a run that crashed; hash: of the policy; fmax: how many failures in a
--   row disable it; cool: ms until a probe then; drop: runs asked for while it is disabled are dropped
--   n: room taken; busy: runs started and not ended; w: runs in its lanes, wk: of these judged; ok, ended, good, begun:
--   how the last run ended, ticks of the last end, success and start; ends_at: ms; br: its rank in bar; at: the open set
--   it is in; fails: failures in a row, err: the last one; probe: while disabled, the run that tries whether it works
--   again, '' if one may; z: waiting runs that are in no lane; took: ms that the last run took; last: the run that started
--   last; t: its statistics of a minute, packed; sum: the same, opened and changed in this call
local function job(name)
  local j = J[name]
  if j ~= nil then return j or nil end
  local v = redis.pcall('HMGET', P .. 'j:' .. name, 'p', 's', 'blk', 'off', 't')
  if v.err then return restore(name, v.err) end
  if not v[1] then
    if call('HEXISTS', P .. 'installed', name) == 1 then return restore(name, 'it is gone') end
    J[name] = false
    return nil
  end
  j = { name = name, blk = tonumber(v[3]) or 0, off = v[4] or nil, t = v[5] or nil }
  local sound = false
  sound, j.cap, j.keyed, j.conf, j.deps, j.depd, j.crash, j.recmax, j.hash, j.fmax, j.cool, j.drop, j.groups =
    pcall(cmsgpack.unpack, v[1])
  if not sound or type(j.depd) ~= 'table' or not j.hash then return restore(name, 'its policy cannot be read') end
  if v[2] then
    sound, j.n, j.busy, j.w, j.wk, j.ok, j.ended, j.good, j.begun, j.ends_at, j.br, j.at, j.fails, j.err, j.probe, j.z, j.took, j.last =
      pcall(cmsgpack.unpack, v[2])
    if not sound or type(j.wk) ~= 'number' or type(j.ok) == 'number' then return restore(name, 'its state cannot be read') end
  else
    j.n, j.busy, j.w, j.wk = 0, 0, 0, 0
  end
  j.z, j.groups = j.z or 0, j.groups or {}
  J[name] = j
  return j
end

local function save_policy(name, p)
  call('HSET', P .. 'j:' .. name, 'p', cmsgpack.pack(p.cap, p.keyed, p.conf, p.deps, p.depd, p.crash, p.recmax, p.hash,
    p.fmax, p.cool, p.drop, p.groups))
  call('HSET', P .. 'installed', name, p.hash)
  J[name] = nil
end

local function flush()
  for name, j in pairs(J) do
    if j and j.dirty then
      local s = cmsgpack.pack(j.n, j.busy, j.w, j.wk, j.ok, j.ended, j.good, j.begun, j.ends_at, j.br, j.at, j.fails, j.err,
        j.probe, j.z, j.took, j.last)
      if j.sum then
        call('HSET', P .. 'j:' .. name, 'blk', j.blk, 's', s, 't', STATS.packed(j))
      else
        call('HSET', P .. 'j:' .. name, 'blk', j.blk, 's', s)
      end
      j.dirty = false
    end
  end
  if G.dirty then
    call('HSET', P .. 'g', 'tick', int(G.tick), 'seq', int(G.seq), 'total', G.total, 'next', G.next and int(G.next) or '',
      'alone', G.alone)
    G.dirty = false
  end
end

-- Something is to be looked at then.
local function look_at(ms)
  if not G.next or ms < G.next then
    G.next = ms
    G.dirty = true
  end
end

-- Somebody paused, disabled or enabled something, or changed the schedule: members refresh their copy (verb read_decisions).
-- Until all have told what they know of an emptied ledger (verb restore_decisions), what people decide now comes before that.
local function decide(subject, who)
  call('HINCRBY', P .. 'g', 'decisions', 1)
  if who ~= 'failures' and who ~= 'probe' and (not G.epoch or G.clk < G.opens) then
    call('HSET', P .. 'decided', subject, 'people')
  end
end

local function switch_off(j, who, why)
  -- That failures had disabled it is kept when a person does as well.
  local before = j.off and cjson.decode(j.off)
  local failures = before and (before.by == 'failures' and before.why or before.failures)
  j.off = cjson.encode({ by = who, why = why, at = NOW, failures = failures or nil })
  call('HSET', P .. 'j:' .. j.name, 'off', j.off)
  call('SADD', P .. 'off', j.name)
  decide('j:' .. j.name, who)
  audit(who, 'disable', j.name, why)
end

local function switch_on(j, who, why)
  audit(who, 'enable', j.name, why)
  j.off, j.fails, j.probe, j.dirty = nil, 0, nil, true
  call('HDEL', P .. 'j:' .. j.name, 'off')
  call('SREM', P .. 'off', j.name)
  call('ZREM', P .. 'cool', j.name)
  decide('j:' .. j.name, who)
end

-- Goes through a sorted set from its beginning, until so many were taken out of it. take(id): takes one out, or says no;
-- of those that stay it looks at `most`.
local function take_from(key, limit, most, take)
  local stay = 0
  while limit > 0 and stay < most do
    local ids = call('ZRANGE', P .. key, stay, stay + limit - 1)
    if #ids == 0 then return end
    for _, id in ipairs(ids) do
      if take(id) then limit = limit - 1 else stay = stay + 1 end
    end
  end
end

-- Those of the given jobs that have runs in their lanes.
local function with_waiters(names)
  local found = {}
  for from = 1, #names, 1000 do
    local part = { unpack(names, from, math.min(from + 999, #names)) }
    for i, yes in ipairs(call('SMISMEMBER', P .. 'waitjobs', unpack(part))) do
      if yes == 1 then found[#found + 1] = part[i] end
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------- runs

-- A run, or nil.
--   job, key: its job and room key; st: its state; a: attempt; rank; fence, own: of the start, and the worker;
--   gn, dest, tries: grant number, queue it is handed over to, how often that got lost; rec: recoveries;
--   jd: its dependencies were judged; sd: it has started; ex: expires, ms; q, gq: own and granted queue;
--   enq: arrival, ms; at: since when in this state, ms; why: it ends; behind: there is an x: record;
--   pub: its publication; tid: its task id, if the run has an id of its own;
--   eta: not to start before, ms; wf: what it waited for first; al: it is tried alone; ent, due, cont: the entry of the
--   schedule that fired it, for when (ms), whether that one is continuous; stray: its message came to a worker that lacks
--   its job: it waits, in no lane, for one that takes the message in; gate_for: which rule of the gate it waits for; spent:
--   how long it has waited since its last start (ms): { gate, delay, hand_over, traced: what a tracer wants to know }
--   (lib/statistics.lua); was: its state as it was read
local function load_run(id, prefix)
  local key = (prefix or 'r:') .. id
  local s = redis.pcall('HGET', P .. key, 's')
  if not s then return nil end
  local r, sound = { id = id }, false
  sound, r.job, r.key, r.st, r.a, r.rank, r.fence, r.own, r.gn, r.dest, r.tries, r.rec, r.jd, r.sd, r.ex, r.q, r.gq, r.enq,
    r.at, r.why, r.behind, r.eta, r.wf, r.al, r.ent, r.due, r.cont, r.stray, r.pub, r.tid,
    r.gate_for, r.spent = pcall(cmsgpack.unpack, s)
  r.pub, r.was = r.pub or '', r.st
  if not sound or type(r.job) ~= 'string' or type(r.q) ~= 'string' then
    set_aside(key, type(s) == 'table' and s.err or 'it cannot be read')
    return nil
  end
  return r
end

-- The states in which a run waits, and what of it that is.
STATS.WAITS = { waiting = 'gate', later = 'delay', granted = 'hand_over', queued = 'hand_over' }

-- The run leaves a state in which it waited.
function STATS.spend(r)
  local kind, ms = STATS.WAITS[r.was], NOW - r.at
  if kind and ms > 0 then
    local spent = r.spent or {}
    spent[kind] = (spent[kind] or 0) + ms
    if spent.traced then STATS.tell(spent.traced, kind, r.at) end
    r.spent = spent
  end
  r.was = nil
end

local function save_run(r, prefix, message)
  if r.was then STATS.spend(r) end
  r.at, r.was = NOW, r.st
  local s = cmsgpack.pack(r.job, r.key, r.st, r.a, r.rank, r.fence, r.own, r.gn, r.dest, r.tries, r.rec, r.jd, r.sd,
    r.ex, r.q, r.gq, r.enq, r.at, r.why, r.behind, r.eta, r.wf, r.al, r.ent, r.due, r.cont, r.stray, r.pub, r.tid,
    r.gate_for, r.spent)
  if r.tid then call('SADD', P .. 'p:' .. r.tid, r.id) end
  if message then
    call('HSET', P .. (prefix or 'r:') .. r.id, 's', s, 'm', message)
  else
    call('HSET', P .. (prefix or 'r:') .. r.id, 's', s)
  end
end

-- The record of a run is removed.
local function delete_run(r)
  call('DEL', P .. 'r:' .. r.id)
  if r.tid then call('SREM', P .. 'p:' .. r.tid, r.id) end
end

-- What was noted about this very start of a run, in field p or o: when (ms), and what; or nil.
local function noted(r, field)
  local found = r.fence and call('HGET', P .. 'r:' .. r.id, field)
  if not found then return nil end
  local fence, at, what, more = cmsgpack.unpack(found)
  if fence ~= r.fence then return nil end
  return { at = at, what = what, more = more }
end

-- A job whose record is gone, or could not be read, begins anew: nothing of it starts until whoever sweeps next has installed its
-- policy again. What can be told from its runs and its history is.
restore = function(name, why)
  set_aside('j:' .. name, why)
  local j = { name = name, blk = 0, keyed = false, conf = {}, groups = {}, deps = {}, depd = {}, crash = 'fail', recmax = 2,
    hash = 'corrupt', n = 0, busy = 0, w = 0, wk = 0, z = 0, dirty = true,
    off = cjson.encode({ by = 'ledger', why = 'its record could not be read (' .. why .. ')', at = NOW }) }
  local seen = {}
  local function count(ids)
    for _, id in ipairs(ids) do
      local r = not seen[id] and load_run(id)
      seen[id] = true
      if r and r.job == name then
        if r.key ~= '' then j.keyed = true end
        if r.st == 'later' or (r.st == 'waiting' and (r.al or r.stray)) then
          j.z = j.z + 1
        elseif r.st == 'waiting' then
          j.w, j.wk = j.w + 1, j.wk + (r.jd and 1 or 0)
        elseif r.st == 'granted' or r.st == 'queued' or r.st == 'running' then
          j.n = j.n + 1
        end
        if r.sd then j.busy = j.busy + 1 end
      end
    end
  end
  for _, key in ipairs({ 'wait', 'later', 'gr' }) do count(call('ZRANGE', P .. key, 0, -1)) end
  for _, worker in ipairs(call('ZRANGE', P .. 'ws', 0, -1)) do count(call('SMEMBERS', P .. 'wr:' .. worker)) end
  for _, text in ipairs(call('LRANGE', P .. 'h:' .. name, 0, 99)) do
    local past = cjson.decode(text)
    if past[3] == 'succeeded' or past[3] == 'failed' then
      j.ok, j.ended, j.ends_at = past[3] == 'succeeded', past[6] * 1000, past[6]
      break
    end
  end
  call('ZREM', P .. 'bar', name)
  for _, group in ipairs(call('HKEYS', P .. 'groups')) do
    call('ZREM', P .. 'bar:' .. group, name)
    call('SREM', P .. 'held:' .. group, name)
  end
  for _, queue in ipairs(call('SMEMBERS', P .. 'opens')) do call('ZREM', P .. 'open:' .. queue, name) end
  save_policy(name, j)
  call('HSET', P .. 'j:' .. name, 'off', j.off)
  call('HDEL', P .. 'g', 'releases')
  J[name] = j
  return j
end

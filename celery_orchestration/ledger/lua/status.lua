-- uses: records gate
--
-- status: everything `status` shows, as one JSON document. Reads only.
--
-- ARGV  most running runs, most waiting runs to list
-- Returns  JSON: now, paused, cap, total, waiting, later, letters, jobs[], running[], waits[], workers[], gone[], slots{},
--          under_way{}, bad{}, owner, eviction (policy, if it can be had), epoch {name, why, left: ms until the gate opens},
--          lead {who, name, since} of who leads now, if somebody does, entries (of the schedule), pause (JSON: by, why, at),
--          fires{} (of jobs: their entries, the first ones if there are very many)
-- Fences are strings: JSON numbers of Lua have 14 digits.

local most_running, most_waiting = tonumber(ARGV[1]), tonumber(ARGV[2])
local jobs, running, waits, workers = {}, {}, {}, {}

local function pairs_of(key)
  local found, flat = {}, call('HGETALL', key)
  for i = 1, #flat, 2 do found[flat[i]] = tonumber(flat[i + 1]) or flat[i + 1] end
  return next(found) and found or nil
end

local function shown(r)
  return { id = r.id, job = r.job, key = r.key, state = r.st, attempt = r.a, fence = r.fence and int(r.fence),
    worker = r.own, recoveries = r.rec, arrived = r.enq, since = r.at, expires = r.ex, queue = r.dest or r.q,
    priority = 3 - math.floor(r.rank / CLASS), started = r.sd or false }
end

-- The arrival of the run that has waited longest, of those of the highest and of the lowest priority; of a keyed job,
-- of the lane that goes first.
local function oldest(j)
  local found = nil
  for _, jd in ipairs({ false, true }) do
    local lane = lane_of(j, j.keyed and first_in(index_of(j, jd)) or '', jd)
    -- The order of arrival is that of the rank within a priority.
    for _, last in ipairs(call('ZCARD', lane) > 0 and { 0, -1 } or {}) do
      local class = math.floor(tonumber(call('ZRANGE', lane, last, last, 'WITHSCORES')[2]) / CLASS)
      local id = call('ZRANGEBYSCORE', lane, int(class * CLASS), '(' .. int((class + 1) * CLASS), 'LIMIT', 0, 1)[1]
      local r = id and load_run(id)
      if r and not (found and found <= r.enq) then found = r.enq end
    end
  end
  return found
end

for _, name in ipairs(call('SMEMBERS', P .. 'jobs')) do
  local j = job(name)
  jobs[#jobs + 1] = j and { name = name, cap = j.cap, keyed = j.keyed, running = j.n, busy = j.busy, waiting = j.w,
    off = j.off, fails = j.fails, fmax = j.fmax, err = j.err, succeeded = j.ok, ended = j.ends_at, begun = j.begun and math.floor(j.begun / 1000),
    succeeded_at = j.good and math.floor(j.good / 1000), oldest = j.w > 0 and oldest(j) or nil, observed = pairs_of(P .. 'ob:' .. name),
    later = j.z, took = j.took, probe = j.off and j.probe, cools = j.off and tonumber(call('ZSCORE', P .. 'cool', name)) or nil,
    letters = call('ZCARD', P .. 'dj:' .. name) }
end

for _, member in ipairs(members()) do
  local id = member[1]
  local v = call('HMGET', P .. 'w:' .. id, 'name', 'host', 'pid', 'slots', 'kind', 'queues', 'mode', 'since', 'beat', 'lease',
    'done', 'failed', 'state')
  local runs = call('SMEMBERS', P .. 'wr:' .. id)
  workers[#workers + 1] = { id = id, name = v[1], host = v[2], pid = tonumber(v[3]), slots = tonumber(v[4]), kind = v[5],
    queues = v[6] and cjson.decode(v[6]), mode = v[7], since = tonumber(v[8]), beat = tonumber(v[9]), running = #runs,
    lease = tonumber(v[10]), left = member[2] - G.clk, done = tonumber(v[11]) or 0, failed = tonumber(v[12]) or 0,
    draining = v[13] ~= false }
  for _, run in ipairs(runs) do
    local r = #running < most_running and load_run(run)
    if r then
      local one = shown(r)
      one.over, one.progress = noted(r, 'o'), noted(r, 'p')
      running[#running + 1] = one
    end
  end
end

for _, id in ipairs(call('ZRANGE', P .. 'gr', 0, most_running - 1)) do
  local r = load_run(id)
  if r then running[#running + 1] = shown(r) end
end

for _, id in ipairs(call('ZRANGE', P .. 'wait', 0, most_waiting - 1)) do
  local r = load_run(id)
  if r and r.st == 'waiting' then
    local one = shown(r)
    one.queue = destination(r)
    one.reason = closed(job(r.job), r) or r.al and { 'alone' } or { 'slot', one.queue }
    waits[#waits + 1] = one
  elseif r and r.behind then
    local one = shown(load_run(id, 'x:'))
    one.reason = { 'attempt' }
    waits[#waits + 1] = one
  end
end

for _, id in ipairs(#waits < most_waiting and call('ZRANGE', P .. 'later', 0, most_waiting - #waits - 1) or {}) do
  local r = load_run(id)
  if r then
    local one = shown(r)
    one.reason = { 'due', int(r.eta) }
    waits[#waits + 1] = one
  end
end

-- Those that fire jobs: what of them is due when.
local MOST_ENTRIES, fires = 2000, {}
local ids = redis.pcall('ZRANGE', P .. 'entries', 0, MOST_ENTRIES - 1)
for _, id in ipairs(ids.err and {} or ids) do
  local v = redis.pcall('HMGET', P .. 'e:' .. id, 'job', 'prev', 'last', 'at', 'next', 'cont', 'off')
  if not v.err and v[1] then
    local due = fires[v[1]] or {}
    fires[v[1]] = due
    due[#due + 1] = { prev = tonumber(v[2] or nil), last = tonumber(v[3] or nil), at = tonumber(v[4] or nil),
      next = tonumber(v[5] or nil), gap = tonumber(v[6] or nil), paused = v[7] ~= false }
  end
end

local lead = redis.pcall('HMGET', P .. 'lead', 'who', 'name', 'since', 'until')
local leads = not lead.err and (tonumber(lead[4]) or 0) >= NOW
local entries = redis.pcall('ZCARD', P .. 'entries')
local memory = redis.pcall('INFO', 'memory')
local g = call('HMGET', P .. 'g', 'owner', 'why', 'pause')
return cjson.encode({ now = NOW, paused = G.paused, cap = G.cap, total = G.total, waiting = call('ZCARD', P .. 'wait'),
  later = call('ZCARD', P .. 'later'), letters = call('ZCARD', P .. 'dead'), gone = call('LRANGE', P .. 'gone', 0, -1),
  jobs = jobs, running = running, waits = waits, workers = workers, slots = pairs_of(P .. 'slots'),
  under_way = pairs_of(P .. 'out'), owner = g[1], bad = pairs_of(P .. 'bad'),
  eviction = type(memory) == 'string' and string.match(memory, 'maxmemory_policy:([%w-]+)') or nil,
  epoch = G.epoch and { name = G.epoch, why = g[2], left = math.max(0, G.opens - G.clk) } or nil,
  lead = leads and { who = lead[1], name = lead[2], since = tonumber(lead[3]) } or nil,
  entries = type(entries) == 'number' and entries or 0, fires = next(fires) and fires or nil,
  pause = G.paused and g[3] or nil })

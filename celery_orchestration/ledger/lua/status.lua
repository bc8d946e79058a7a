-- uses: records gate
--
-- status: everything `status` shows, as one JSON document. Reads only.
--
-- ARGV  most running runs, most waiting runs to list
-- Returns  JSON: now, paused, cap, total, waiting, later, letters, jobs[], running[], waits[], workers[], gone[], slots{},
--          under_way{}, bad{}, owner, eviction (policy, if it can be had), epoch {name, why, left: ms until the gate opens},
--          lead {who, name, since} of who leads now, if somebody does, entries (of the schedule)
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

for _, name in ipairs(call('SMEMBERS', P .. 'jobs')) do
  local j = job(name)
  local h = j and j.w > 0 and head(j)
  local r = h and load_run(h.id)
  jobs[#jobs + 1] = j and { name = name, cap = j.cap, keyed = j.keyed, running = j.n, busy = j.busy, waiting = j.w,
    off = j.off, fails = j.fails, fmax = j.fmax, err = j.err, succeeded = j.ok, ended = j.ends_at, begun = j.begun and math.floor(j.begun / 1000),
    succeeded_at = j.good and math.floor(j.good / 1000), oldest = r and r.enq or nil, observed = pairs_of(P .. 'ob:' .. name),
    later = j.z, took = j.took, probe = j.off and j.probe, cools = j.off and tonumber(call('ZSCORE', P .. 'cool', name)) or nil,
    letters = call('ZCARD', P .. 'dj:' .. name) }
end

local ends = call('ZRANGE', P .. 'ws', 0, -1, 'WITHSCORES')
for i = 1, #ends, 2 do
  local id = ends[i]
  local v = call('HMGET', P .. 'w:' .. id, 'name', 'host', 'pid', 'slots', 'kind', 'queues', 'mode', 'since', 'beat', 'lease',
    'done', 'failed', 'state')
  local runs = call('SMEMBERS', P .. 'wr:' .. id)
  workers[#workers + 1] = { id = id, name = v[1], host = v[2], pid = tonumber(v[3]), slots = tonumber(v[4]), kind = v[5],
    queues = v[6] and cjson.decode(v[6]), mode = v[7], since = tonumber(v[8]), beat = tonumber(v[9]), running = #runs,
    lease = tonumber(v[10]), left = tonumber(ends[i + 1]) - G.clk, done = tonumber(v[11]) or 0, failed = tonumber(v[12]) or 0,
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

local lead = redis.pcall('HMGET', P .. 'lead', 'who', 'name', 'since', 'until')
local leads = not lead.err and (tonumber(lead[4]) or 0) >= NOW
local entries = redis.pcall('ZCARD', P .. 'entries')
local memory = redis.pcall('INFO', 'memory')
local g = call('HMGET', P .. 'g', 'owner', 'why')
return cjson.encode({ now = NOW, paused = G.paused, cap = G.cap, total = G.total, waiting = call('ZCARD', P .. 'wait'),
  later = call('ZCARD', P .. 'later'), letters = call('ZCARD', P .. 'dead'), gone = call('LRANGE', P .. 'gone', 0, -1),
  jobs = jobs, running = running, waits = waits, workers = workers, slots = pairs_of(P .. 'slots'),
  under_way = pairs_of(P .. 'out'), owner = g[1], bad = pairs_of(P .. 'bad'),
  eviction = type(memory) == 'string' and string.match(memory, 'maxmemory_policy:([%w-]+)') or nil,
  epoch = G.epoch and { name = G.epoch, why = g[2], left = math.max(0, G.opens - G.clk) } or nil,
  lead = leads and { who = lead[1], name = lead[2], since = tonumber(lead[3]) } or nil,
  entries = type(entries) == 'number' and entries or 0 })

-- uses: schema records rules index places
--
-- read_pools: what pools have to do and who does it, for the decision how many workers they need, and for people. Reads only. Its cost
-- grows with the number of live workers, of places and of jobs that are named, not with that of runs or of jobs.
--
-- ARGV  JSON: pools {pool: [its queues]}, jobs [names of jobs whose duration is asked for], changes (how many of the last changes
--       of each pool are told)
-- Returns  JSON: now, paused, epoch (ms until the gate opens), supervisors[] {name, host, pid, since, left, tables, report},
--          workers[] {name, host, pid, slots, running, done, failed, draining, since, queues, left, silent, lease},
--          jobs {job: {took: typical duration (ms) if one is known, room: how many more may run, if that is limited}},
--          pools {pool: wanted, needed, changed, seen, oldest, why, places[], changes[] (JSON each),
--            handed[] {job, queue, runs, since}: runs on their way to a worker; open[] {job, runs}: runs that wait for nothing but a slot}
-- Called again: the same, as far as nothing changed.

local asked = cjson.decode(ARGV[1])
-- Runs on their way, open jobs and past runs of a job that are looked at.
local MOST_HANDED, MOST_OPEN, MOST_PAST = 200, 100, 9

local function list(found)
  return #found > 0 and found or nil
end

local function typical(name, j)
  local took, records = {}, redis.pcall('LRANGE', P .. 'h:' .. name, 0, MOST_PAST - 1)
  for _, text in ipairs(records.err and {} or records) do
    local sound, one = pcall(cjson.decode, text)
    if sound and type(one) == 'table' and tonumber(one[5]) and tonumber(one[6])
      and (one[3] == 'succeeded' or one[3] == 'failed') then
      took[#took + 1] = math.max(0, one[6] - one[5])
    end
  end
  if #took == 0 then return j.took end
  table.sort(took)
  return took[math.floor((#took + 1) / 2)]
end

local queue_pools = {}
for pool, queues in pairs(asked.pools) do
  for _, queue in ipairs(queues) do queue_pools[queue] = pool end
end

local jobs, seen = {}, {}
local function tell_job(name)
  local j = not seen[name] and job(name)
  seen[name] = true
  if j then
    jobs[name] = { took = typical(name, j), room = j.cap and not j.keyed and math.max(0, j.cap - j.n) or nil }
  end
end
for _, name in ipairs(asked.jobs or {}) do tell_job(name) end

local handed = {}
if call('HLEN', P .. 'out') > 0 then
  local counted = {}
  for _, id in ipairs(call('ZRANGE', P .. 'gr', 0, MOST_HANDED - 1)) do
    local r = load_run(id)
    local pool = r and r.dest and (r.st == 'granted' or r.st == 'queued') and queue_pools[r.dest]
    if pool then
      local key = r.job .. '\n' .. r.dest
      local one = counted[key]
      if not one then
        one = { job = r.job, queue = r.dest, runs = 0, since = r.at }
        counted[key] = one
        handed[pool] = handed[pool] or {}
        table.insert(handed[pool], one)
        tell_job(r.job)
      end
      one.runs, one.since = one.runs + 1, math.min(one.since, r.at)
    end
  end
end

local open = {}
for _, name in ipairs(call('SMEMBERS', P .. 'opens')) do
  local pool = queue_pools[queue_of(name)]
  for _, encoded in ipairs(pool and call('ZRANGE', P .. 'open:' .. name, 0, MOST_OPEN - 1) or {}) do
    local j = job(encoded)
    if j then
      local runs = j.w
      if j.keyed then
        runs = call('ZCARD', index_of(j, false)) + call('ZCARD', index_of(j, true))
      elseif j.cap then
        runs = math.min(runs, j.cap - j.n)
      end
      open[pool] = open[pool] or {}
      table.insert(open[pool], { job = encoded, runs = math.max(1, runs) })
      tell_job(encoded)
    end
  end
end

local pools = {}
for pool in pairs(asked.pools) do
  local v = redis.pcall('HMGET', P .. 'pool:' .. pool, 'wanted', 'needed', 'changed', 'seen', 'oldest', 'why')
  if v.err then v = {} end
  local held = {}
  for _, p in ipairs(places(pool)) do
    held[#held + 1] = { number = tonumber(p.number), by = p.by, fence = p.fence, since = p.since, leaving = p.leaving or false,
      left = p.ends - G.clk, info = p.info or '' }
  end
  local changes = (asked.changes or 0) > 0 and redis.pcall('LRANGE', P .. 'pc:' .. pool, 0, asked.changes - 1) or {}
  pools[pool] = { wanted = tonumber(v[1] or nil), needed = tonumber(v[2] or nil), changed = tonumber(v[3] or nil),
    seen = tonumber(v[4] or nil), oldest = tonumber(v[5] or nil), why = v[6] or nil, places = list(held),
    changes = not changes.err and list(changes) or nil, handed = handed[pool], open = open[pool] }
end

local workers = {}
for _, member in ipairs(members()) do
  local id = member[1]
  local v = call('HMGET', P .. 'w:' .. id, 'name', 'host', 'pid', 'slots', 'queues', 'since', 'beat', 'lease', 'done', 'failed',
    'state', 'kind')
  if v[12] ~= 'beat' then
    workers[#workers + 1] = { name = v[1], host = v[2], pid = tonumber(v[3]), slots = tonumber(v[4]), queues = v[5],
      since = tonumber(v[6]), silent = NOW - (tonumber(v[7]) or 0), lease = tonumber(v[8]), done = tonumber(v[9] or nil) or 0,
      failed = tonumber(v[10] or nil) or 0, draining = v[11] ~= false, running = call('SCARD', P .. 'wr:' .. id),
      left = member[2] - G.clk, kind = v[12] }
  end
end

local told = {}
for _, one in ipairs(supervisors()) do
  told[#told + 1] = { name = one.name, host = one.host, pid = one.pid, since = one.since, left = one.ends - G.clk,
    tables = cjson.encode(one.tables), report = one.report or '' }
end

return cjson.encode({ now = NOW, paused = G.paused, epoch = G.epoch and math.max(0, G.opens - G.clk) or 0, supervisors = list(told),
  workers = list(workers), jobs = next(jobs) and jobs or nil, pools = next(pools) and pools or nil })

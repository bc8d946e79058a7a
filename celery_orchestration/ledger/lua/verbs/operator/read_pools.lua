-- uses: schema records lanes rules index places
--
-- read_pools: the work of pools, and their workers, for the decision how many workers they need, and for people. Reads
-- only. Its cost grows with the number of live workers, of places and of jobs that are named, but not of all runs or
-- jobs.
--
-- ARGV  JSON: pools {pool: [its queues]}, jobs [names of jobs whose duration is asked for], changes (how many of the last
--       changes of each pool are returned)
-- Returns  JSON: now, paused, epoch (ms until the gate opens), room (how many more runs of all jobs may run, if that is
--            limited), supervisors[] {name, host, pid, since, left, tables, report},
--          workers[] {name, host, pid, slots, running, done, failed, draining, since, queues, left, silent, lease},
--          jobs {job: {took: typical duration (ms) if one is known, room: how many more may run, if that is limited}},
--          pools {pool: wanted, needed, changed, seen, oldest, why, places[], changes[] (JSON each),
--            handed[] {job, queue, runs, since}: runs on their way to a worker, which hold room; open[] {job, runs}: runs that
--            wait for nothing but a slot, or room of all jobs}
-- Errors   none
-- Called again: the same, unless something changed.

local asked = cjson.decode(ARGV[1])
-- How many runs on their way, open jobs, and past runs of a job are read.
local MOST_HANDED, MOST_OPEN, MOST_PAST = 200, 100, 9

local function list(found)
  return #found > 0 and found or nil
end

-- Workers in observe mode start runs whatever the limits are.
local workers, observed = {}, false
for _, node in ipairs(nodes()) do
  local id = node[1]
  local w = read_hash(K.worker(id), 'name', 'host', 'pid', 'slots', 'queues', 'since', 'heartbeat', 'lease', 'done', 'failed',
    'state', 'kind', 'mode')
  if w.kind ~= 'beat' then
    observed = observed or w.mode == 'observe'
    w.silent, w.left, w.running = NOW - (w.heartbeat or 0), node[2] - G.clock, call('SCARD', K.worker_runs(id))
    w.mode, w.draining, w.done, w.failed = nil, w.state ~= nil, w.done or 0, w.failed or 0
    workers[#workers + 1] = w
  end
end

local function typical(name, j)
  local took, records = {}, redis.pcall('LRANGE', K.history(name), 0, MOST_PAST - 1)
  for _, text in ipairs(records.err and {} or records) do
    local sound, one = pcall(cjson.decode, text)
    if sound and type(one) == 'table' and tonumber(one.started) and tonumber(one.ended)
      and (one.outcome == 'succeeded' or one.outcome == 'failed') then
      took[#took + 1] = math.max(0, one.ended - one.started)
    end
  end
  if #took == 0 then return j.last_took end
  table.sort(took)
  return took[math.floor((#took + 1) / 2)]
end

local queue_pools = {}
for pool, queues in pairs(asked.pools) do
  for _, queue in ipairs(queues) do queue_pools[queue] = pool end
end

local jobs, seen = {}, {}
local function add_job(name)
  local j = not seen[name] and job(name)
  seen[name] = true
  if j then
    local capped = j.policy.max_running and not j.policy.keyed and not observed
    jobs[name] = { took = typical(name, j), room = capped and math.max(0, j.policy.max_running - j.running) or nil }
  end
end
for _, name in ipairs(asked.jobs or {}) do add_job(name) end

local handed = {}
if call('HLEN', K.under_way) > 0 then
  local counted = {}
  for _, id in ipairs(call('ZRANGE', K.deadlines, 0, MOST_HANDED - 1)) do
    local r = load_run(id)
    local pool = r and r.destination and (r.state == 'granted' or r.state == 'queued') and queue_pools[r.destination]
    if pool then
      local key = r.job .. '\n' .. r.destination
      local one = counted[key]
      if not one then
        one = { job = r.job, queue = r.destination, runs = 0, since = r.since }
        counted[key] = one
        handed[pool] = handed[pool] or {}
        table.insert(handed[pool], one)
        add_job(r.job)
      end
      one.runs, one.since = one.runs + 1, math.min(one.since, r.since)
    end
  end
end

local open = {}
for _, name in ipairs(call('SMEMBERS', K.open_sets)) do
  local pool = queue_pools[queue_of(name)]
  for _, encoded in ipairs(pool and call('ZRANGE', K.open(name), 0, MOST_OPEN - 1) or {}) do
    local j = job(encoded)
    if j then
      local runs = j.waiting
      if j.policy.keyed then
        runs = call('ZCARD', lane_heads_of(j, false)) + call('ZCARD', lane_heads_of(j, true))
      elseif j.policy.max_running then
        runs = math.min(runs, j.policy.max_running - j.running)
      end
      open[pool] = open[pool] or {}
      table.insert(open[pool], { job = encoded, runs = math.max(1, runs) })
      add_job(encoded)
    end
  end
end

local pools = {}
for pool in pairs(asked.pools) do
  local state = read_hash(K.pool(pool), 'wanted', 'needed', 'changed', 'seen', 'oldest', 'why') or {}
  local held = {}
  for _, p in ipairs(places(pool)) do
    held[#held + 1] = { number = tonumber(p.number), by = p.by, fence = p.fence, since = p.since, leaving = p.leaving or false,
      left = p.ends - G.clock, info = p.info or '' }
  end
  local changes = (asked.changes or 0) > 0 and redis.pcall('LRANGE', K.pool_changes(pool), 0, asked.changes - 1) or {}
  state.places, state.changes = list(held), not changes.err and list(changes) or nil
  state.handed, state.open = handed[pool], open[pool]
  pools[pool] = state
end

local described = {}
for _, one in ipairs(supervisors()) do
  described[#described + 1] = { name = one.name, host = one.host, pid = one.pid, since = one.since,
    left = one.ends - G.clock, tables = cjson.encode(one.tables), report = one.report or '' }
end

return cjson.encode({ now = NOW, paused = G.paused, epoch = G.epoch and math.max(0, G.opens - G.clock) or 0,
  room = G.max_running and not observed and math.max(0, G.max_running - G.total) or nil,
  supervisors = list(described),
  workers = list(workers), jobs = next(jobs) and jobs or nil, pools = next(pools) and pools or nil })

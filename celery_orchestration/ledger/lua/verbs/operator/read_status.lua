-- uses: schema records lanes rules index term views memory
--
-- read_status: everything that `status` shows, as one JSON document. Reads only. If there are very many jobs and
-- entries, only the first ones: read_jobs and list_entries return the others, so that Redis is never kept busy for
-- long.
--
-- ARGV  most running runs, most waiting runs, most jobs, most entries to list, service of the caller
-- Returns  JSON: now, paused, max_running, total, waiting, later, dead_letters, jobs[], more[] (names of the other jobs),
--          running[], waits[], workers[], gone[], slots{}, under_way{}, bad{}, owner, eviction (policy, if INFO is
--          allowed), full (whether Redis is full), epoch {name, why, left: ms until the gate opens}, lead {who, name,
--          since} of the scheduler that leads that service now, if one does; leads[]: the same of all services, with service;
--          service: of the caller; entries (how many the schedule has), fires[] (entries that fire jobs: job, prev,
--          last, at, next, gap, off, name if it is paused), pause (JSON: by, why, at), restored {pause, jobs[],
--          entries[], left_out} after the ledger was emptied
-- Errors   none
-- Called again: the same, unless something changed.

local most_running, most_waiting = tonumber(ARGV[1]), tonumber(ARGV[2])
local names, more = cut(call('SMEMBERS', K.jobs), tonumber(ARGV[3]))
local jobs, running, waits, workers = shown_jobs(names), {}, {}, {}

for _, node in ipairs(nodes()) do
  local id = node[1]
  local runs = call('SMEMBERS', K.worker_runs(id))
  local worker = read_hash(K.worker(id), 'name', 'host', 'pid', 'slots', 'kind', 'queues', 'mode', 'since', 'heartbeat',
    'lease', 'done', 'failed', 'state', 'service')
  worker.id, worker.running, worker.left = id, #runs, node[2] - G.clock
  worker.done, worker.failed, worker.service = worker.done or 0, worker.failed or 0, worker.service or ''
  worker.heartbeat, worker.lease, worker.since = worker.heartbeat or 0, worker.lease or 0, worker.since or 0
  worker.queues, worker.draining = worker.queues and cjson.decode(worker.queues), worker.state ~= nil
  workers[#workers + 1] = worker
  for _, run in ipairs(runs) do
    local r = #running < most_running and load_run(run)
    if r then running[#running + 1] = shown(r, true) end
  end
end

for _, id in ipairs(firsts_of(K.deadlines, most_running)) do
  local r = load_run(id)
  if r then running[#running + 1] = shown(r) end
end

for _, id in ipairs(firsts_of(K.waiting, most_waiting)) do
  local r = load_run(id)
  if r and r.state == 'waiting' then
    local one, j = shown(r), job(r.job)
    one.queue = destination(r)
    one.reason = j and reason_shown(j, r, one.queue) or { 'depends', r.job, 'unknown' }
    waits[#waits + 1] = one
  else
    local x = r and r.has_next_attempt and load_run(id, K.next_attempt)
    if x then
      waits[#waits + 1] = shown(x)
      waits[#waits].reason = { 'attempt' }
    end
  end
end

for _, id in ipairs(firsts_of(K.later, most_waiting - #waits)) do
  local r = load_run(id)
  if r then
    local one = shown(r)
    one.reason = { 'due', int(r.eta) }
    waits[#waits + 1] = one
  end
end

local g = read_hash(K.ledger, 'owner', 'why', 'pause')
local eviction, full = memory()

-- What nodes have restored in this epoch.
local restored = { jobs = {}, entries = {}, left_out = tonumber(call('HGET', K.ledger, 'left_out') or nil) or 0 }
local decided = redis.pcall('HGETALL', K.decided)
for i = 1, decided.err and 0 or #decided, 2 do
  local kind, name = string.match(decided[i], '^(%a+):(.*)$')
  if decided[i + 1] == 'people' then
    -- Decided after the ledger was emptied.
  elseif kind == 'job' then
    table.insert(restored.jobs, name)
  elseif kind == 'entry' then
    local shown_name = redis.pcall('HGET', K.entry(name), 'name')
    table.insert(restored.entries, type(shown_name) == 'string' and shown_name or name)
  else
    restored.pause = true
  end
end

return cjson.encode({ now = NOW, paused = G.paused, max_running = G.max_running, total = G.total,
  waiting = call('ZCARD', K.waiting),
  later = call('ZCARD', K.later), dead_letters = call('ZCARD', K.dead_letters), gone = call('LRANGE', K.dead_workers, 0, -1),
  jobs = jobs, more = more, running = running, waits = waits, workers = workers, slots = counts(K.slots),
  under_way = counts(K.under_way), owner = g.owner, bad = counts(K.corrupt), eviction = eviction, full = full,
  service = ARGV[5], lead = leader(ARGV[5]), leads = leaders(),
  epoch = G.epoch and { name = G.epoch, why = g.why, left = math.max(0, G.opens - G.clock) } or nil,
  entries = count_entries(), fires = shown_entries(0, tonumber(ARGV[4])), pause = G.paused and g.pause or nil,
  restored = restored })

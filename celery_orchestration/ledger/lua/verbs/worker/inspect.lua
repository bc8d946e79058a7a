-- uses: schema records lanes rules index
--
-- inspect: runs that wait, for Celery's own remote control. Celery asks all workers at once; one of
-- them reports each run. Reads only.
--
-- ARGV  worker that asks, waiting | later (runs that wait, or that are not due yet) | ids, most runs to read, size of
--       the largest message to read (bytes), how many bytes of it are returned, task ids...
-- Returns  { { task id, job, waiting | later, eta (ms) or '', the beginning of its message or '' } }: the runs that
--          this worker has to report
-- Errors   none
-- Called again: the same, unless something changed.

-- Only the first workers by name report runs. The others need not search.
local MOST_WORKERS = 50
local me, which, most, largest, beginning = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

local workers, asks = {}, false
for _, name in ipairs(call('ZRANGE', K.ordered_names, 0, MOST_WORKERS - 1)) do
  local worker = call('HGET', K.worker_names, name) or ''
  local w = read_hash(K.worker(worker), 'queues', 'state', 'kind', 'heartbeat', 'lease', 'release')
  if w and w.queues and NOW - (w.heartbeat or 0) <= (w.lease or 0) / 2 then
    local queues = {}
    for _, queue in ipairs(cjson.decode(w.queues)) do queues[queue] = true end
    -- A stopping worker may be gone before it answers. A solo worker answers only between its tasks.
    workers[#workers + 1] = { id = worker, queues = queues, ready = not w.state and w.kind ~= 'solo',
      release = w.release or '' }
    asks = asks or worker == me
  end
end
if not asks then return {} end

-- Workers that have the job come first: other services share the ledger, and Celery does not ask their workers with ours.
local known = {}
local function has_job(one, name)
  local of = one.release .. '\n' .. name
  if known[of] == nil then known[of] = call('SISMEMBER', K.release_jobs(one.release), name) == 1 end
  return known[of]
end

local function reporter(r)
  local queue, found, best = destination(r), nil, 0
  for _, one in ipairs(workers) do
    local fit = 1 + (has_job(one, r.job) and 4 or 0) + (one.ready and 2 or 0) + (one.queues[queue] and 1 or 0)
    if fit > best then found, best = one.id, fit end
  end
  return found
end

local function message(id)
  local key = K.run(id)
  if call('HSTRLEN', key, 'message') > largest then return '' end
  return string.sub(call('HGET', key, 'message') or '', 1, beginning)
end

local ids = which ~= 'ids' and call('ZRANGE', K[which], 0, most - 1) or {}
for i = 6, which == 'ids' and math.min(#ARGV, 5 + most) or 0 do
  ids[#ids + 1] = ARGV[i]
  for _, id in ipairs(call('SRANDMEMBER', K.task_runs(ARGV[i]), most)) do ids[#ids + 1] = id end
end

local found = {}
for _, id in ipairs(ids) do
  if #found == most then break end
  local r = load_run(id)
  if r and (r.state == 'waiting' or r.state == 'later') and reporter(r) == me then
    found[#found + 1] = { r.task_id or id, r.job, r.state, r.eta and int(r.eta) or '', message(id) }
  end
end
return found

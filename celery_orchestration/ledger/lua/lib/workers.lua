-- Live workers: their presence, and what happens to their runs when they go. Needs records, rules, index, room, transitions.

-- How many stale jobs are refreshed in one call.
local MOST_STALE = 200

-- Where a waiting run is handed over depends on which queues are served, and by which releases. When that changes, all
-- jobs with waiting runs are refreshed, a part in this call and the rest in the next sweeps. Until then their runs are
-- handed over to the queue that was right before, or to none. rel: the release of the worker whose slots these are.
function add_slots(queues, by, rel)
  local changed = false
  for _, queue in ipairs(cjson.decode(queues)) do
    local now, of_release = call('HINCRBY', K.slots, queue, by), call('HINCRBY', K.release_slots(queue), rel, by)
    if of_release <= 0 then call('HDEL', K.release_slots(queue), rel) end
    if now <= 0 then
      call('HDEL', K.slots, queue)
      call('SREM', K.ready_sets, queue)
    elseif now == by and call('EXISTS', K.open(queue)) == 1 then
      call('SADD', K.ready_sets, queue)
    end
    changed = changed or of_release <= 0 or of_release == by
    RELEASES[queue] = nil
  end
  if changed then call('SUNIONSTORE', K.stale_jobs, K.stale_jobs, K.waiting_jobs) end
end

-- Nothing more is handed over to this worker. Its runs and its lease stay. A second call does nothing.
function withdraw_slots(worker)
  local w = read_hash(K.worker(worker), 'queues', 'slots', 'state', 'release')
  if w and w.queues and not w.state then add_slots(w.queues, -(w.slots or 0), w.release or '') end
end

-- Refreshes a part of the stale jobs. Returns whether there are more.
function refresh_stale()
  local names = call('SPOP', K.stale_jobs, MOST_STALE)
  for _, name in ipairs(names) do
    local j = job(name)
    if j then refresh(j) end
  end
  return #names == MOST_STALE
end

-- Takes up to `limit` running runs from a worker that is gone. Returns {dead}, {recovered}, done: whether none is left.
-- died: 'worker' if it counts as a crash of the runs, else nil. All runs count as begun: nobody knows which were.
function take_runs(worker, died, limit)
  local dead, recovered = {}, {}
  local ids = call('SMEMBERS', K.worker_runs(worker))
  for i = 1, math.min(#ids, limit) do
    local r = load_run(ids[i])
    if r and r.state == 'running' and r.worker == worker then
      local what = recover(job(r.job), r, died, true)
      if what == 'dead' then
        ending(r, 'crashed')
        dead[#dead + 1] = r.id
      elseif what == 'waits' then
        recovered[#recovered + 1] = r.id
      end
    else
      call('SREM', K.worker_runs(worker), ids[i])
    end
  end
  return dead, recovered, #ids <= limit
end

-- Deletes a worker. Returns its name and kind.
function remove_worker(worker)
  local name, kind, release = unpack(call('HMGET', K.worker(worker), 'name', 'kind', 'release'))
  withdraw_slots(worker)
  if release then count_worker(release, kind or '', -1) end
  if name and call('HGET', K.worker_names, name) == worker then
    call('HDEL', K.worker_names, name)
    call('ZREM', K.ordered_names, name)
  end
  call('ZREM', K.leases, worker)
  call('DEL', K.worker(worker), K.worker_runs(worker))
  return name, kind
end

-- For people: records that a worker died, and how many runs it had.
function note_death(name, kind, runs)
  call('LPUSH', K.dead_workers, cjson.encode({ name = name, kind = kind, at = NOW, runs = runs }))
  call('LTRIM', K.dead_workers, 0, 19)
end

-- How long (ms) the policies of a service stay in force while it has no workers: somebody may have stopped it, while
-- other services that share the ledger go on.
local STOPPED_MS = 604800000

-- The releases in force, oldest first, as one string: those that live workers bring, and those that a service without
-- workers had last.
function live_releases()
  local live, served, names = {}, {}, {}
  local services = {}
  local flat = call('HGETALL', K.services)
  for i = 1, #flat, 2 do services[flat[i]] = flat[i + 1] end
  for _, what in ipairs(call('HKEYS', K.live)) do
    live[what] = true
    local release = string.match(what, '^release:(.*)$')
    if release then served[services[release] or ''] = true end
  end
  for _, rel in ipairs(call('ZRANGE', K.release_order, 0, -1)) do
    if live['release:' .. rel] or (services[rel] and not served[services[rel]] and call('HEXISTS', K.releases, rel) == 1
      and NOW - (tonumber(call('HGET', K.stopped_releases, rel) or nil) or NOW) < STOPPED_MS) then names[#names + 1] = rel end
  end
  return table.concat(names, ' ')
end

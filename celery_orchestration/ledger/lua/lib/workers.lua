-- Live workers: their presence, and what happens to their runs when they go. Needs records, rules, index, room, transitions.

-- Jobs that are looked at again in one call.
local MOST_STALE = 200

-- Which queues are served, and by which releases, decides where waiting runs are handed over to: when that changes, jobs with
-- waiting runs are looked at again, a part in this call and the rest in the next sweeps. Until then they are handed over to
-- the queue that was right before, or to none. rel: the release of the worker whose slots these are.
local function add_slots(queues, by, rel)
  local changed = false
  for _, queue in ipairs(cjson.decode(queues)) do
    local now, of_release = call('HINCRBY', P .. 'slots', queue, by), call('HINCRBY', P .. 'sr:' .. queue, rel, by)
    if of_release <= 0 then call('HDEL', P .. 'sr:' .. queue, rel) end
    if now <= 0 then
      call('HDEL', P .. 'slots', queue)
      call('SREM', P .. 'ready', queue)
    elseif now == by and call('EXISTS', P .. 'open:' .. queue) == 1 then
      call('SADD', P .. 'ready', queue)
    end
    changed = changed or of_release <= 0 or of_release == by
    RELEASES[queue] = nil
  end
  if changed then call('SUNIONSTORE', P .. 'stale', P .. 'stale', P .. 'waitjobs') end
end

-- Nothing more is handed over to this worker. What it runs, and its lease, are untouched. Called again: nothing to do.
local function take_slots(worker)
  local v = call('HMGET', P .. 'w:' .. worker, 'queues', 'slots', 'state', 'rel')
  if v[1] and not v[3] then add_slots(v[1], -(tonumber(v[2]) or 0), v[4] or '') end
end

-- Returns whether there are more.
local function refresh_stale()
  local names = call('SPOP', P .. 'stale', MOST_STALE)
  for _, name in ipairs(names) do
    local j = job(name)
    if j then refresh(j) end
  end
  return #names == MOST_STALE
end

-- Takes up to `limit` running runs from a worker that is gone. Returns {dead}, {recovered}, done: whether none is left.
-- counted: 'worker' if it counts as a crash of the runs. Whether a run had begun there is not known: so it had.
local function take_runs(worker, counted, limit)
  local dead, recovered = {}, {}
  local ids = call('SMEMBERS', P .. 'wr:' .. worker)
  for i = 1, math.min(#ids, limit) do
    local r = load_run(ids[i])
    if r and r.st == 'running' and r.own == worker then
      local what = recover(job(r.job), r, counted, true)
      if what == 'dead' then
        ending(r, 'crashed')
        dead[#dead + 1] = r.id
      elseif what == 'requeued' then
        recovered[#recovered + 1] = r.id
      end
    else
      call('SREM', P .. 'wr:' .. worker, ids[i])
    end
  end
  return dead, recovered, #ids <= limit
end

-- Returns its name and kind.
local function remove_worker(worker)
  local name, kind, release = unpack(call('HMGET', P .. 'w:' .. worker, 'name', 'kind', 'rel'))
  take_slots(worker)
  if release then count_worker(release, kind or '', -1) end
  if name and call('HGET', P .. 'wn', name) == worker then
    call('HDEL', P .. 'wn', name)
    call('ZREM', P .. 'names', name)
  end
  call('ZREM', P .. 'ws', worker)
  call('DEL', P .. 'w:' .. worker, P .. 'wr:' .. worker)
  return name, kind
end

-- For people: a worker died with so many runs.
local function note_death(name, kind, runs)
  call('LPUSH', P .. 'gone', cjson.encode({ name = name, kind = kind, at = NOW, runs = runs }))
  call('LTRIM', P .. 'gone', 0, 19)
end

-- How long the policies of a service hold that has no workers: it may be stopped while others that share the ledger go on.
local STOPPED_MS = 604800000

-- The releases in force, oldest first, as one string: those that live workers bring, and of a service without any those
-- that it had last.
local function live_releases()
  local live, served, names = {}, {}, {}
  local services = {}
  local flat = call('HGETALL', P .. 'services')
  for i = 1, #flat, 2 do services[flat[i]] = flat[i + 1] end
  for _, what in ipairs(call('HKEYS', P .. 'live')) do
    live[what] = true
    if string.sub(what, 1, 2) == 'r:' then served[services[string.sub(what, 3)] or ''] = true end
  end
  for _, rel in ipairs(call('ZRANGE', P .. 'relseq', 0, -1)) do
    if live['r:' .. rel] or (services[rel] and not served[services[rel]] and call('HEXISTS', P .. 'rel', rel) == 1
      and NOW - (tonumber(call('HGET', P .. 'stopped', rel) or nil) or NOW) < STOPPED_MS) then names[#names + 1] = rel end
  end
  return table.concat(names, ' ')
end

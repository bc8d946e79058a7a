-- Room and lanes: taking and freeing room, runs going into and out of their lanes.
-- Needs records, rules, index.

-- A keyed lane counts for its job only while it has both waiting runs and room.
local function touch_lane(j, key)
  if not j.keyed or j.w <= 0 then return end
  local room = has_room(j, key)
  for _, jd in ipairs({ false, true }) do
    local id, rank = first_in(lane_of(j, key, jd))
    if id and room then
      call('ZADD', index_of(j, jd), int(rank), key)
    else
      call('ZREM', index_of(j, jd), key)
    end
  end
end

local function block_conflicts(j, by)
  for _, name in ipairs(j.conf) do
    local k = J[name]
    if k then
      k.blk = k.blk + by
      k.dirty = true
    elseif k == nil then
      call('HINCRBY', P .. 'j:' .. name, 'blk', by)
    end
  end
  for _, name in ipairs(with_waiters(j.conf)) do reopen(job(name)) end
  for _, group in ipairs(j.groups) do
    call(by > 0 and 'SADD' or 'SREM', P .. 'held:' .. group, j.name)
    HELD[group] = nil
    reopen_group(group, j)
  end
end

local function take(j, key)
  j.n = j.n + 1
  j.dirty = true
  G.total = G.total + 1
  G.dirty = true
  if j.keyed then
    call('HINCRBY', P .. 'n:' .. j.name, key, 1)
    touch_lane(j, key)
  end
  if j.n == 1 then block_conflicts(j, 1) end
end

local function free(j, key)
  j.n = j.n - 1
  j.dirty = true
  G.total = G.total - 1
  G.dirty = true
  if j.keyed then
    if call('HINCRBY', P .. 'n:' .. j.name, key, -1) <= 0 then call('HDEL', P .. 'n:' .. j.name, key) end
    touch_lane(j, key)
  end
  if j.n == 0 then block_conflicts(j, -1) end
end

local function expires(r)
  if not r.ex then return end
  call('ZADD', P .. 'due', int(r.ex), r.id)
  look_at(r.ex)
end

-- A run of a job that others depend on comes before runs of theirs that arrive after it, until it starts.
local function comes_first(j, r)
  if not r.sd and #j.depd > 0 then call('ZADD', P .. 'sq:' .. j.name, int(r.rank % CLASS), r.id) end
end

local function no_longer_first(j, r)
  if #j.depd > 0 then call('ZREM', P .. 'sq:' .. j.name, r.id) end
end

local function enqueue(j, r, message)
  comes_first(j, r)
  r.st = 'waiting'
  save_run(r, nil, message)
  call('ZADD', P .. 'wait', int(r.rank), r.id)
  expires(r)
  if r.stray then
    -- In no lane: a sweep gives its message to a worker that has its job.
    call('ZADD', P .. 'astray', int(G.clk), r.id)
    j.z, j.dirty = j.z + 1, true
    return
  end
  if r.al then
    -- In no lane: lib/alone.lua looks after it.
    call('HSETNX', P .. 'alone', r.id, '')
    G.alone, G.dirty, j.z, j.dirty = G.alone + 1, true, j.z + 1, true
    return
  end
  call('ZADD', lane_of(j, r.key, r.jd), int(r.rank), r.id)
  j.w = j.w + 1
  if r.jd then j.wk = j.wk + 1 end
  j.dirty = true
  if j.w == 1 then call('SADD', P .. 'waitjobs', j.name) end
  touch_lane(j, r.key)
end

local function dequeue(j, r)
  call('ZREM', P .. 'wait', r.id)
  if r.ex then call('ZREM', P .. 'due', r.id) end
  if r.stray then
    call('ZREM', P .. 'astray', r.id)
    j.z, j.dirty = j.z - 1, true
    return
  end
  if r.al then
    call('HDEL', P .. 'alone', r.id)
    G.alone, G.dirty, j.z, j.dirty = G.alone - 1, true, j.z - 1, true
    return
  end
  call('ZREM', lane_of(j, r.key, r.jd), r.id)
  touch_lane(j, r.key)
  j.w = j.w - 1
  if r.jd then j.wk = j.wk - 1 end
  j.dirty = true
  if j.w == 0 then call('SREM', P .. 'waitjobs', j.name) end
end

-- The run is not to start before its time.
local function put_off(j, r, message)
  r.st = 'later'
  save_run(r, nil, message)
  call('ZADD', P .. 'later', int(r.eta), r.id)
  look_at(r.eta)
  expires(r)
  j.z, j.dirty = j.z + 1, true
end

local function no_longer_put_off(j, r)
  call('ZREM', P .. 'later', r.id)
  if r.ex then call('ZREM', P .. 'due', r.id) end
  j.z, j.dirty = j.z - 1, true
end

local function out(queue, by)
  if call('HINCRBY', P .. 'out', queue, by) <= 0 then call('HDEL', P .. 'out', queue) end
end

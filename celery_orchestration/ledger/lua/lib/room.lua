-- Room and lanes: taking and freeing room, runs going into and out of their lanes.
-- Needs records, rules, index.

-- A keyed lane counts for its job only while it has both waiting runs and room.
function touch_lane(j, key)
  if not j.policy.keyed or j.waiting <= 0 then return end
  local room = has_room(j, key)
  for _, checked in ipairs({ false, true }) do
    local id, rank = first_in(lane_of(j, key, checked))
    if id and room then
      call('ZADD', lane_heads_of(j, checked), int(rank), key)
    else
      call('ZREM', lane_heads_of(j, checked), key)
    end
  end
end

local function block_conflicts(j, by)
  for _, name in ipairs(j.policy.conflicts) do
    local k = J[name]
    if k then
      k.blocked = k.blocked + by
      k.dirty = true
    elseif k == nil then
      call('HINCRBY', K.job(name), 'blocked', by)
    end
  end
  for _, name in ipairs(with_waiters(j.policy.conflicts)) do reopen(job(name)) end
  for _, group in ipairs(j.policy.groups) do
    call(by > 0 and 'SADD' or 'SREM', K.group_holders(group), j.name)
    HELD[group] = nil
    reopen_group(group, j)
  end
end

function take(j, key)
  count_room(j, key, 1)
  touch_lane(j, key)
  if j.running == 1 then block_conflicts(j, 1) end
end

function free(j, key)
  count_room(j, key, -1)
  touch_lane(j, key)
  if j.running == 0 then block_conflicts(j, -1) end
end

function note_expiry(r)
  if not r.expires then return end
  call('ZADD', K.expiring, int(r.expires), r.id)
  note_due(r.expires)
end

-- If other jobs depend on this one, their runs that arrive after this run wait for it, until it starts.
local function comes_first(j, r)
  if not r.started and #j.policy.dependents > 0 then call('ZADD', K.unstarted(j.name), int(r.rank % CLASS), r.id) end
end

function no_longer_first(j, r)
  if #j.policy.dependents > 0 then call('ZREM', K.unstarted(j.name), r.id) end
end

function enqueue(j, r, message)
  comes_first(j, r)
  r.state = 'waiting'
  save_run(r, nil, message)
  call('ZADD', K.waiting, int(r.rank), r.id)
  note_expiry(r)
  if r.stray then
    -- In no lane: a sweep gives its message to a worker that has its job.
    call('ZADD', K.astray, int(G.clock), r.id)
    j.parked, j.dirty = j.parked + 1, true
    return
  end
  if r.alone then
    -- In no lane: lib/hand_over.lua looks after it.
    call('HSETNX', K.alone, r.id, '')
    G.alone, G.dirty, j.parked, j.dirty = G.alone + 1, true, j.parked + 1, true
    return
  end
  call('ZADD', lane_of(j, r.key, r.deps_checked), int(r.rank), r.id)
  j.waiting = j.waiting + 1
  if r.deps_checked then j.waiting_checked = j.waiting_checked + 1 end
  j.dirty = true
  if j.waiting == 1 then call('SADD', K.waiting_jobs, j.name) end
  touch_lane(j, r.key)
end

function dequeue(j, r)
  call('ZREM', K.waiting, r.id)
  if r.expires then call('ZREM', K.expiring, r.id) end
  if r.stray then
    call('ZREM', K.astray, r.id)
    j.parked, j.dirty = j.parked - 1, true
    return
  end
  if r.alone then
    call('HDEL', K.alone, r.id)
    G.alone, G.dirty, j.parked, j.dirty = G.alone - 1, true, j.parked - 1, true
    return
  end
  call('ZREM', lane_of(j, r.key, r.deps_checked), r.id)
  touch_lane(j, r.key)
  j.waiting = j.waiting - 1
  if r.deps_checked then j.waiting_checked = j.waiting_checked - 1 end
  j.dirty = true
  if j.waiting == 0 then call('SREM', K.waiting_jobs, j.name) end
end

-- The run waits for its time.
function put_off(j, r, message)
  r.state = 'later'
  save_run(r, nil, message)
  call('ZADD', K.later, int(r.eta), r.id)
  note_due(r.eta)
  note_expiry(r)
  j.parked, j.dirty = j.parked + 1, true
end

function no_longer_put_off(j, r)
  call('ZREM', K.later, r.id)
  if r.expires then call('ZREM', K.expiring, r.id) end
  j.parked, j.dirty = j.parked - 1, true
end

-- Changes the count of granted runs on their way to a queue.
function count_under_way(queue, by)
  if call('HINCRBY', K.under_way, queue, by) <= 0 then call('HDEL', K.under_way, queue) end
end

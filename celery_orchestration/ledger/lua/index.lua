-- The index, for speed: each job's first waiting run, whether it bars other jobs (bar), and which jobs may start
-- a run now (open). Needs records, rules.

-- The first waiting run of j that has room. checked: of the runs whose dependencies were checked, or else of the
-- others.
local function first_with_room(j, checked)
  local key, arrival = '', not checked and free_until(j) or nil
  if j.policy.keyed then
    key = first_until(lane_heads_of(j, checked), arrival)
    if not key then return nil end
  end
  local id, rank = first_until(lane_of(j, key, checked), arrival)
  return id and { id = id, key = key, rank = rank, deps_checked = checked }
end

-- The waiting run of j that goes first: the best one that has room. If that one has unmet dependencies: the best one whose
-- dependencies were checked before. While the job has a probe run: only that run, or a forced one.
function head(j)
  if j.waiting <= 0 or (not j.policy.keyed and j.policy.max_running and j.running >= j.policy.max_running) then return nil end
  local new = j.waiting > j.waiting_checked and first_with_room(j, false) or nil
  local checked = j.waiting_checked > 0 and first_with_room(j, true) or nil
  if j.disabled and j.probe and j.probe ~= '' then
    local r = load_run(j.probe)
    if r and r.state == 'waiting' and not r.alone and has_room(j, r.key) and not (checked and is_forced(checked.rank)) then
      checked = { id = r.id, key = r.key, rank = r.rank, deps_checked = true }
      new = new and is_forced(new.rank) and new or nil
    end
  end
  if new and checked then
    return new.rank < checked.rank and not unmet(j, new.rank) and new or checked
  end
  return new or checked
end

function slots_of(queue)
  return tonumber(call('HGET', K.slots, queue)) or 0
end

-- Releases of the live workers that serve a queue, or nil if that is not known (an older version of the package counts
-- only slots). Kept for this call.
RELEASES = nil

on_call(function() RELEASES = {} end)

local function releases_at(queue)
  if RELEASES[queue] == nil then
    local flat, sum, found = call('HGETALL', K.release_slots(queue)), 0, {}
    for i = 1, #flat, 2 do
      sum = sum + tonumber(flat[i + 1])
      found[#found + 1] = flat[i]
    end
    table.sort(found)
    RELEASES[queue] = sum == slots_of(queue) and found or false
  end
  return RELEASES[queue] or nil
end

-- Which of the workers that serve a queue have a job: 'all', also if nobody serves it; the releases that have it, as one
-- text; or nil: none has it.
function have_job(name, queue)
  local rels = releases_at(queue)
  if not rels then return 'all' end
  local having = {}
  for _, rel in ipairs(rels) do
    if call('SISMEMBER', K.release_jobs(rel), name) == 1 then having[#having + 1] = rel end
  end
  if #having == #rels then return 'all' end
  return having[1] and table.concat(having, ' ')
end

-- Where a run is handed over: the pool's granted queue if somebody who has its job serves it, else its own queue.
function destination(r)
  local granted = r.granted_queue
  if granted ~= '' and slots_of(granted) > 0 and have_job(r.job, granted) then return granted end
  return r.queue
end

-- The open set of a job on a queue, or nil: no worker there has the job.
function open_set(name, queue)
  local who = have_job(name, queue)
  if who == 'all' or not who then return who and queue end
  return queue .. '\n' .. who
end

-- The reason 'nobody' if no live worker on this queue has the job, else nil.
function unclaimed(j, queue)
  if j.policy.hash ~= 'gone' and have_job(j.name, queue) then return nil end
  return { 'nobody', j.name, call('HGET', K.job(j.name), 'seen') or '' }
end

-- The record of a waiting run is gone, or could not be read: the run is lost, and must not keep others waiting.
function drop_lost(j, h)
  local lane = lane_of(j, h.key, h.deps_checked)
  audit('ledger', 'lost', h.id, j.name)
  call('ZREM', lane, h.id)
  call('ZREM', K.waiting, h.id)
  call('ZREM', K.unstarted(j.name), h.id)
  j.waiting, j.waiting_checked, j.dirty = j.waiting - 1, j.waiting_checked - (h.deps_checked and 1 or 0), true
  if j.waiting == 0 then call('SREM', K.waiting_jobs, j.name) end
  local _, rank = first_in(lane)
  if j.policy.keyed and rank then call('ZADD', lane_heads_of(j, h.deps_checked), int(rank), h.key) end
  if j.policy.keyed and not rank then call('ZREM', lane_heads_of(j, h.deps_checked), h.key) end
  refresh(j)
  refresh_dependents(j)
end

-- Puts j into the right open set, or takes it out. That depends on j, and on the room and bars of the jobs
-- that it conflicts with. h: its head, if it bars others; moved: whether its bar_rank has changed.
local function update_open_set(j, h, moved)
  local at = nil
  if h and not is_blocked(j) and not barred(j, h.rank) then
    local r = load_run(h.id)
    if not r then return drop_lost(j, h) end
    at = open_set(j.name, destination(r))
  end
  if j.open_set and j.open_set ~= at then
    call('ZREM', K.open(j.open_set), j.name)
    if call('EXISTS', K.open(j.open_set)) == 0 then
      call('SREM', K.open_sets, j.open_set)
      call('SREM', K.ready_sets, j.open_set)
    end
  end
  if at and (moved or j.open_set ~= at) then
    call('ZADD', K.open(at), int(j.bar_rank), j.name)
    call('SADD', K.open_sets, at)
    if slots_of(queue_of(at)) > 0 then call('SADD', K.ready_sets, at) end
  end
  if j.open_set ~= at then
    j.open_set = at
    j.dirty = true
  end
end

function reopen(j)
  update_open_set(j, j.bar_rank and not is_blocked(j) and head(j) or nil, false)
end

-- Only the first job of a group may be open. So when j joins, leaves or changes its rank, only the first of the other
-- jobs can change.
function reopen_group(group, j)
  local name = first_of_group(group, j.name)
  if name then reopen(job(name)) end
end

-- Very many jobs may depend on one. When it starts or ends, `most` of them are refreshed. Each later hand-over
-- refreshes as many, until all are done. left: how many this call may still refresh.
REFRESHES = { most = 100 }

on_call(function() REFRESHES.left = REFRESHES.most end)

-- Must waiting runs of j stay until all its dependents are refreshed? Dependents go before its next run.
local function waits_for_dependents(j)
  return #j.policy.dependents > REFRESHES.most and call('SISMEMBER', K.jobs_with_unseen_dependents, j.name) == 1
end

-- Evaluates the head of j again; updates the jobs it conflicts with if its bar changed.
function refresh(j)
  local h = head(j)
  local bar_rank = nil
  if h then
    local bars, rule, opens = bars_others(j, h)
    if bars and not waits_for_dependents(j) then bar_rank = h.rank end
    if opens then set_timer(j.name, rule, opens) end
  end
  local changed = bar_rank ~= j.bar_rank
  if changed then
    j.bar_rank = bar_rank
    j.dirty = true
    if bar_rank then call('ZADD', K.bars, int(bar_rank), j.name) else call('ZREM', K.bars, j.name) end
    for _, group in ipairs(j.policy.groups) do
      if bar_rank then
        call('ZADD', K.group_bars(group), int(bar_rank), j.name)
      else
        call('ZREM', K.group_bars(group), j.name)
      end
    end
  end
  update_open_set(j, bar_rank and h or nil, changed)
  if changed then
    for _, name in ipairs(with_waiters(j.policy.conflicts)) do reopen(job(name)) end
    for _, group in ipairs(j.policy.groups) do reopen_group(group, j) end
  end
end

function refresh_dependents(j)
  local names = with_waiters(j.policy.dependents)
  local now = math.min(#names, REFRESHES.left)
  REFRESHES.left = REFRESHES.left - now
  for i = 1, now do refresh(job(names[i])) end
  for from = now + 1, #names, 1000 do
    call('SADD', K.unseen_jobs, unpack(names, from, math.min(from + 999, #names)))
  end
  if #names > now and call('SADD', K.jobs_with_unseen_dependents, j.name) == 1 then refresh(j) end
end

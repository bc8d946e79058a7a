-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over workers memory
--
-- install_policies: installs the merged policies of all releases in force, a part of them in each call. A job that no
-- release defines or refers to any more is deleted, if it has no runs.
--
-- ARGV  releases they were merged from, global cap or '', 1 if this is the last part, jobs whose policy differs from
--       the installed one (JSON: name -> policy, as schema.lua describes it; conflicts and dependents only name jobs
--       that are installed by the last part, depends_on also external ones), names of jobs that no release defines any
--       more (JSON)
-- Returns  'ok' | 'stale' (other releases are live now: merge again; nothing changed)
-- Errors   none
-- Called again: the same.

local GONE_RELEASES = 20

allow_when_full()

if live_releases() ~= ARGV[1] then return 'stale' end
local last, wanted, unwanted = ARGV[3] == '1', cjson.decode(ARGV[4]), cjson.decode(ARGV[5])

-- The room keys of a job that have waiting runs or room taken. K.room has those with waiting runs and no room left.
local function keys_of(j)
  local keys = { [''] = true }
  if j.policy.keyed then
    for _, checked in ipairs({ false, true }) do
      for _, key in ipairs(call('ZRANGE', lane_heads_of(j, checked), 0, -1)) do keys[key] = true end
    end
    for _, key in ipairs(call('HKEYS', K.room(j.name))) do keys[key] = true end
  end
  return keys
end

-- If a job no longer has room keys, all its waiting runs go into one lane. If it has them now, its runs so far stay in
-- one lane.
local function relane(j, keyed)
  local keys = keys_of(j)
  if j.policy.keyed and not keyed then
    for key in pairs(keys) do
      for _, checked in ipairs({ false, true }) do
        local e = call('ZRANGE', lane_of(j, key, checked), 0, -1, 'WITHSCORES')
        for i = 1, key == '' and 0 or #e, 2 do
          call('ZADD', lane_of(j, '', checked), e[i + 1], e[i])
          local r = load_run(e[i])
          if r then
            r.key = ''
            save_run(r)
          end
        end
        if key ~= '' then call('DEL', lane_of(j, key, checked)) end
      end
    end
    call('DEL', K.lane_heads(j.name), K.lane_heads_checked(j.name), K.room(j.name))
    local holders = call('ZRANGE', K.deadlines, 0, -1)
    for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do
      for _, id in ipairs(call('SMEMBERS', K.worker_runs(worker))) do holders[#holders + 1] = id end
    end
    for _, id in ipairs(holders) do
      local r = load_run(id)
      if r and r.job == j.name and r.key ~= '' then
        r.key = ''
        save_run(r)
      end
    end
  elseif keyed and not j.policy.keyed and j.running > 0 then
    call('HSET', K.room(j.name), '', j.running)
  end
  return keys
end

-- The latest release that had a job, for people.
local function note_last_release(j)
  if j.policy.hash == 'gone' then return end
  for _, rel in ipairs(call('ZREVRANGE', K.release_order, 0, -1)) do
    if call('SISMEMBER', K.release_jobs(rel), j.name) == 1 then return call('HSET', K.job(j.name), 'seen', rel) end
  end
end

-- Jobs for which `blocked` is counted again: a new policy may change the conflicts of both jobs.
local affected = {}

local function affects(j)
  affected[j.name] = true
  for _, name in ipairs(j.policy.conflicts) do affected[name] = true end
end

local function leave_groups(j)
  for _, group in ipairs(j.policy.groups) do
    call('SREM', K.group_holders(group), j.name)
    call('ZREM', K.group_bars(group), j.name)
    if call('HINCRBY', K.groups, group, -1) <= 0 then call('HDEL', K.groups, group) end
    HELD[group] = nil
    reopen_group(group, j)
  end
end

local function join_groups(j)
  for _, group in ipairs(j.policy.groups) do
    call('HINCRBY', K.groups, group, 1)
    if j.running > 0 then call('SADD', K.group_holders(group), j.name) end
    if j.bar_rank then call('ZADD', K.group_bars(group), int(j.bar_rank), j.name) end
    HELD[group] = nil
    reopen_group(group, j)
  end
end

-- The job was disabled because its record was lost. It is enabled again, unless somebody had disabled it before.
local function enable_again(j)
  if call('SISMEMBER', K.disabled_jobs, j.name) == 1 then return end
  call('HDEL', K.job(j.name), 'disabled')
  j.disabled = nil
end

-- An option without a value comes as JSON's null.
local function drop_nulls(options)
  for option, value in pairs(options) do
    if value == cjson.null then options[option] = nil end
  end
end

local relaned = {}
for name, p in pairs(wanted) do
  local j = job(name)
  if not j or j.policy.hash ~= p.hash then
    drop_nulls(p)
    for _, dep in ipairs(p.depends_on) do drop_nulls(dep) end
    if j then
      affects(j)
      leave_groups(j)
      if j.policy.keyed ~= p.keyed or j.policy.max_running ~= p.max_running then relaned[name] = relane(j, p.keyed) end
      flush() -- saves its state: the job is read again with its new policy
    end
    if #p.dependents == 0 then call('DEL', K.unstarted(name)) end
    save_policy(name, p)
    if j and j.policy.hash == 'corrupt' then enable_again(j) end
    call('SADD', K.jobs, name)
    j = job(name)
    affects(j)
    join_groups(j)
    if j.disabled and cjson.decode(j.disabled).by == 'failures' and not j.probe and not timer_of(name, 'cool_down') then
      cool_down(j)
    end
  end
end

for _, name in ipairs(unwanted) do
  local j = job(name)
  if j then
    affects(j)
    leave_groups(j)
    if j.policy.hash == 'corrupt' then enable_again(j) end
    local has_runs = j.running > 0 or j.busy > 0 or j.waiting > 0 or j.parked > 0
    if not has_runs and not j.disabled and call('ZCARD', K.job_dead_letters(name)) == 0 then
      STATS.forget(name)
      call('DEL', K.job(name), K.observed(name), K.history(name), K.unstarted(name))
      clear_timer(name, 'cool_down')
      call('SREM', K.jobs, name)
      call('HDEL', K.installed, name)
      J[name] = false
    else
      -- No release defines it, but it has runs: they go on without conflicts and dependencies.
      note_last_release(j)
      local policy = {}
      for field, value in pairs(j.policy) do policy[field] = value end
      policy.conflicts, policy.groups, policy.depends_on, policy.dependents, policy.hash = {}, {}, {}, {}, 'gone'
      call('DEL', K.unstarted(name))
      flush()
      save_policy(name, policy)
    end
  else
    call('SREM', K.jobs, name)
    call('HDEL', K.installed, name)
  end
end

local names = {}
for name in pairs(affected) do
  local j = job(name)
  if j then
    names[#names + 1] = name
    local blocked = 0
    for _, other in ipairs(j.policy.conflicts) do
      local k = job(other)
      if k and k.running > 0 then blocked = blocked + 1 end
    end
    if blocked ~= j.blocked then j.blocked, j.dirty = blocked, true end
    for key in pairs(relaned[name] or {}) do touch_lane(j, key) end
  end
end
for _, name in ipairs(with_waiters(names)) do refresh(job(name)) end

if not last then
  flush()
  return 'ok'
end

-- Releases that are gone are remembered for a while: one that starts again must not count as the newest.
local gone = {}
for _, name in ipairs(call('ZRANGE', K.release_order, 0, -1)) do
  if not string.find(' ' .. ARGV[1] .. ' ', ' ' .. name .. ' ', 1, true) then
    call('HDEL', K.releases, name)
    call('HDEL', K.services, name)
    call('HDEL', K.stopped_releases, name)
    call('DEL', K.release_jobs(name))
    gone[#gone + 1] = name
  end
end
for i = 1, #gone - GONE_RELEASES do call('ZREM', K.release_order, gone[i]) end
call('HSET', K.ledger, 'releases', ARGV[1], 'max_running', ARGV[2])
G.max_running = tonumber(ARGV[2])
-- The gate may have changed also for jobs without a new policy.
call('SUNIONSTORE', K.stale_jobs, K.stale_jobs, K.waiting_jobs)
refresh_stale()
flush()
return 'ok'

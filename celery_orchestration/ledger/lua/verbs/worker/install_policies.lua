-- uses: schema records statistics rules index room transitions entries hand_over workers memory
--
-- install_policies: puts the merged policies of all releases in force into effect, a part of them in each call. Jobs that nobody defines
-- or refers to any more and that have no runs go away.
--
-- ARGV  releases they were merged from, global cap or '', 1 if this is the last part, jobs whose policy is another than the
--       one that is installed (JSON: name -> {hash, cap, keyed, conf, groups, deps, depd, crash, recmax, fmax, cool, drop};
--       conf, deps and depd only name jobs that are installed by the last part, or, for deps, external ones), names of
--       jobs that nobody defines any more (JSON)
-- Returns  'ok' | 'stale' (other releases are live now: merge again; nothing changed)
-- Called again: the same.

local GONE_RELEASES = 20

make_way()

if live_releases() ~= ARGV[1] then return 'stale' end
local last, wanted, unwanted = ARGV[3] == '1', cjson.decode(ARGV[4]), cjson.decode(ARGV[5])

-- The room keys of a job that has waiting runs or room taken. Those with waiting runs and no room are in n:.
local function keys_of(j)
  local keys = { [''] = true }
  if j.keyed then
    for _, index in ipairs({ 'jl:', 'jk:' }) do
      for _, key in ipairs(call('ZRANGE', P .. index .. j.name, 0, -1)) do keys[key] = true end
    end
    for _, key in ipairs(call('HKEYS', P .. 'n:' .. j.name)) do keys[key] = true end
  end
  return keys
end

-- A job lost its room keys: all its waiting runs into one lane. A job got them: its runs so far are one lane.
local function relane(j, keyed)
  local keys = keys_of(j)
  if j.keyed and not keyed then
    for key in pairs(keys) do
      for _, jd in ipairs({ false, true }) do
        local e = call('ZRANGE', lane_of(j, key, jd), 0, -1, 'WITHSCORES')
        for i = 1, key == '' and 0 or #e, 2 do
          call('ZADD', lane_of(j, '', jd), e[i + 1], e[i])
          local r = load_run(e[i])
          if r then
            r.key = ''
            save_run(r)
          end
        end
        if key ~= '' then call('DEL', lane_of(j, key, jd)) end
      end
    end
    call('DEL', P .. 'jl:' .. j.name, P .. 'jk:' .. j.name, P .. 'n:' .. j.name)
    local holders = call('ZRANGE', P .. 'gr', 0, -1)
    for _, worker in ipairs(call('ZRANGE', P .. 'ws', 0, -1)) do
      for _, id in ipairs(call('SMEMBERS', P .. 'wr:' .. worker)) do holders[#holders + 1] = id end
    end
    for _, id in ipairs(holders) do
      local r = load_run(id)
      if r and r.job == j.name and r.key ~= '' then
        r.key = ''
        save_run(r)
      end
    end
  elseif keyed and not j.keyed and j.n > 0 then
    call('HSET', P .. 'n:' .. j.name, '', j.n)
  end
  return keys
end

-- The latest release that had a job, for people.
local function note_last_release(j)
  if j.hash == 'gone' then return end
  for _, rel in ipairs(call('ZREVRANGE', P .. 'relseq', 0, -1)) do
    if call('SISMEMBER', P .. 'rj:' .. rel, j.name) == 1 then return call('HSET', P .. 'j:' .. j.name, 'seen', rel) end
  end
end

-- Jobs of which it is counted anew who of those they conflict with holds room: that may have changed for both sides.
local affected = {}

local function affects(j)
  affected[j.name] = true
  for _, name in ipairs(j.conf) do affected[name] = true end
end

local function leave_groups(j)
  for _, group in ipairs(j.groups) do
    call('SREM', P .. 'held:' .. group, j.name)
    call('ZREM', P .. 'bar:' .. group, j.name)
    if call('HINCRBY', P .. 'groups', group, -1) <= 0 then call('HDEL', P .. 'groups', group) end
    HELD[group] = nil
    reopen_group(group, j)
  end
end

local function join_groups(j)
  for _, group in ipairs(j.groups) do
    call('HINCRBY', P .. 'groups', group, 1)
    if j.n > 0 then call('SADD', P .. 'held:' .. group, j.name) end
    if j.br then call('ZADD', P .. 'bar:' .. group, int(j.br), j.name) end
    HELD[group] = nil
    reopen_group(group, j)
  end
end

-- It was disabled only because its record was lost; unless somebody had disabled it before.
local function enable_again(j)
  if call('SISMEMBER', P .. 'off', j.name) == 1 then return end
  call('HDEL', P .. 'j:' .. j.name, 'off')
  j.off = nil
end

local relaned = {}
for name, p in pairs(wanted) do
  local j = job(name)
  if not j or j.hash ~= p.hash then
    for _, number in ipairs({ 'cap', 'fmax', 'cool' }) do
      if type(p[number]) ~= 'number' then p[number] = nil end
    end
    for _, dep in ipairs(p.deps) do
      if type(dep.max_age_ms) ~= 'number' then dep.max_age_ms = nil end
    end
    if j then
      affects(j)
      leave_groups(j)
      if j.keyed ~= p.keyed or j.cap ~= p.cap then relaned[name] = relane(j, p.keyed) end
      flush() -- what is known of it so far: it is read again with its new policy
    end
    if #p.depd == 0 then call('DEL', P .. 'sq:' .. name) end
    save_policy(name, p)
    if j and j.hash == 'corrupt' then enable_again(j) end
    call('SADD', P .. 'jobs', name)
    j = job(name)
    affects(j)
    join_groups(j)
    if j.off and cjson.decode(j.off).by == 'failures' and not j.probe and not call('ZSCORE', P .. 'cool', name) then
      cool_down(j)
    end
  end
end

for _, name in ipairs(unwanted) do
  local j = job(name)
  if j then
    affects(j)
    leave_groups(j)
    if j.hash == 'corrupt' then enable_again(j) end
    if j.n == 0 and j.busy == 0 and j.w == 0 and j.z == 0 and not j.off and call('ZCARD', P .. 'dj:' .. name) == 0 then
      STATS.forget(name)
      call('DEL', P .. 'j:' .. name, P .. 'ob:' .. name, P .. 'h:' .. name, P .. 'sq:' .. name)
      call('ZREM', P .. 'cool', name)
      call('SREM', P .. 'jobs', name)
      call('HDEL', P .. 'installed', name)
      J[name] = false
    else
      -- Nobody defines it, but it has runs: they go on, unbound.
      note_last_release(j)
      j.conf, j.groups, j.deps, j.depd, j.hash = {}, {}, {}, {}, 'gone'
      call('DEL', P .. 'sq:' .. name)
      flush()
      save_policy(name, j)
    end
  else
    call('SREM', P .. 'jobs', name)
    call('HDEL', P .. 'installed', name)
  end
end

local names = {}
for name in pairs(affected) do
  local j = job(name)
  if j then
    names[#names + 1] = name
    local blk = 0
    for _, other in ipairs(j.conf) do
      local k = job(other)
      if k and k.n > 0 then blk = blk + 1 end
    end
    if blk ~= j.blk then j.blk, j.dirty = blk, true end
    for key in pairs(relaned[name] or {}) do touch_lane(j, key) end
  end
end
for _, name in ipairs(with_waiters(names)) do refresh(job(name)) end

if not last then
  flush()
  return 'ok'
end

-- That a release was there before is remembered for a while: should it start again it is not the newest.
local gone = {}
for _, name in ipairs(call('ZRANGE', P .. 'relseq', 0, -1)) do
  if not string.find(' ' .. ARGV[1] .. ' ', ' ' .. name .. ' ', 1, true) then
    call('HDEL', P .. 'rel', name)
    call('HDEL', P .. 'services', name)
    call('HDEL', P .. 'stopped', name)
    call('DEL', P .. 'rj:' .. name)
    gone[#gone + 1] = name
  end
end
for i = 1, #gone - GONE_RELEASES do call('ZREM', P .. 'relseq', gone[i]) end
call('HSET', P .. 'g', 'releases', ARGV[1], 'cap', ARGV[2])
G.cap = tonumber(ARGV[2])
-- What runs wait for may have changed for those that have no new policy themselves.
call('SUNIONSTORE', P .. 'stale', P .. 'stale', P .. 'waitjobs')
refresh_stale()
flush()
return 'ok'

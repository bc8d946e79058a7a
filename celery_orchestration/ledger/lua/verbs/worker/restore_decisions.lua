-- uses: schema records lanes rules statistics index room ended_runs transitions entries memory
--
-- restore_decisions: the ledger was emptied, or lacks the last decisions, because it failed over to a replica that was
-- behind. A node reports what it remembers: the pause, disabled jobs, entries that people added or paused. This is
-- possible only until the gate opens. If several nodes report, the one that knows the latest decision counts. Decisions
-- that people made after the ledger was emptied override all of them. A decision that was undone, but is back after a
-- failover, stays: people have to undo it again.
--
-- ARGV  name of the node, epoch, and what read_decisions returned last: the number, the document (JSON)
-- Returns  how many decisions were restored, or withdrawn again because this node knows better
-- Errors   none
-- Called again: 0.
local who, epoch, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
if epoch ~= G.epoch or G.clock >= G.opens then return 0 end
local before = tonumber(call('HGET', K.ledger, 'restored') or nil)
if before and before >= number then return 0 end -- another node knew as much, or more
local why, had = unpack(call('HMGET', K.ledger, 'why', 'had'))
if why == 'moved' and (tonumber(had or nil) or 0) >= number then return 0 end -- nothing was forgotten
allow_when_full()
for _, key in ipairs({ 'decided', 'disabled_jobs', 'added_entries', 'paused_entries', 'entries', 'changed_entries' }) do
  ensure_type(key)
end
local reported, wanted, changed = cjson.decode(ARGV[4]), {}, {}

-- Whether this decision is restored: people may have decided otherwise meanwhile.
local function is_wanted(subject)
  wanted[subject] = true
  if call('HGET', K.decided, subject) == 'people' then return false end
  call('HSET', K.decided, subject, 'restored')
  return true
end

-- The policy of the job may come later, with a release that is not live yet.
local function set_job(name, off)
  local j = job(name)
  if off then
    call('HSET', K.job(name), 'disabled', off)
    call('SADD', K.disabled_jobs, name)
  else
    call('HDEL', K.job(name), 'disabled')
    call('SREM', K.disabled_jobs, name)
    clear_timer(name, 'cool_down')
  end
  if not j then return end
  j.disabled, j.probe, j.dirty = off, nil, true
  if off and cjson.decode(off).by == 'failures' then cool_down(j) end
  refresh(j)
  refresh_dependents(j)
end

-- The entry begins anew: its earlier fires are forgotten.
local function set_entry(one)
  local key = K.entry(one.entry)
  local there = load_entry(one.entry)
  if not there then
    call('HSET', key, 'generation', int(tick()), 'last', int(NOW), 'source', one.written and 'people' or 'code')
    call('ZADD', K.entries, int(NOW), one.entry)
  end
  for _, field in ipairs({ 'name', 'task', 'job', 'every', 'written', 'paused' }) do
    if one[field] then call('HSET', key, field, one[field]) end
  end
  if one.written then call('SADD', K.added_entries, one.entry) end
  if one.paused then call('SADD', K.paused_entries, one.entry) end
  note_change(one.entry)
end

local function forget_entry(entry)
  local key = K.entry(entry)
  call('SREM', K.paused_entries, entry)
  if call('SREM', K.added_entries, entry) == 1 then
    call('DEL', key)
    call('ZREM', K.entries, entry)
  else
    call('HDEL', key, 'paused')
  end
  note_change(entry)
end

local function set_pause(pause)
  G.paused = pause ~= nil
  call('HSET', K.ledger, 'paused', pause and '1' or '0', 'pause', pause or '')
end

local function note(what)
  changed[#changed + 1] = what
end

if reported.pause and is_wanted('pause') then
  set_pause(reported.pause)
  note('the pause')
end
for _, one in ipairs(reported.jobs) do
  if is_wanted('job:' .. one.name) then
    set_job(one.name, one.disabled)
    note(one.name)
  end
end
for _, one in ipairs(reported.entries) do
  if is_wanted('entry:' .. one.entry) then
    set_entry(one)
    note(one.name)
  end
end

-- A node that knew less had restored these decisions: they had been undone before the ledger was emptied.
local flat = call('HGETALL', K.decided)
for i = 1, #flat, 2 do
  local subject = flat[i]
  if flat[i + 1] == 'restored' and not wanted[subject] then
    if subject == 'pause' then
      set_pause(nil)
    elseif string.find(subject, '^job:') then
      set_job(string.sub(subject, 5), nil)
    else
      forget_entry(string.sub(subject, 7))
    end
    call('HDEL', K.decided, subject)
    note('not ' .. subject)
  end
end

-- The number goes on rising, so that all nodes refresh their copies.
local now = tonumber(call('HGET', K.ledger, 'decisions') or nil) or 0
call('HSET', K.ledger, 'decisions', int(math.max(now, number) + 1), 'restored', int(number),
  'left_out', reported.left_out)
if #changed > 0 then
  audit(who, 'restore', '', #changed <= 10 and table.concat(changed, ', ')
    or table.concat(changed, ', ', 1, 10) .. ' and ' .. (#changed - 10) .. ' more')
end
flush()
return #changed

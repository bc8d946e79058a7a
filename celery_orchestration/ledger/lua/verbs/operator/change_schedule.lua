-- uses: schema records lanes rules statistics index room ended_runs transitions entries term memory
--
-- change_schedule: a person changes the schedule.
--
-- ARGV  who, add | update | remove | pause | resume, entry, name, why; for add and update: task, job or '', when (for
--       people), what was written (JSON); for update: the generation that was changed
-- Returns  ok | exists (add) | none | code (update, remove: the entry is in the leader's code) | changed (update:
--          somebody changed it meanwhile) | corrupt (only remove is possible)
-- Errors   none
-- Called again: add says exists, remove says none, update says changed; the others the same.
local who, what, entry, name, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = K.entry(entry)
ensure_type('entries')
ensure_type('added_entries')
ensure_type('changed_entries')
ensure_type('paused_entries')
local e = load_entry(entry)
local found = call('EXISTS', key) == 1
local code = e and call('HGET', key, 'source') == 'code'
local left = code and is_left(entry) -- no leader has it any more
if what == 'add' then
  if found and not left then return 'exists' end
elseif not found and not call('ZSCORE', K.entries, entry) then
  return 'none'
elseif what ~= 'remove' and not e then
  return 'corrupt'
elseif code and what == 'remove' and not left and call('SISMEMBER', K.added_entries, entry) == 1 then
  what = 'forget'
elseif code and (what == 'update' or what == 'remove' and not left) then
  return 'code'
elseif what == 'update' and e.generation ~= ARGV[10] then
  return 'changed'
elseif what == 'resume' and not e.paused then
  return 'ok'
end

if what ~= 'add' then allow_when_full() end
if what == 'remove' then
  call('DEL', key)
  call('ZREM', K.entries, entry)
  call('SREM', K.added_entries, entry)
  call('SREM', K.paused_entries, entry)
elseif what == 'forget' then
  -- The code has the entry now: only what people wrote is deleted.
  call('HDEL', key, 'written')
  call('SREM', K.added_entries, entry)
  what = 'remove'
elseif what == 'pause' then
  call('HSET', key, 'paused', cjson.encode({ by = who, why = why, at = NOW }))
  call('HDEL', key, 'next')
  call('SADD', K.paused_entries, entry)
elseif what == 'resume' then
  -- Due times during the pause do not count as missed.
  call('HDEL', key, 'paused')
  call('SREM', K.paused_entries, entry)
  call('HSET', key, 'last', int(is_ahead(e) and NOW or math.max(NOW, e.last)))
else
  call('HSET', key, 'name', name, 'generation', int(tick()), 'last', int(NOW), 'source', 'people', 'task', ARGV[6], 'every',
    ARGV[8], 'written', ARGV[9])
  if ARGV[7] ~= '' then call('HSET', key, 'job', ARGV[7]) else call('HDEL', key, 'job') end
  call('HDEL', key, 'next')
  call('ZADD', K.entries, int(NOW), entry)
  call('SADD', K.added_entries, entry)
end
note_change(entry)
decide('entry:' .. entry, who)
audit(who, what .. ' entry', name, why)
flush()
return 'ok'

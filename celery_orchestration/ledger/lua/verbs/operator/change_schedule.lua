-- uses: schema records lanes rules statistics index room transitions entries term memory
--
-- change_schedule: a person changes the schedule.
--
-- ARGV  who, add | update | remove | pause | resume, entry, name, why; for add and update: task, job or '', when (for
--       people), what was written (JSON); for update: the generation that was changed
-- Returns  ok | exists (add) | none | code (update, remove: the code of who leads has it) | changed (update: somebody else was
--          faster) | corrupt (all but remove, which is the way out)
-- Errors   none
-- Called again: add says exists, remove says none, update says changed; the others the same.
local who, what, entry, name, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local key = K.entry(entry)
see_to('entries')
see_to('added_entries')
see_to('changed_entries')
see_to('paused_entries')
local e = load_entry(entry)
local found = call('EXISTS', key) == 1
local code = e and call('HGET', key, 'source') == 'code'
local left = code and is_left(entry) -- it is nobody's any more
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

if what ~= 'add' then make_way() end
if what == 'remove' then
  call('DEL', key)
  call('ZREM', K.entries, entry)
  call('SREM', K.added_entries, entry)
  call('SREM', K.paused_entries, entry)
elseif what == 'forget' then
  -- The code has it now: what people wrote goes.
  call('HDEL', key, 'written')
  call('SREM', K.added_entries, entry)
  what = 'remove'
elseif what == 'pause' then
  call('HSET', key, 'paused', cjson.encode({ by = who, why = why, at = NOW }))
  call('HDEL', key, 'next')
  call('SADD', K.paused_entries, entry)
elseif what == 'resume' then
  -- What was due meanwhile was not wanted.
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

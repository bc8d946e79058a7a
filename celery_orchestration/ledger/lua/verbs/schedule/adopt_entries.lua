-- uses: schema records lanes rules statistics index room ended_runs transitions entries term memory
--
-- adopt_entries: a leader reports its entries, and learns how far they are. An entry that is new, or whose schedule has
-- changed in the code, begins now: its first due time comes later. If people added an entry and the code has it now,
-- the code counts; what people wrote is kept, in case the code no longer has it.
--
-- ARGV  term, the time at which new entries begin (ms; the same in all calls for one schedule),
--       then of each an adoption: job or '', every (when, for people), source (code | people), last_ms (the last fire that the
--         leader knows of, or ''), and of a continuous entry gap_ms (between two runs, or ''), message, queue,
--         granted_queue, key, priority
-- Returns  { ok | term (another one leads: nothing changed),
--            { of each: {generation, last fire (ms), 1 if it is paused} | {corrupt, what is wrong} | {gone} (people
--            removed it) } }
-- Errors   none
-- Called again: the same.
if not is_term(ARGV[1]) then return { 'term', {} } end
allow_when_full()
ensure_type('entries')
local found = {}

for _, a in ipairs(read_arguments('adoption', 3)) do
  local entry, source = a.entry, a.source
  local e, problem = load_entry(entry)
  if problem then
    found[#found + 1] = { 'corrupt', problem }
  elseif not e and source == 'people' then
    found[#found + 1] = { 'gone' }
  else
    local key = K.entry(entry)
    local before = e and source == 'code' and call('HGET', key, 'every')
    if not e or is_ahead(e) or (before and before ~= a.every) then
      -- It is new; or the code has another schedule now, whose first due time is still to come; or Redis's clock was set
      -- back.
      e = { generation = int(tick()), last = not e and a.last_ms or tonumber(ARGV[2]), paused = e and e.paused,
        gap = e and e.gap }
      call('HSET', key, 'generation', e.generation, 'last', int(e.last))
    end
    call('HSET', key, 'name', a.name, 'task', a.task, 'every', a.every, 'source', source)
    if a.job ~= '' then call('HSET', key, 'job', a.job) else call('HDEL', key, 'job') end
    if a.gap_ms ~= '' then
      call('HSET', key, 'gap', a.gap_ms, 'message', a.message, 'queue', a.queue, 'granted_queue', a.granted_queue, 'key', a.key,
        'priority', a.priority)
    elseif e.gap then
      call('HDEL', key, 'gap', 'message', 'queue', 'granted_queue', 'key', 'priority')
    end
    call('ZADD', K.entries, int(NOW), entry)
    found[#found + 1] = { e.generation, int(e.last), e.paused and 1 or 0 }
  end
end

flush()
return { 'ok', found }

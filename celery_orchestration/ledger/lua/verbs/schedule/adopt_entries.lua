-- uses: schema records statistics rules index room transitions entries term memory
--
-- adopt_entries: a leader tells which entries there are, and hears how far they are. One that is new, or whose schedule the code
-- has changed, begins now: its first due time comes after that. One that people added and that the code has now is the
-- code's; what people wrote is kept, for when the code has it no more.
--
-- ARGV  term, the time at which new ones begin (ms; the same for all that belong together),
--       then for each: entry, name, task, job or '', when (for people), code | people, last fire that the leader knows
--         of (ms) or '', and of a continuous one the ms between two runs or '', message, own queue, granted queue, room
--         key, priority
-- Returns  { ok | term (another one leads: nothing changed),
--            { of each: {generation, last fire (ms), 1 if it is paused} | {corrupt, what is wrong} | {gone} (people removed it) } }
-- Called again: the same.
local FIELDS = 13
if not is_term(ARGV[1]) then return { 'term', {} } end
make_way()
see_to('entries', 'zset')
local found = {}

for i = 3, #ARGV, FIELDS do
  local entry, src, known = ARGV[i], ARGV[i + 5], tonumber(ARGV[i + 6])
  local e, problem = load_entry(entry)
  if problem then
    found[#found + 1] = { 'corrupt', problem }
  elseif not e and src == 'people' then
    found[#found + 1] = { 'gone' }
  else
    local key = P .. 'e:' .. entry
    local before = e and src == 'code' and call('HGET', key, 'every')
    if not e or is_ahead(e) or (before and before ~= ARGV[i + 4]) then
      -- It is new; or its code has another schedule than before, whose due times never were; or Redis's clock was set
      -- back.
      e = { gen = int(tick()), last = not e and known or tonumber(ARGV[2]), off = e and e.off, cont = e and e.cont }
      call('HSET', key, 'gen', e.gen, 'last', int(e.last))
    end
    call('HSET', key, 'name', ARGV[i + 1], 'task', ARGV[i + 2], 'every', ARGV[i + 4], 'src', src)
    if ARGV[i + 3] ~= '' then call('HSET', key, 'job', ARGV[i + 3]) else call('HDEL', key, 'job') end
    if ARGV[i + 7] ~= '' then
      call('HSET', key, 'cont', ARGV[i + 7], 'm', ARGV[i + 8], 'q', ARGV[i + 9], 'gq', ARGV[i + 10], 'key', ARGV[i + 11],
        'prio', ARGV[i + 12])
    elseif e.cont then
      call('HDEL', key, 'cont', 'm', 'q', 'gq', 'key', 'prio')
    end
    call('ZADD', P .. 'entries', int(NOW), entry)
    found[#found + 1] = { e.gen, int(e.last), e.off and 1 or 0 }
  end
end

flush()
return { 'ok', found }

-- uses: schema records term memory
--
-- lead: a scheduler asks to lead, or to lead on. One of each service leads at a time, for a term; its term runs until it
-- says so again, resigns, or time is up by Redis's clock. Terms rise.
--
-- ARGV  scheduler, its name, for how long (ms), its term ('': it does not lead), its service ('': the one that the ledger
--       is named after)
-- Returns  { its term, or '' if another one leads, Redis's time (ms), name of who leads,
--            number of the last change that people made to the schedule, epoch or '' (the ledger is empty) }
-- Errors   none
-- Called again: the same.
local who, name, length, mine, service = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key = lead_key(service)
make_way()
see_to('led_services')
local held = read_hash(key, 'term', 'who', 'until', 'name')
if not held then
  call('DEL', key) -- of another type: nobody leads
  held = {}
end
-- A clock that was set back must not make a term longer.
local left = math.min((held['until'] or 0) - NOW, length)
local term, leader = held.term or '', held.name or ''
if held.who == who and (term == mine or left > 0) then
  call('HSET', key, 'until', int(NOW + length))
elseif left <= 0 then
  term, leader = int(tick()) .. (service == '' and '' or '@' .. service), name
  call('SADD', K.led_services, service)
  call('HSET', key, 'term', term, 'who', who, 'name', name, 'since', int(NOW), 'until', int(NOW + length))
  flush()
else
  term = ''
  call('HSET', key, 'until', int(NOW + left))
end
return { term, int(NOW), leader, int(tonumber(call('HGET', K.ledger, 'changes') or nil) or 0),
  G.epoch or '' }

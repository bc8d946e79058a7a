-- uses: schema records term memory
--
-- lead: a scheduler asks to lead, or renews its term. One scheduler of each service leads at a time, for a term. A term
-- that is not renewed ends when its time is up by Redis's clock, or when the scheduler resigns. Terms rise.
--
-- ARGV  scheduler, its name, for how long (ms), its term ('': it does not lead), its service ('': the one that the ledger
--       is named after)
-- Returns  { its term, or '' if another one leads, Redis's time (ms), name of the leader,
--            number of the last change that people made to the schedule, epoch or '' (the ledger is empty) }
-- Errors   none
-- Called again: the same.
local who, name, length, mine, service = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local key = lead_key(service)
allow_when_full()
ensure_type('led_services')
local held = read_hash(key, 'term', 'who', 'until', 'name')
if not held then
  call('DEL', key) -- it has another type: nobody leads
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

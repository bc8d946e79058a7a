-- uses: schema records memory epoch clock places
--
-- renew_places: a supervisor says that it lives, what its table of pools is, and which places it has. Their leases run on.
--
-- ARGV  supervisor, its session, 1: this process takes the name over (it has just started), lease (ms), interval between
--       sweeps (ms), the epoch it knows ('': none), what it is (JSON: host, pid, tables, report), then of each place it
--       has: place
-- Returns  { epoch, ms until a new epoch opens, { of each place named: ok | leaving (its worker is to stop) | void (another has
--            it, or it was forgotten and is beyond max) }, { of each place that it holds and did not name: pool, number, fence,
--            info, 1: its worker is to stop } }
-- Errors   SUPERSEDED: another process has taken the name over
-- Called again: the same.
--
-- A place that the ledger has forgotten, or whose lease ran out, is the supervisor's again if nobody else has it: its worker is
-- there. So an emptied ledger is filled again by those that had places, while a new epoch keeps others from claiming.
local name, session, takes_over, lease = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
make_way()
advance_clock(tonumber(ARGV[5]))
see_to('supervisors')
local known = supervisor(name)
if known and known.session ~= session and not takes_over and known.ends >= G.clock then
  return redis.error_reply('SUPERSEDED ' .. name)
end
enter_epoch(ARGV[6], lease)
local now = cjson.decode(ARGV[7])
now.session, now.ends, now.since = session, G.clock + lease, known and known.session == session and known.since or NOW
call('HSET', K.supervisors, name, cjson.encode(now))
for _, other in ipairs(call('HKEYS', K.supervisors)) do
  local one = supervisor(other)
  -- Kept for a while: people want to know that it died.
  if not one or one.ends + 20 * lease < G.clock then call('HDEL', K.supervisors, other) end
end

local answers, named = {}, {}
for _, one in ipairs(read_arguments('place', 8)) do
  local pool, number, fence = one.pool, one.number, one.fence
  named[pool .. ':' .. number] = true
  see_to('places', pool)
  local p = place(pool, number)
  if p and (p.by ~= name or p.fence ~= fence) then
    answers[#answers + 1] = 'void'
  elseif not p and tonumber(number) > (most_places(pool) or 0) then
    answers[#answers + 1] = 'void'
  else
    G.tick = math.max(G.tick, tonumber(fence))
    p = p or { number = number, by = name, fence = fence, token = '', since = NOW }
    p.ends, p.info = G.clock + lease, one.info
    save_place(pool, p)
    answers[#answers + 1] = p.leaving and 'leaving' or 'ok'
  end
end

local found = {}
for pool in pairs(now.tables) do
  for _, p in ipairs(places(pool)) do
    if p.by == name and not named[pool .. ':' .. p.number] then
      p.ends = G.clock + lease
      save_place(pool, p)
      found[#found + 1] = { pool, p.number, p.fence, p.info or '', p.leaving and 1 or 0 }
    end
  end
end
G.dirty = true
flush()
return { G.epoch, math.max(0, G.opens - G.clock), answers, found }

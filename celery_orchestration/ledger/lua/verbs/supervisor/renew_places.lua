-- uses: schema records memory epoch clock places
--
-- renew_places: a supervisor reports that it is alive, its table of pools, and its places. This renews their leases.
--
-- ARGV  supervisor, its session, 1: this process takes over the name (it has just started), lease (ms), interval
--       between sweeps (ms), the epoch it knows ('': none), about itself (JSON: host, pid, tables, report), then of
--       each of its places: place
-- Returns  { epoch, ms until a new epoch opens, { of each place named: ok | leaving (its worker has to stop) | void
--            (another supervisor has it, or the ledger had forgotten it and it is beyond max) },
--            { of each place that it holds and did not name: pool, number, fence, info, 1: its worker has to stop } }
-- Errors   SUPERSEDED: another process has taken over the name
-- Called again: the same.
--
-- A place that the ledger has forgotten, or whose lease ran out, is the supervisor's again if nobody else has it: its
-- worker still runs. So supervisors restore their places in an emptied ledger, while a new epoch keeps others from
-- claiming them.
local name, session, takes_over, lease = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
allow_when_full()
advance_clock(tonumber(ARGV[5]))
ensure_type('supervisors')
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
  -- A dead one is kept for a while: people want to know that it died.
  if not one or one.ends + 20 * lease < G.clock then call('HDEL', K.supervisors, other) end
end

local answers, named = {}, {}
for _, one in ipairs(read_arguments('place', 8)) do
  local pool, number, fence = one.pool, one.number, one.fence
  named[pool .. ':' .. number] = true
  ensure_type('places', pool)
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

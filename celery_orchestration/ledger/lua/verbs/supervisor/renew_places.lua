-- uses: schema records memory epoch clock places
--
-- renew_places: a supervisor says that it lives, what its table of pools is, and which places it has. Their leases run on.
--
-- ARGV  supervisor, its session, 1: this process takes the name over (it has just started), lease (ms), interval between
--       sweeps (ms), the epoch it knows ('': none), what it is (JSON: host, pid, tables, report), then of each place it has: pool,
--       number, fence, info
-- Returns  { epoch, ms until a new epoch opens, { of each place named: ok | leaving (its worker is to stop) | void (another has
--            it, or it was forgotten and is beyond max) }, { of each place that it holds and did not name: pool, number, fence, info, 1: its worker is to stop } }
-- Errors   SUPERSEDED: another process has taken the name over
-- Called again: the same.
--
-- A place that the ledger has forgotten, or whose lease ran out, is the supervisor's again if nobody else has it: its worker is
-- there. So an emptied ledger is filled again by those that had places, while a new epoch keeps others from claiming.
local name, session, takes_over, lease = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])
make_way()
advance_clock(tonumber(ARGV[5]))
see_to('sups', 'hash')
local known = supervisor(name)
if known and known.session ~= session and not takes_over and known.ends >= G.clk then
  return redis.error_reply('SUPERSEDED ' .. name)
end
enter_epoch(ARGV[6], lease)
local now = cjson.decode(ARGV[7])
now.session, now.ends, now.since = session, G.clk + lease, known and known.session == session and known.since or NOW
call('HSET', P .. 'sups', name, cjson.encode(now))
for _, other in ipairs(call('HKEYS', P .. 'sups')) do
  local one = supervisor(other)
  -- Kept for a while: people want to know that it died.
  if not one or one.ends + 20 * lease < G.clk then call('HDEL', P .. 'sups', other) end
end

local answers, named = {}, {}
for i = 8, #ARGV, 4 do
  local pool, number, fence = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  named[pool .. ':' .. number] = true
  see_to('pl:' .. pool, 'hash')
  local p = place(pool, number)
  if p and (p.by ~= name or p.fence ~= fence) then
    answers[#answers + 1] = 'void'
  elseif not p and tonumber(number) > (most_places(pool) or 0) then
    answers[#answers + 1] = 'void'
  else
    G.tick = math.max(G.tick, tonumber(fence))
    p = p or { number = number, by = name, fence = fence, token = '', since = NOW }
    p.ends, p.info = G.clk + lease, ARGV[i + 3]
    save_place(pool, p)
    answers[#answers + 1] = p.leaving and 'leaving' or 'ok'
  end
end

local found = {}
for pool in pairs(now.tables) do
  for _, p in ipairs(places(pool)) do
    if p.by == name and not named[pool .. ':' .. p.number] then
      p.ends = G.clk + lease
      save_place(pool, p)
      found[#found + 1] = { pool, p.number, p.fence, p.info or '', p.leaving and 1 or 0 }
    end
  end
end
G.dirty = true
flush()
return { G.epoch, math.max(0, G.opens - G.clk), answers, found }

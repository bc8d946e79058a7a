-- uses: schema records places
--
-- claim_place: a supervisor asks for a free place of a pool, to start a worker on it.
--
-- ARGV  supervisor, its session, a token of this claim, pool, lease (ms)
-- Returns  { claimed, number, fence } | { enough } (as many as wanted are held) | { full } (no number up to the pool's max is
--          free: workers that are stopping still have theirs) | { closed, ms } (a new epoch has not opened: supervisors
--          that had places renew them first) | { unknown } (the ledger does not know the supervisor: renew first)
-- Errors   SUPERSEDED: another process has taken over the name
-- Called again with the same token: the same place.
local name, session, token, pool, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local known = supervisor(name)
if not known then return { 'unknown' } end
if known.session ~= session then return redis.error_reply('SUPERSEDED ' .. name) end
local held = places(pool)
local taken = {}
for _, p in ipairs(held) do
  if p.by == name and p.token == token then return { 'claimed', p.number, p.fence } end
  taken[tonumber(p.number)] = true
end
if not G.epoch or G.clock < G.opens then return { 'closed', math.max(0, G.opens - G.clock) } end
if count_staying(held) >= (wanted_of(pool) or 0) then return { 'enough' } end
local number = 1
while taken[number] do number = number + 1 end
if number > (most_places(pool) or 0) then return { 'full' } end
local fence = int(tick())
save_place(pool, { number = int(number), by = name, fence = fence, token = token, ends = G.clock + lease, since = NOW,
  info = '' })
flush()
return { 'claimed', int(number), fence }

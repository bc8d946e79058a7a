-- uses: schema records memory places
--
-- scale_pool: a supervisor has decided how many workers a pool should have from now on. If there are too many, the
-- workers of some places have to stop.
--
-- ARGV  supervisor, pool, how many were wanted when it decided ('': not known), how many are wanted now, when that many
--       were last needed (ms; a later time from another supervisor stays), how long the oldest ready run has waited
--       (ms), the reason, figures (JSON), then places that may go, the best ones first: number and fence of each
-- Returns  { 1, or 0 if others have decided meanwhile, how many are wanted now, { numbers of those places } }
-- Errors   none
-- Called again: 0, or the same if the number has not changed; no more places have to stop.
local name, pool, known, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local key = K.pool(pool)
allow_when_full()
ensure_type('pool', pool)
ensure_type('pool_changes', pool)
local current = wanted_of(pool)
if current ~= known then return { 0, current or -1, {} } end
local needed = math.max(tonumber(ARGV[5]), wanted == current and tonumber(call('HGET', key, 'needed') or 0) or 0)
call('HSET', key, 'wanted', wanted, 'needed', int(math.min(needed, NOW)), 'oldest', ARGV[6], 'why', ARGV[7], 'seen', int(NOW))
if wanted ~= current then
  call('HSET', key, 'changed', int(NOW))
  call('LPUSH', K.pool_changes(pool), cjson.encode({ at = NOW, by = name, before = known, wanted = wanted, why = ARGV[7],
    figures = ARGV[8] }))
  call('LTRIM', K.pool_changes(pool), 0, 99)
end
local stopping, too_many = {}, count_staying(places(pool)) - wanted
for i = 9, #ARGV, 2 do
  local p = too_many > 0 and place(pool, ARGV[i])
  if p and p.fence == ARGV[i + 1] and not p.leaving then
    p.leaving = true
    save_place(pool, p)
    stopping[#stopping + 1] = p.number
    too_many = too_many - 1
  end
end
return { 1, wanted, stopping }

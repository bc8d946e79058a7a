-- uses: schema records memory places
--
-- scale_pool: how many workers a pool is to have from now on, by a supervisor's decision. Of those that are too many, places
-- are told to stop.
--
-- ARGV  supervisor, pool, how many were wanted when it decided ('': nobody had said), how many are wanted, when as many were
--       needed last (ms; a later time that another supervisor has told stays), how long the oldest ready run has waited (ms),
--       the reason, figures (JSON), then places that may go, the best ones first: number and fence of each
-- Returns  { 1, or 0 if others have decided meanwhile, how many are wanted now, { numbers of the places told to stop } }
-- Errors   none
-- Called again: others have decided, unless nothing changed; no place more is told to stop.
local name, pool, known, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local key = K.pool(pool)
make_way()
see_to('pool', pool)
see_to('pool_changes', pool)
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
local told, too_many = {}, count_staying(places(pool)) - wanted
for i = 9, #ARGV, 2 do
  local p = too_many > 0 and place(pool, ARGV[i])
  if p and p.fence == ARGV[i + 1] and not p.leaving then
    p.leaving = true
    save_place(pool, p)
    told[#told + 1] = p.number
    too_many = too_many - 1
  end
end
return { 1, wanted, told }

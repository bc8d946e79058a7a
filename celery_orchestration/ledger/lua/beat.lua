-- uses: records
--
-- beat: a worker's lease runs on, for all its runs at once.
--
-- ARGV  worker, lease (ms), then id and fence of each run it has
-- Returns  { ids of those that are void: recovered, ended or started elsewhere meanwhile }
-- Errors   UNKNOWNWORKER: its lease was lost, all its runs are void; register again
local worker = ARGV[1]
local v = call('HMGET', P .. 'w:' .. worker, 'name', 'state')
if not v[1] then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
-- The end of one that departs is fixed.
if v[2] ~= 'departing' then call('ZADD', P .. 'ws', int(G.clk + tonumber(ARGV[2])), worker) end
call('HSET', P .. 'w:' .. worker, 'beat', int(NOW))
local void = {}
for i = 3, #ARGV, 2 do
  local r = load_run(ARGV[i])
  if not r or r.fence ~= tonumber(ARGV[i + 1]) then void[#void + 1] = ARGV[i] end
end
return void

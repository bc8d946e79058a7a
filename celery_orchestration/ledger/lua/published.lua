-- uses: records
--
-- published: granted runs are in the broker now.
--
-- ARGV  id and grant number of each
-- Returns  how many are still on their way (the others have started, or were granted again)
-- Called again: the same.
local PUBLISHED_MS = 30000
local count = 0
for i = 1, #ARGV, 2 do
  local v = call('HMGET', P .. 'r:' .. ARGV[i], 'st', 'gn', 'tries')
  if (v[1] == 'granted' or v[1] == 'queued') and v[2] == ARGV[i + 1] then
    call('HSET', P .. 'r:' .. ARGV[i], 'st', 'queued')
    local tries = math.min(tonumber(v[3]) or 0, 12)
    call('ZADD', P .. 'gr', int(G.clk + PUBLISHED_MS * 2 ^ tries), ARGV[i])
    count = count + 1
  end
end
return count

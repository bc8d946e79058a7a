-- uses: schema records statistics memory
--
-- confirm_published: granted runs are in the broker now.
--
-- ARGV  id and grant number of each
-- Returns  how many are still on their way (the others have started, or were granted again)
-- Called again: the same.
local PUBLISHED_MS = 30000

make_way()
local count = 0
for i = 1, #ARGV, 2 do
  local r = load_run(ARGV[i])
  if r and (r.st == 'granted' or r.st == 'queued') and r.gn == tonumber(ARGV[i + 1]) then
    r.st = 'queued'
    save_run(r)
    call('ZADD', P .. 'gr', int(G.clk + PUBLISHED_MS * 2 ^ math.min(r.tries, 12)), r.id)
    count = count + 1
  end
end
return count

-- uses: schema records
--
-- record_progress: how far runs have come, in their own words. For people; the gate does not look at it.
--
-- ARGV  for each: id, fence, JSON (done, total, note; at most 2000 bytes)
-- Returns  count of those that were written: the others have ended, or their fence is void
-- Called again it gives the same answer.
local LONGEST = 2000
local count = 0
for i = 1, #ARGV, 3 do
  local r = load_run(ARGV[i])
  if r and r.st == 'running' and r.fence == tonumber(ARGV[i + 1]) and #ARGV[i + 2] <= LONGEST then
    call('HSET', P .. 'r:' .. r.id, 'p', cmsgpack.pack(r.fence, NOW, ARGV[i + 2]))
    count = count + 1
  end
end
return count

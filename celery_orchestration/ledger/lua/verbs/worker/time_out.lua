-- uses: schema records memory
--
-- time_out: the time of a run is over, but its code cannot be interrupted: it keeps its room until that has returned.
--
-- ARGV  id, fence, what failed, 1 if Celery was told that it failed: should its worker die it is not run again
-- Returns  1 | 0 (it has ended, or its fence is void: nothing changes)
-- Called again it gives the same answer.
local r = load_run(ARGV[1])
if not r or r.st ~= 'running' or r.fence ~= tonumber(ARGV[2]) then return 0 end
make_way()
call('HSET', P .. 'r:' .. r.id, 'o', cmsgpack.pack(r.fence, NOW, ARGV[3], ARGV[4] == '1'))
return 1

-- uses: schema records memory
--
-- time_out: the time of a run is over, but its code cannot be interrupted: it keeps its room until the code has
-- returned.
--
-- ARGV  id, fence, what failed, 1 if Celery knows that it failed: if its worker dies, it does not run again
-- Returns  1 | 0 (it has ended, or its fence is void: nothing changes)
-- Errors   none
-- Called again it gives the same answer.
local r = load_run(ARGV[1])
if not r or r.state ~= 'running' or r.fence ~= tonumber(ARGV[2]) then return 0 end
allow_when_full()
call('HSET', K.run(r.id), 'timed_out',
  cmsgpack.pack({ fence = r.fence, at = NOW, what = ARGV[3], failed = ARGV[4] == '1' }))
return 1

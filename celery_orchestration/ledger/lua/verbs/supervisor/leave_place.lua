-- uses: schema records memory places
--
-- leave_place: the worker of a place has stopped, and its supervisor gives the place up.
--
-- ARGV  supervisor, pool, number, fence
-- Returns  1, or 0 if the place is not, or no longer, that supervisor's
-- Errors   none
-- Called again: 0.
allow_when_full()
local p = place(ARGV[2], ARGV[3])
if not p or p.by ~= ARGV[1] or p.fence ~= ARGV[4] then return 0 end
return call('HDEL', K.places(ARGV[2]), ARGV[3])

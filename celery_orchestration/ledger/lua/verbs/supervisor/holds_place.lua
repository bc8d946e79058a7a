-- uses: schema records places
--
-- holds_place: a worker asks whether the place it was started on is still its supervisor's. Reads only.
--
-- ARGV  pool, number, fence
-- Returns  0 if another claim has the place; 1 if this claim has it, or none: then the supervisor renews it
-- Errors   none
-- Called again: the same.
local p = place(ARGV[1], ARGV[2])
return (not p or p.fence == ARGV[3]) and 1 or 0

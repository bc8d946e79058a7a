-- uses: schema records
--
-- holds_lease: does a run still hold its lease?
-- A run from before this epoch does, until the epoch opens: its worker may be about to claim it.
--
-- ARGV  id, fence
-- Returns  1 | 0
-- Errors   none
-- Called again: the same, unless something changed.
local r = load_run(ARGV[1])
local fence = tonumber(ARGV[2])
if r and r.fence == fence then return 1 end
local unclaimed = not G.epoch or (fence < tonumber(G.epoch) and G.clock < G.opens)
return unclaimed and (not r or (r.fence or 0) < fence) and 1 or 0

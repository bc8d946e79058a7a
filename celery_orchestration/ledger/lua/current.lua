-- uses: records
--
-- current: does a run still hold its lease?
--
-- ARGV  id, fence
-- Returns  1 | 0
local r = load_run(ARGV[1])
return r and r.fence == tonumber(ARGV[2]) and 1 or 0

-- uses: records
--
-- granted: what has to be published for a grant.
--
-- ARGV  id, grant number
-- Returns  { queue, message }, or {} if that grant is not the latest any more
local r = load_run(ARGV[1])
if not r or (r.st ~= 'granted' and r.st ~= 'queued') or r.gn ~= tonumber(ARGV[2]) then return {} end
return { r.dest, call('HGET', P .. 'r:' .. r.id, 'm') }

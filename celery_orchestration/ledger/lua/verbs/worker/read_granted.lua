-- uses: schema records
--
-- read_granted: what has to be published for grants.
--
-- ARGV  id and grant number of each
-- Returns  of each { queue, message }, or {} if that grant is not the latest any more
local found = {}
for i = 1, #ARGV, 2 do
  local r = load_run(ARGV[i])
  local good = r and (r.st == 'granted' or r.st == 'queued') and r.gn == tonumber(ARGV[i + 1])
  found[#found + 1] = good and { r.dest, call('HGET', P .. 'r:' .. r.id, 'm') } or {}
end
return found

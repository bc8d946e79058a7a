-- uses: schema records
--
-- list_nodes: who is there, and with which release of the code. Reads only.
--
-- ARGV  -
-- Returns  { releases that these bring, the oldest first, life of a done-marker (ms),
--            { name, kind, release, mode, since (ms) } of each that has not been found dead }
-- Errors   none
-- Called again: the same.
local found, live, releases = {}, {}, {}
for _, member in ipairs(members()) do
  local v = call('HMGET', K.worker(member[1]), 'name', 'kind', 'release', 'mode', 'since')
  for i = 1, 5 do v[i] = v[i] or '' end
  found[#found + 1] = v
  live[v[3]] = true
end
for _, release in ipairs(call('ZRANGE', K.release_order, 0, -1)) do
  if live[release] then releases[#releases + 1] = release end
end
return { table.concat(releases, ' '), int(G.done_ms), found }

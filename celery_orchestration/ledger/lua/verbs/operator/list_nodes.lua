-- uses: schema records
--
-- list_nodes: the workers and schedulers, each with the release of its code. Reads only.
--
-- ARGV  -
-- Returns  { their releases, the oldest first, life of a done-marker (ms),
--            { name, kind, release, mode, since (ms) } of each that has not been found dead }
-- Errors   none
-- Called again: the same.
local found, live, releases = {}, {}, {}
for _, node in ipairs(nodes()) do
  local w = read_hash(K.worker(node[1]), 'name', 'kind', 'release', 'mode', 'since')
  found[#found + 1] = { w.name, w.kind or '', w.release or '', w.mode or '', w.since and int(w.since) or '' }
  live[w.release or ''] = true
end
for _, release in ipairs(call('ZRANGE', K.release_order, 0, -1)) do
  if live[release] then releases[#releases + 1] = release end
end
return { table.concat(releases, ' '), int(G.done_ms), found }

-- uses: records full
--
-- health: what a probe asks, in one round trip. Reads only.
--
-- ARGV  name of a worker, or ''
-- Returns  JSON: now, owner, schema, epoch {why, left: ms until the gate opens}, workers (how many live), lead (name of who
--          leads now), replica (it takes no writes, as far as it tells), full (Redis
--          is), worker {left, silent: ms of its lease that are
--          left, since it was heard of; lease} if it is there
-- Called again: the same.
local asked = ARGV[1] ~= '' and call('HGET', P .. 'wn', ARGV[1])
local workers, worker = 0, nil
for _, member in ipairs(members()) do
  local v = call('HMGET', P .. 'w:' .. member[1], 'kind', 'beat', 'lease')
  local one = { left = member[2] - G.clk, silent = NOW - (tonumber(v[2]) or 0), lease = tonumber(v[3]) or 0 }
  -- The ledger clock stands still while nobody sweeps.
  if v[1] ~= 'beat' and one.left > 0 and one.silent <= one.lease then workers = workers + 1 end
  if member[1] == asked then worker = one end
end
local g = call('HMGET', P .. 'g', 'owner', 'schema', 'why')
local lead = redis.pcall('HMGET', P .. 'lead', 'name', 'until')
local leads = not lead.err and (tonumber(lead[2]) or 0) >= NOW
local told = redis.pcall('INFO', 'replication')
local replica = type(told) == 'string' and string.find(told, 'role:slave', 1, true) ~= nil
local _, full = memory()
return cjson.encode({ now = NOW, replica = replica, full = full, owner = g[1], schema = tonumber(g[2]), workers = workers, worker = worker,
  lead = leads and lead[1] or nil, epoch = { why = g[3], left = math.max(0, G.opens - G.clk) } })

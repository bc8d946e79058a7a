-- uses: schema records term memory
--
-- read_health: what a probe asks, in one round trip. Reads only.
--
-- ARGV  name of a worker, or ''; service of the caller
-- Returns  JSON: now, owner, schema, epoch {why, left: ms until the gate opens}, workers (how many live), lead (name of
--          the scheduler that leads that service now), replica (whether Redis says that it is one, which takes no
--          writes), full (whether Redis is full), worker {left: ms of its lease that are left, silent: ms since its
--          last heartbeat, lease} if the ledger has it
-- Errors   none
-- Called again: the same.
local asked = ARGV[1] ~= '' and call('HGET', K.worker_names, ARGV[1])
local ends = asked and tonumber(call('ZSCORE', K.leases, asked) or '')
local worker = nil
if ends then
  local w = read_hash(K.worker(asked), 'heartbeat', 'lease')
  if w then worker = { left = ends - G.clock, silent = NOW - (w.heartbeat or 0), lease = w.lease or 0 } end
end
-- Every node sweeps, and a sweep removes nodes whose lease ran out. If nobody has swept for a lease, no node is alive.
local g = read_hash(K.ledger, 'owner', 'schema', 'why', 'swept', 'lease')
local workers = call('ZCOUNT', K.leases, '(' .. int(G.clock), '+inf') - (tonumber(call('HGET', K.live, 'kind:beat')) or 0)
if NOW - (g.swept or NOW) > (g.lease or 30000) then workers = 0 end
local lead = leader(ARGV[2])
local info = redis.pcall('INFO', 'replication')
local replica = type(info) == 'string' and string.find(info, 'role:slave', 1, true) ~= nil
local _, full = memory()
return cjson.encode({ now = NOW, replica = replica, full = full, owner = g.owner, schema = g.schema,
  workers = math.max(0, workers), worker = worker,
  lead = lead and lead.name, epoch = { why = g.why, left = math.max(0, G.opens - G.clock) } })

-- uses: schema records lanes rules statistics index room ended_runs transitions workers memory epoch
--
-- register: a worker process announces itself, or announces itself again after its lease was lost or in a new epoch.
--
-- ARGV  presence: with kind (of its execution pool), queues (JSON), policies of its release (JSON), their jobs (JSON), history
--         and dead_letters (how many runs and dead letters are kept for a job), dead_letter_ms (how long the latter are)
--       registration: schema, oldest_schema (the oldest that works beside ours), epoch in which it claimed its runs last
--         ('': it is new), the highest fence it has seen ('': none), service ('': the one that the ledger is named after)
-- Returns  { releases of the live workers, releases the installed policies were merged from, epoch (if it is
--            not the one that the worker knew, the worker has to claim its runs), what began the epoch ('' | emptied |
--            moved), ms until the gate opens }
-- Errors   FOREIGN owner (this ledger belongs to another app), SCHEMA version (unknown data layout)
-- Called again: the same.

local node, at = read_argument('presence', 1)
local registration = read_argument('registration', at)
local worker, name, queues, release, owner = node.worker, node.name, node.queues, node.release, node.owner
local schema, oldest = registration.schema, registration.oldest_schema

local ledger = read_hash(K.ledger, 'owner', 'schema')
if ledger.owner and ledger.owner ~= owner then return redis.error_reply('FOREIGN ' .. ledger.owner) end
local found = ledger.schema or schema
if found < oldest or found > schema + 1 then return redis.error_reply('SCHEMA ' .. found) end

allow_when_full()
local last_epoch, lease = registration.epoch, node.lease_ms
G.tick = math.max(G.tick, registration.fence or 0)
enter_epoch(last_epoch, lease)
call('HSET', K.ledger, 'owner', owner, 'schema', math.max(found, schema), 'done_ms', node.done_ms,
  'lease', lease, 'history', node.history, 'dead_letters', node.dead_letters, 'dead_letter_ms', node.dead_letter_ms)
call('HSET', K.services, release, registration.service)
local new_release = call('HSETNX', K.releases, release, node.policies) == 1
if new_release then
  call('ZADD', K.release_order, 'NX', int(tick()), release)
  local jobs = cjson.decode(node.jobs)
  for from = 1, #jobs, 1000 do
    call('SADD', K.release_jobs(release), unpack(jobs, from, math.min(from + 999, #jobs)))
  end
end
local old_epoch, old_release, old_kind = unpack(call('HMGET', K.worker(worker), 'epoch', 'release', 'kind'))
if old_release then count_worker(old_release, old_kind or '', -1) end
withdraw_slots(worker)
call('HDEL', K.worker(worker), 'state')
call('HSET', K.worker(worker), 'name', name, 'host', node.host, 'pid', node.pid, 'slots', node.slots, 'kind', node.kind,
  'queues', queues, 'release', release, 'service', registration.service, 'mode', node.mode, 'lease', lease, 'since', int(NOW),
  'heartbeat', int(NOW),
  'epoch', (last_epoch == '' or last_epoch == G.epoch or old_epoch == G.epoch) and G.epoch or '')
call('HSET', K.worker_names, name, worker)
if node.kind ~= 'beat' then call('ZADD', K.ordered_names, 0, name) end
call('ZADD', K.leases, int(G.clock + lease), worker)
add_slots(queues, node.slots, release)
count_worker(release, node.kind, 1)
refresh_stale()
flush()
local g = read_hash(K.ledger, 'releases', 'why')
return { live_releases(), g.releases or '', G.epoch, g.why or '', math.max(0, G.opens - G.clock) }

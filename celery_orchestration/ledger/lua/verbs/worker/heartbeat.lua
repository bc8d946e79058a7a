-- uses: schema records memory epoch
--
-- heartbeat: renews the lease of a worker or scheduler, for all its runs at once.
--
-- ARGV  worker, lease (ms), then a held_run for each run that it has
-- Returns  { Redis's time (ms), ids of the runs that are void: recovered, ended or started elsewhere meanwhile }
-- Errors   UNKNOWNWORKER: its lease was lost, all its runs are void; register again.
--          NEWEPOCH epoch: nothing is void, but it has to claim what it runs
-- Called again: the same; the lease begins anew.
local worker = ARGV[1]
allow_when_full()
declare_if_moved()
ensure_worker_types(worker)
local known = read_hash(K.worker(worker), 'queues', 'epoch', 'state')
if not known.queues then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
if known.epoch and known.epoch ~= G.epoch then return redis.error_reply('NEWEPOCH ' .. G.epoch) end
-- The lease of a departing worker ends at a fixed time.
if known.state ~= 'departing' then call('ZADD', K.leases, int(G.clock + tonumber(ARGV[2])), worker) end
call('HSET', K.worker(worker), 'heartbeat', int(NOW))
local void, has = { int(NOW) }, {}
for _, run in ipairs(read_arguments('held_run', 3)) do
  local r = load_run(run.id)
  if not r or r.fence ~= run.fence then
    void[#void + 1] = run.id
  elseif r.state == 'running' and r.worker == worker then
    has[#has + 1] = r.id
  end
end
-- If the set of its runs was lost, restore it: without it nobody would recover them.
if call('SCARD', K.worker_runs(worker)) < #has then
  for _, id in ipairs(has) do call('SADD', K.worker_runs(worker), id) end
end
return void

-- uses: schema records statistics rules index room transitions workers memory epoch
--
-- register: a worker process announces itself, or announces itself again after its lease was lost or in a new epoch.
--
-- ARGV  worker, name, host, pid, slots, kind (execution pool), queues (JSON), release, mode, lease (ms), owner, schema,
--       oldest schema that works beside ours, life of a done-marker (ms), policies of the release (JSON), their jobs (JSON),
--       runs and dead letters kept for a job, how long these (ms),
--       the epoch in which it claimed its runs last ('': it is new), the highest fence it has seen ('': none),
--       its service ('': the one that the ledger is named after)
-- Returns  { releases of the live workers, releases the installed policies were merged from, epoch (another than told:
--            it has to claim its runs), what began the epoch ('' | emptied | moved), ms until the gate opens }
-- Errors   FOREIGN owner (another app owns this ledger, which is not for sharing), SCHEMA version (written by a version we do not know)
-- Called again: the same.

local worker, name, queues, release, owner = ARGV[1], ARGV[2], ARGV[7], ARGV[8], ARGV[11]
local schema, oldest = tonumber(ARGV[12]), tonumber(ARGV[13])

local v = call('HMGET', P .. 'g', 'owner', 'schema')
if v[1] and v[1] ~= owner then return redis.error_reply('FOREIGN ' .. v[1]) end
local found = tonumber(v[2]) or schema
if found < oldest or found > schema + 1 then return redis.error_reply('SCHEMA ' .. found) end

make_way()
local told, lease = ARGV[20] or '', tonumber(ARGV[10])
G.tick = math.max(G.tick, tonumber(ARGV[21]) or 0)
enter_epoch(told, lease)
call('HSET', P .. 'g', 'owner', owner, 'schema', math.max(found, schema), 'done_ms', ARGV[14], 'lease', lease,
  'history', ARGV[17], 'letters', ARGV[18], 'letters_ms', ARGV[19])
call('HSET', P .. 'services', release, ARGV[22] or '')
local new_release = call('HSETNX', P .. 'rel', release, ARGV[15]) == 1
if new_release then
  call('ZADD', P .. 'relseq', 'NX', int(tick()), release)
  local jobs = cjson.decode(ARGV[16])
  for from = 1, #jobs, 1000 do
    call('SADD', P .. 'rj:' .. release, unpack(jobs, from, math.min(from + 999, #jobs)))
  end
end
local old_epoch, old_release, old_kind = unpack(call('HMGET', P .. 'w:' .. worker, 'epoch', 'rel', 'kind'))
if old_release then count_worker(old_release, old_kind or '', -1) end
take_slots(worker)
call('HDEL', P .. 'w:' .. worker, 'state')
call('HSET', P .. 'w:' .. worker, 'name', name, 'host', ARGV[3], 'pid', ARGV[4], 'slots', ARGV[5], 'kind', ARGV[6],
  'queues', queues, 'rel', release, 'service', ARGV[22] or '', 'mode', ARGV[9], 'lease', ARGV[10], 'since', int(NOW), 'beat', int(NOW),
  'epoch', (told == '' or told == G.epoch or old_epoch == G.epoch) and G.epoch or '')
call('HSET', P .. 'wn', name, worker)
if ARGV[6] ~= 'beat' then call('ZADD', P .. 'names', 0, name) end
call('ZADD', P .. 'ws', int(G.clk + lease), worker)
add_slots(queues, tonumber(ARGV[5]), release)
count_worker(release, ARGV[6], 1)
refresh_stale()
flush()
local g = call('HMGET', P .. 'g', 'releases', 'why')
return { live_releases(), g[1] or '', G.epoch, g[2] or '', math.max(0, G.opens - G.clk) }

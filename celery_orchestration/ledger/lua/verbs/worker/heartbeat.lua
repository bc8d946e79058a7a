-- uses: schema records memory epoch
--
-- heartbeat: a worker's lease runs on, for all its runs at once.
--
-- ARGV  worker, lease (ms), then id and fence of each run it has
-- Returns  { Redis's time (ms), ids of those that are void: recovered, ended or started elsewhere meanwhile }
-- Errors   UNKNOWNWORKER: its lease was lost, all its runs are void; register again.
--          NEWEPOCH epoch: nothing is void, but it has to claim what it runs
local worker = ARGV[1]
make_way()
same_epoch()
see_to_worker(worker)
local known = call('HMGET', P .. 'w:' .. worker, 'queues', 'epoch', 'state')
if not known[1] then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
if known[2] and known[2] ~= G.epoch then return redis.error_reply('NEWEPOCH ' .. G.epoch) end
-- The end of one that departs is fixed.
if known[3] ~= 'departing' then call('ZADD', P .. 'ws', int(G.clk + tonumber(ARGV[2])), worker) end
call('HSET', P .. 'w:' .. worker, 'beat', int(NOW))
local void, has = { int(NOW) }, {}
for i = 3, #ARGV, 2 do
  local r = load_run(ARGV[i])
  if not r or r.fence ~= tonumber(ARGV[i + 1]) then
    void[#void + 1] = ARGV[i]
  elseif r.st == 'running' and r.own == worker then
    has[#has + 1] = r.id
  end
end
-- Should the set of its runs have been lost: without it nobody would recover them.
if call('SCARD', P .. 'wr:' .. worker) < #has then
  for _, id in ipairs(has) do call('SADD', P .. 'wr:' .. worker, id) end
end
return void

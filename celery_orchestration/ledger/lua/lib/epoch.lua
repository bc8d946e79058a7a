-- Epochs: the times between which the ledger may have forgotten something. Needs records, memory.
--
-- A Redis that was restarted, emptied or failed over to a replica may lack the last writes. The first node to notice
-- declares a new epoch. Then nothing starts until every worker had one lease to claim its runs (verb claim_runs). A
-- turn, heartbeat or sweep before its claim gets NEWEPOCH.
-- An epoch is named by the tick at which it began, so that epochs rise, and can be compared with fences.
--
--   In g:  epoch; before: the epoch before it (none: the ledger was new); why: emptied | moved; had (moved): the number
--   of the last decision that it knew; turned, opens: ledger clock at its beginning, and until which nothing starts;
--   server: which Redis this is

-- This process of Redis, and the history of writes that it continues; nil where INFO is forbidden.
-- The id of the history also changes, with nothing lost, when the first replica comes or the last one is gone for
-- long: then there is no second id, of the history that was continued.
local function server()
  local s, r = redis.pcall('INFO', 'server'), redis.pcall('INFO', 'replication')
  if type(s) ~= 'string' or type(r) ~= 'string' then return nil end
  local run, replid = string.match(s, 'run_id:(%w+)'), string.match(r, 'master_replid:(%w+)')
  if not run and not replid then return nil end
  return run or '?', replid or '?', not string.find(r, 'master_replid2:0000000000', 1, true)
end

function longest_lease(lease)
  for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do
    lease = math.max(lease, tonumber(call('HGET', K.worker(worker), 'lease')) or 0)
  end
  return lease
end

-- lease: of a worker that may not be in the ledger, or 0.
local function declare(why, before, lease)
  make_way()
  G.tick = math.max(G.tick, tonumber(before) or 0)
  G.epoch = int(tick())
  lease = longest_lease(lease)
  G.opens = G.clock + lease
  local run, replid = server()
  call('HSET', K.ledger, 'epoch', G.epoch, 'before', before, 'why', why, 'turned', int(G.clock), 'opens', int(G.opens),
    'tick', int(G.tick), 'server', run and run .. ' ' .. replid or '')
  if why == 'moved' then
    -- Members that know of later decisions than this ledger restore them; what was restored in an epoch before is no matter.
    call('HDEL', K.ledger, 'restored', 'left_out')
    call('HSET', K.ledger, 'had', call('HGET', K.ledger, 'decisions') or '0')
    call('DEL', K.decided)
  end
  -- The last heartbeats may be forgotten, too.
  for _, worker in ipairs(call('ZRANGE', K.leases, 0, -1)) do
    local own = tonumber(call('HGET', K.worker(worker), 'lease')) or lease
    call('ZADD', K.leases, 'XX', 'GT', int(G.clock + own), worker)
  end
  audit('ledger', 'epoch', '', why)
end

-- Is this still the Redis that it was? If not, a new epoch begins.
function same_epoch(lease)
  if not G.epoch then return end
  local run, replid, continues = server()
  if not run then return end
  local now, known = run .. ' ' .. replid, call('HGET', K.ledger, 'server') or ''
  if now == known then return end
  if known ~= '' and (string.match(known, '^%S+') ~= run or continues) then
    return declare('moved', G.epoch, lease or 0)
  end
  make_way()
  call('HSET', K.ledger, 'server', now)
end

-- A worker comes that was last in the epoch `told` ('': it is new).
function enter_epoch(told, lease)
  if not G.epoch and told == '' then
    -- Nobody knows of anything before: it opens at once.
    G.epoch = int(tick())
    local run, replid = server()
    call('HSET', K.ledger, 'epoch', G.epoch, 'server', run and run .. ' ' .. replid or '')
    return
  end
  if not G.epoch then return declare('emptied', told, lease) end
  if told ~= '' and tonumber(told) > tonumber(G.epoch) then return declare('moved', told, lease) end
  if told ~= '' and told ~= G.epoch and not call('HGET', K.ledger, 'before') then
    -- It was empty, and a new worker came first.
    return declare('emptied', told, lease)
  end
  -- A new worker has nothing to claim: if nobody else was there, it need not wait.
  same_epoch(told ~= '' and lease or 0)
  if told ~= '' and G.clock < G.opens then
    -- It has as long as its lease to claim what it runs.
    G.opens = math.max(G.opens, (tonumber(call('HGET', K.ledger, 'turned')) or 0) + lease)
    call('HSET', K.ledger, 'opens', int(G.opens))
  end
end

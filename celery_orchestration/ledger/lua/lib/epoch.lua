-- Epochs: the times between which the ledger may have forgotten something. Needs records, memory.
--
-- A Redis that was restarted, emptied or failed over to a replica may lack the last writes. The first node to notice
-- declares a new epoch. Then nothing starts until every worker had one lease to claim its runs (verb claim_runs). A
-- turn, heartbeat or sweep before its claim gets NEWEPOCH.
-- An epoch is named by the tick (lib/records.lua) at which it began, so that epochs rise, and can be compared with fences.
--
--   In the key `ledger`: epoch; before: the epoch before it (missing: the ledger was new); why: emptied | moved; had:
--   after `moved`, the number of the last decision that the ledger has; turned: the ledger clock at the epoch's
--   beginning; opens: nothing starts before the ledger clock says this; server: which Redis this is

-- Returns the ids of this process of Redis and of its history of writes, and whether that history continues another
-- one; nil if INFO is not allowed. The id of the history also changes, with nothing lost, when the first replica
-- connects, or when the last one has been gone for long: then it continues no other.
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
  allow_when_full()
  G.tick = math.max(G.tick, tonumber(before) or 0)
  G.epoch = int(tick())
  lease = longest_lease(lease)
  G.opens = G.clock + lease
  local run, replid = server()
  call('HSET', K.ledger, 'epoch', G.epoch, 'before', before, 'why', why, 'turned', int(G.clock), 'opens', int(G.opens),
    'tick', int(G.tick), 'server', run and run .. ' ' .. replid or '')
  if why == 'moved' then
    -- Nodes that know later decisions than this ledger restore them, whatever was restored in earlier epochs.
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

-- If this is no longer the same Redis with all its writes, a new epoch begins.
function declare_if_moved(lease)
  if not G.epoch then return end
  local run, replid, continues = server()
  if not run then return end
  local now, known = run .. ' ' .. replid, call('HGET', K.ledger, 'server') or ''
  if now == known then return end
  if known ~= '' and (string.match(known, '^%S+') ~= run or continues) then
    return declare('moved', G.epoch, lease or 0)
  end
  allow_when_full()
  call('HSET', K.ledger, 'server', now)
end

-- A worker or supervisor comes. last_epoch: its last epoch ('': it is new).
function enter_epoch(last_epoch, lease)
  if not G.epoch and last_epoch == '' then
    -- Nobody knows of anything before: it opens at once.
    G.epoch = int(tick())
    local run, replid = server()
    call('HSET', K.ledger, 'epoch', G.epoch, 'server', run and run .. ' ' .. replid or '')
    return
  end
  if not G.epoch then return declare('emptied', last_epoch, lease) end
  if last_epoch ~= '' and tonumber(last_epoch) > tonumber(G.epoch) then return declare('moved', last_epoch, lease) end
  if last_epoch ~= '' and last_epoch ~= G.epoch and not call('HGET', K.ledger, 'before') then
    -- The ledger was emptied, and a new worker came before this one.
    return declare('emptied', last_epoch, lease)
  end
  -- A new worker has nothing to claim: if nobody else was there, it need not wait.
  declare_if_moved(last_epoch ~= '' and lease or 0)
  if last_epoch ~= '' and G.clock < G.opens then
    -- It has as long as its lease to claim what it runs.
    G.opens = math.max(G.opens, (tonumber(call('HGET', K.ledger, 'turned')) or 0) + lease)
    call('HSET', K.ledger, 'opens', int(G.opens))
  end
end

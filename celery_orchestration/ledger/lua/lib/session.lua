-- A call repeated because its reply was lost gets the same reply. For each worker the ledger keeps the number and
-- reply of the last call of each verb that is not idempotent. Needs records.

-- Returns the reply of this call if it was made before. Errors: UNKNOWNWORKER if the worker is not registered
-- (never was, or its lease ran out); NEWEPOCH epoch if it has to claim its runs first. A repeated call gets its
-- remembered reply even then.
function replayed(worker, verb, number)
  local v = call('HMGET', K.worker(worker), 'queues', 'call:' .. verb, 'reply:' .. verb, 'release', 'name', 'alone', 'done',
    'failed', 'epoch', 'lease', 'state')
  if not v[1] then return nil, redis.error_reply('UNKNOWNWORKER ' .. worker) end
  SESSION = { worker = worker, verb = verb, number = number, queues = v[1], release = v[4], name = v[5], alone = v[6] or nil,
    done = tonumber(v[7]) or 0, failed = tonumber(v[8]) or 0, lease = tonumber(v[10]) or SESSION.lease, stops = v[11] ~= false }
  if v[2] == number then return cmsgpack.unpack(v[3]) end
  if v[9] and v[9] ~= G.epoch then return nil, redis.error_reply('NEWEPOCH ' .. (G.epoch or '')) end
  return nil
end

-- done, failed: how many runs ended on this worker in this call, and how many of these failed.
function remember(reply, done, failed)
  call('HSET', K.worker(SESSION.worker), 'call:' .. SESSION.verb, SESSION.number,
    'reply:' .. SESSION.verb, cmsgpack.pack(reply), 'done', SESSION.done + (done or 0),
    'failed', SESSION.failed + (failed or 0))
  return reply
end

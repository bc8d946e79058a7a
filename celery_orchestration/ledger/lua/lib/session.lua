-- A call repeated because its reply was lost gets the same reply. For each worker the ledger keeps the number and
-- reply of the last call of each verb that is not idempotent. Needs records.

-- Returns the reply of this call if it was made before. Errors: UNKNOWNWORKER if the worker is not registered
-- (never was, or its lease ran out); NEWEPOCH epoch if it has to claim its runs first. A repeated call gets its
-- remembered reply even then.
function replayed(worker, verb, number)
  local queues, last_number, last_reply, release, name, alone, done, failed, epoch, lease, state = unpack(call('HMGET',
    K.worker(worker), 'queues', 'call:' .. verb, 'reply:' .. verb, 'release', 'name', 'alone', 'done', 'failed', 'epoch',
    'lease', 'state'))
  if not queues then return nil, redis.error_reply('UNKNOWNWORKER ' .. worker) end
  SESSION = { worker = worker, verb = verb, number = number, queues = queues, release = release, name = name,
    alone = alone or nil, done = tonumber(done) or 0, failed = tonumber(failed) or 0,
    lease = tonumber(lease) or SESSION.lease, stops = state ~= false }
  if last_number == number then return cmsgpack.unpack(last_reply) end
  if epoch and epoch ~= G.epoch then return nil, redis.error_reply('NEWEPOCH ' .. (G.epoch or '')) end
  return nil
end

-- done, failed: how many runs ended on this worker in this call, and how many of these failed.
function remember(reply, done, failed)
  call('HSET', K.worker(SESSION.worker), 'call:' .. SESSION.verb, SESSION.number,
    'reply:' .. SESSION.verb, cmsgpack.pack(reply), 'done', SESSION.done + (done or 0),
    'failed', SESSION.failed + (failed or 0))
  return reply
end

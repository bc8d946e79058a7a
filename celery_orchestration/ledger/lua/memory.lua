-- What a verb may still do when Redis is full (maxmemory, noeviction). Needs schema.
--
-- A script is refused at its first write that needs memory, unless it has written before: then all of it goes through.
-- So a verb is refused as a whole or not at all, and this file decides which. A function is refused before it begins;
-- ledger/wire.py then calls the verb as a script. So a function that runs need not ask. The same goes for a Redis that
-- takes no writes at all, as a replica: it refuses every function, and a script at its first write.

-- Lets this verb go through in a full Redis, so that accepted runs can end. What it adds is bounded, or makes room.
function allow_when_full()
  if not IS_FUNCTION then call('HDEL', K.ledger, '-') end
end

-- Is Redis too full for new runs? Tries a write that needs memory, but changes nothing, because the field exists. If
-- Redis is full, the verb may still write. Also returns the error if Redis takes no writes at all.
function is_full(key, field)
  if IS_FUNCTION then return false end
  local tried = redis.pcall('HSETNX', key, field, '')
  if type(tried) ~= 'table' or not tried.err then return false end
  if not string.find(tried.err, 'OOM', 1, true) then return false, tried end
  allow_when_full()
  return true
end

-- For people: Redis's maxmemory-policy, and whether it refuses writes that need memory, by the same figures that it
-- uses itself. nil and false if INFO is not allowed.
function memory()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then return nil, false end
  local function figure(name) return tonumber(string.match(info, '[\r\n]' .. name .. ':(%d+)')) or 0 end
  local most = figure('maxmemory')
  local full = most > 0 and figure('used_memory') - figure('mem_not_counted_for_evict') > most
  return string.match(info, 'maxmemory_policy:([%w-]+)'), full
end

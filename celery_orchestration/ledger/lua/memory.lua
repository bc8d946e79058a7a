-- What a verb may still do when Redis is full (maxmemory, noeviction). Needs schema.
--
-- A script is refused at its first growing write, unless it has written before: then all of it goes through. So a verb is
-- refused as a whole or not at all, and this file decides which. A function is refused before it begins; ledger/wire.py then
-- calls the verb as a script. So a function that runs need not ask.

-- Lets this verb go through in a full Redis, so that accepted runs can end. What it adds is bounded, or makes room.
function make_way()
  if not IS_FUNCTION then call('HDEL', K.ledger, '-') end
end

-- Is there no room for new runs? Tries a growing write that changes nothing (the field exists), and makes way.
function is_full(key, field)
  if IS_FUNCTION then return false end
  local tried = redis.pcall('HSETNX', key, field, '')
  if type(tried) ~= 'table' or not tried.err then return false end
  if not string.find(tried.err, 'OOM', 1, true) then return false, tried end
  make_way()
  return true
end

-- For people: Redis's maxmemory-policy, and whether it is full: whether it refuses writes that grow, by the figures that it
-- goes by itself. nil, false if it may not be asked.
function memory()
  local told = redis.pcall('INFO', 'memory')
  if type(told) ~= 'string' then return nil, false end
  local function figure(name) return tonumber(string.match(told, '[\r\n]' .. name .. ':(%d+)')) or 0 end
  local most = figure('maxmemory')
  local full = most > 0 and figure('used_memory') - figure('mem_not_counted_for_evict') > most
  return string.match(told, 'maxmemory_policy:([%w-]+)'), full
end

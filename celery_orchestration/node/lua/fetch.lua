-- fetch: moves messages from their queues into a store, in the order in which kombu would take them: by priority step,
-- and within a step by queue. A message is in its queue or in the store at any moment.
--
-- KEYS  open stores, the store, then for each queue its list for each priority step
-- ARGV  id of the store, how many at most, number of the last message it fetched, priority steps,
--       how many of the queues come before all others whatever the step,
--       1: a queue that gave a message goes to the end (round robin)
-- Returns  { 'fetched', field, message, field, message, ... }: the fields under which the store has them
-- Errors   SEALED: the store is not, or no longer, open; nothing was taken
-- Called again: fetches more. If a reply was lost, its messages are in the store, and are given back with it.
local call, pcall = redis.call, redis.pcall
local id, limit, number, steps = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local first, rotate = tonumber(ARGV[5]), ARGV[6] == '1'
if call('HEXISTS', KEYS[1], id) == 0 then return redis.error_reply('SEALED ' .. id) end

local reply, problem, empty, order = { 'fetched' }, nil, {}, {}
for queue = first + 1, (#KEYS - 2) / steps do order[#order + 1] = queue end

-- Returns true if the list had a message.
local function take(queue, step)
  local key = KEYS[2 + (queue - 1) * steps + step]
  if empty[key] then return false end
  -- This is the first write: even in a full Redis, a script that has freed memory may go on.
  local message = pcall('RPOP', key)
  if type(message) == 'table' then
    problem = message
    return false
  end
  if not message then
    empty[key] = true
    return false
  end
  local field, stored
  repeat
    number = number + 1
    field = string.format('%.0f:%s', number, key)
    stored = pcall('HSETNX', KEYS[2], field, message)
  until stored ~= 0
  if type(stored) == 'table' then
    call('RPUSH', key, message)
    problem = stored
    return false
  end
  reply[#reply + 1] = field
  reply[#reply + 1] = message
  return true
end

local function take_next()
  for queue = 1, first do
    for step = 1, steps do
      if take(queue, step) then return true end
    end
  end
  for step = 1, steps do
    for place, queue in ipairs(order) do
      if take(queue, step) then
        if rotate then
          table.remove(order, place)
          order[#order + 1] = queue
        end
        return true
      end
    end
  end
  return false
end

while #reply < 1 + 2 * limit and not problem and take_next() do end
if problem and #reply == 1 then return problem end
return reply

-- queued: the number of messages in each list of a Redis broker, and the tasks of the next ones. Reads only.
--
-- KEYS  lists of queues
-- ARGV  how many messages of each list are read
-- Returns  for each list { length (-1: it is no list), names of tasks ... }
-- Called again: the same, if no message was sent or taken in between.
--
-- The body of a message is encoded or quoted, so nothing in it looks like a header.
local found, most = {}, tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  local length = redis.pcall('LLEN', key)
  local one = { type(length) == 'number' and length or -1 }
  if one[1] > 0 then
    for _, message in ipairs(redis.call('LRANGE', key, -most, -1)) do
      one[#one + 1] = string.match(message, '"task": "([^"]*)"') or ''
    end
  end
  found[i] = one
end
return found

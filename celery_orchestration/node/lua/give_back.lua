-- give_back: moves messages from a store back to the lists they came from. A sealed store is deleted once it is empty.
--
-- KEYS  the store, sealed stores
-- ARGV  id of the store, 'RPUSH' (they are next; the latest fetched is given first) or 'LPUSH' (they are last),
--       then field and message of each
-- Returns  how many were moved, without those that were acknowledged or that others moved meanwhile
-- Called again: moves those that are left.
local call = redis.call
local moved = 0
for i = 3, #ARGV, 2 do
  -- HDEL first: a full Redis refuses a script only at its first write that takes memory.
  if call('HDEL', KEYS[1], ARGV[i]) == 1 then
    if type(redis.pcall(ARGV[2], string.match(ARGV[i], '^%d+:(.*)$'), ARGV[i + 1])) == 'number' then
      moved = moved + 1
    else
      call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) -- the key has another type now: the message stays here
    end
  end
end
if call('EXISTS', KEYS[1]) == 0 then call('HDEL', KEYS[2], ARGV[1]) end
return moved

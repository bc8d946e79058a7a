-- seal: nothing more is fetched into a store. What is in it can be given back, or still be acknowledged.
--
-- KEYS  open stores, sealed stores
-- ARGV  id of the store
-- Returns  1 if it was open, else 0
-- Called again: 0.
local info = redis.call('HGET', KEYS[1], ARGV[1])
if not info then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], info)
return 1

-- Pools: the supervisors that run their workers, and which of them holds which place. Needs records.
--
-- A place is held while its record is there and its lease, by the ledger clock, has not run out. A supervisor is known by its
-- name; its session says which process of that name it is.

-- A supervisor, or nil.
--   session; host, pid; ends: the end of its lease (ledger clock); tables: pool -> { min, max }; report: opaque, for
--   people
function supervisor(name)
  local text = redis.pcall('HGET', K.supervisors, name)
  if type(text) ~= 'string' then return nil end
  local sound, found = pcall(cjson.decode, text)
  if not sound or type(found) ~= 'table' or type(found.tables) ~= 'table' then return nil end
  found.name = name
  return found
end

-- The supervisors whose lease has not run out.
function supervisors()
  local found, names = {}, redis.pcall('HKEYS', K.supervisors)
  for _, name in ipairs(names.err and {} or names) do
    local one = supervisor(name)
    if one and (tonumber(one.ends) or 0) >= G.clock then found[#found + 1] = one end
  end
  return found
end

-- How many workers a pool may have: the smallest max of all live supervisors. nil: none of them has the pool.
function most_places(pool)
  local most = nil
  for _, one in ipairs(supervisors()) do
    local row = one.tables[pool]
    local its = type(row) == 'table' and tonumber(row.max)
    if its and (not most or its < most) then most = its end
  end
  return most
end

-- A place that somebody holds, or nil.
--   by: its holder; fence, token: of the claim; ends: the end of its lease (ledger clock); since: ms; leaving: its
--   worker has to stop; info: opaque, about its worker
function place(pool, number)
  local text = redis.pcall('HGET', K.places(pool), number)
  if type(text) ~= 'string' then return nil end
  local sound, found = pcall(cjson.decode, text)
  if not sound or type(found) ~= 'table' or (tonumber(found.ends) or 0) < G.clock then return nil end
  found.number = number
  return found
end

function save_place(pool, p)
  local number = p.number
  p.number = nil -- it is the field of the hash
  call('HSET', K.places(pool), number, cjson.encode(p))
  p.number = number
end

-- The places of a pool that are held, by number.
function places(pool)
  local found, numbers = {}, redis.pcall('HKEYS', K.places(pool))
  for _, number in ipairs(numbers.err and {} or numbers) do found[#found + 1] = place(pool, number) end
  table.sort(found, function(a, b) return tonumber(a.number) < tonumber(b.number) end)
  return found
end

-- How many of these places have a worker that does not have to stop.
function count_staying(held)
  local count = 0
  for _, p in ipairs(held) do
    if not p.leaving then count = count + 1 end
  end
  return count
end

function wanted_of(pool)
  local found = redis.pcall('HGET', K.pool(pool), 'wanted')
  return type(found) == 'string' and tonumber(found) or nil
end

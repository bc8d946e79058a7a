-- uses: schema records lanes rules statistics
--
-- read_statistics: what jobs did, in total or over time. Reads only. The caller unpacks the sums (ledger/packed.py):
-- Redis would keep others waiting meanwhile.
--
-- ARGV  what: all | minutes | hours; not before (ms; for all: 0); jobs... (for all also '': the sum of deleted jobs)
-- Returns  { now (ms), JSON: counters[], durations[], reasons[], limits[] (ms) as lib/statistics.lua has them,
--            { of each job: {the current minute with its sum, packed, or ''; then for each sum: when its minute or hour
--              began (ms; of all: 0), and the sum, packed} } }
--          A time may come twice: then its sums add up.
-- Errors   none
-- Called again: the same, unless something happened.
local what, from = ARGV[1], tonumber(ARGV[2])
local MINUTE, HOUR, DAY = 60000, 3600000, 86400000

local function from_ring(found, key_of, name, size, part_ms, place_ms)
  for part = math.floor(from / part_ms), math.floor(NOW / part_ms) do
    local v = redis.pcall('HGETALL', key_of(name, part % size))
    local at = nil
    for i = 1, v.err and 0 or #v, 2 do
      if v[i] == 'at' then at = v[i + 1] end
    end
    for i = 1, at == int(part) and #v or 0, 2 do
      local began = v[i] ~= 'at' and part * part_ms + v[i] * place_ms
      if began and began >= from then
        found[#found + 1] = began
        found[#found + 1] = v[i + 1]
      end
    end
  end
end

local jobs = {}
for i = 3, #ARGV do
  local name = ARGV[i]
  local open = redis.pcall('HGET', K.job(name), 'minute')
  local found = { type(open) == 'string' and open or '' }
  local v = redis.pcall('HMGET', K.totals(name), 'all', 'of_hour', 'hour')
  if what == 'all' then
    if v[1] then found[2], found[3] = 0, v[1] end
  elseif what == 'minutes' then
    from_ring(found, K.minutes, name, 24, HOUR, MINUTE)
  else
    from_ring(found, K.hours, name, 30, DAY, HOUR)
    local hour = tonumber(v[3] or nil)
    if hour and hour * HOUR >= from then
      found[#found + 1] = hour * HOUR
      found[#found + 1] = v[2]
    end
  end
  jobs[#jobs + 1] = found
end
return { NOW, cjson.encode({ counters = STATS.COUNTERS, durations = STATS.DURATIONS, reasons = STATS.REASONS,
  limits = STATS.LIMITS }), jobs }

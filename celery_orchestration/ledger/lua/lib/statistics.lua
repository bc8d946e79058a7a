-- Statistics of a job: how often things happened, and how long runs waited and ran. Needs records, rules.
--
-- Three sums are kept for each job. The sum of the current minute is the field minute of its key `job`: it is read and written
-- together with the state of the job, so that a run costs no further command. When the first thing happens in a later minute,
-- that sum goes into a ring of minutes (24 hours), into the sum of its hour and into the sum of all time; the sum of an hour
-- goes into a ring of hours (30 days) in the same way. A place in a ring is written over when its time comes again, so the
-- rings are bounded and need no TTL. A reader tells by `at` whether a place is of the time that it wants.
--
--   totals:<job>          all: the sum of all time; of_hour: the sum of one hour; hour: which hour. totals: (no job)
--                         has the sum of all deleted jobs
--   minutes:<job>:<0-23>  at: an hour; then minute of it -> sum
--   hours:<job>:<0-29>    at: a day; then hour of it -> sum
--
-- A sum is a table, packed: number of a counter -> how often, number of a bucket -> how many, number of a duration -> ms.
-- Minutes, hours and days are counted from 1970, by Redis's clock.

STATS.COUNTERS = { 'started', 'succeeded', 'failed', 'crashed', 'revoked', 'expired', 'rejected', 'ignored', 'requeued',
  'released', 'skipped', 'retried', 'recovered', 'fires', 'fires_skipped', 'fires_missed', 'waited' }
-- Each duration has 32 numbers: the first is its sum (ms), the next ones its buckets.
STATS.DURATIONS = { 'run', 'queue', 'delay', 'hand_over', 'lateness' }
-- What a run waited for at the gate (STATS.REASONS, in rules.lua): each reason is a duration, after those above.
-- The upper ends of the buckets (ms); there is one more for what is longer.
STATS.LIMITS = { 10, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000 }
-- What can become of a fire, and the counter for it.
STATS.FIRES = { fired = 'fires', skipped = 'fires_skipped', missed = 'fires_missed' }
-- How many waits of one run are kept for its trace.
STATS.MOST_TRACED = 16
-- How many bytes of a message are searched for the context of its trace.
STATS.LONGEST_HEAD = 16384

on_call(function() STATS.traces = {} end)

do
  local number, base, gate = {}, {}, {}
  for i = 1, #STATS.COUNTERS do number[STATS.COUNTERS[i]] = i end -- while Redis loads a library there is no ipairs
  for i = 1, #STATS.DURATIONS do base[STATS.DURATIONS[i]] = 32 * i end
  for i = 1, #STATS.REASONS do gate[STATS.REASONS[i]] = 32 * (#STATS.DURATIONS + i) end

  local function add(sum, more)
    for i, n in pairs(more) do sum[i] = (sum[i] or 0) + n end
    return sum
  end

  local function into_ring(ring, name, number, at, place, sum)
    ensure_type(ring, name, number)
    local key = K[ring](name, number)
    if call('HGET', key, 'at') ~= int(at) then call('DEL', key) end
    call('HSET', key, 'at', int(at), place, cmsgpack.pack(sum))
  end

  -- The minute is over: its sum goes into the ring of minutes, and into the sums of its hour and of all time.
  local function close(name, minute, sum)
    local key, hour = K.totals(name), math.floor(minute / 60)
    into_ring('minutes', name, hour % 24, hour, minute % 60, sum)
    ensure_type('totals', name)
    local v = call('HMGET', key, 'all', 'of_hour', 'hour')
    local before, of_hour = tonumber(v[3] or nil), v[2] and unpacked(v[2]) or {}
    if before and before ~= hour then
      local day = math.floor(before / 24)
      into_ring('hours', name, day % 30, day, before % 24, of_hour)
      of_hour = {}
    end
    call('HSET', key, 'all', cmsgpack.pack(add(v[1] and unpacked(v[1]) or {}, sum)), 'of_hour',
      cmsgpack.pack(add(of_hour, sum)), 'hour', int(hour))
  end

  -- Unpacks what was counted in a minute: returns the minute and its sum, or nil.
  local function unpacked_minute(text)
    local sound, minute, sum = pcall(cmsgpack.unpack, text)
    if sound and type(minute) == 'number' and type(sum) == 'table' then return minute, sum end
    return nil
  end

  -- The sum of the current minute, to be added to. flush() writes it.
  local function sum_of(j)
    if not j.sum then
      local minute, sum, now = nil, nil, math.floor(NOW / 60000)
      if j.minute then minute, sum = unpacked_minute(j.minute) end
      if minute and minute ~= now then
        close(j.name, minute, sum)
        sum = nil
      end
      j.sum, j.dirty = sum or {}, true
    end
    return j.sum
  end

  function STATS.packed(j)
    return cmsgpack.pack(math.floor(NOW / 60000), j.sum)
  end

  function STATS.count(j, what, by)
    local sum, i = sum_of(j), number[what]
    if i then sum[i] = (sum[i] or 0) + (by or 1) end
  end

  local function observe(j, first, ms)
    local sum, limits, i = sum_of(j), STATS.LIMITS, 1
    while limits[i] and ms > limits[i] do i = i + 1 end
    sum[first] = (sum[first] or 0) + ms
    sum[first + i] = (sum[first + i] or 0) + 1
  end

  function STATS.observe(j, what, ms)
    observe(j, base[what], math.max(0, ms))
  end

  -- A run starts: its waits are over.
  function STATS.started(j, r)
    STATS.count(j, 'started')
    if r.was then STATS.spend(r) end
    local spent = r.spent
    if spent then
      if spent.gate then
        STATS.count(j, 'waited')
        observe(j, gate[r.gate_for] or gate.slot, spent.gate)
      end
      if spent.delay then STATS.observe(j, 'delay', spent.delay) end
      if spent.hand_over then STATS.observe(j, 'hand_over', spent.hand_over) end
      local log = spent.traced and spent.traced.log
      if log then STATS.traces[#STATS.traces + 1] = { r.id, cjson.encode(log) } end
    end
    r.gate_for, r.spent = nil, nil
  end

  -- The context in which a message was sent, as OpenTelemetry writes it into the headers; nil if there is none. A message
  -- begins with the length of its head, which is JSON (envelope.py).
  local function trace_of(message)
    if #message > STATS.LONGEST_HEAD then message = string.sub(message, 1, STATS.LONGEST_HEAD) end
    if not string.find(message, 'traceparent', 1, true) then return nil end
    local a, b, c, d = string.byte(message, 1, 4)
    return string.match(string.sub(message, 5, 4 + ((a * 256 + b) * 256 + c) * 256 + d), '"traceparent": ?"([%x%-]+)"')
  end

  -- Which run keeps another one waiting, as far as it is known: { id, fence, context of its call }.
  local function blocker(reason)
    local id, fence = nil, nil
    if reason[1] == 'behind' then
      id = reason[3]
    elseif reason[1] == 'room' or reason[1] == 'blocked' or reason[3] == 'busy' then
      local k = job(reason[2])
      if k and k.last_run then id, fence = k.last_run, k.last_start and int(k.last_start) end
    end
    local message = id and redis.pcall('HGET', K.run(id), 'message')
    return id and { id = id, fence = fence, trace = type(message) == 'string' and trace_of(message) or nil } or nil
  end

  -- The gate did not let the run in, or the run waits for its time (no reason). If its call is traced, each wait is
  -- kept.
  function STATS.waits(r, reason, words, message)
    local traced = r.spent and r.spent.traced
    if not traced and message and trace_of(message) then
      traced = {}
      r.spent = r.spent or {}
      r.spent.traced = traced
    end
    if reason then
      r.gate_for = reason[1]
      if traced then traced.why, traced.by = words, blocker(reason) end
    end
  end

  -- Keeps a wait that is over, for the trace.
  function STATS.keep_wait(traced, kind, from)
    local log = traced.log or {}
    local last = log[#log]
    traced.log = log
    if last and last.kind == kind and last.to == from then
      last.to = NOW
    elseif #log < STATS.MOST_TRACED then
      local at_gate = kind == 'gate'
      log[#log + 1] = { kind = kind, from = from, to = NOW, why = at_gate and traced.why or nil,
        by = at_gate and traced.by or nil }
    end
  end

  -- A job is deleted: its rings are deleted, and its sum is added to that of all deleted jobs.
  function STATS.forget(name)
    local sum, v = {}, redis.pcall('HGET', K.totals(name), 'all')
    if type(v) == 'string' then add(sum, unpacked(v) or {}) end
    v = redis.pcall('HGET', K.job(name), 'minute')
    if type(v) == 'string' then
      local _, open = unpacked_minute(v)
      add(sum, open or {})
    end
    ensure_type('totals', '')
    local gone = call('HGET', K.totals(''), 'all')
    call('HSET', K.totals(''), 'all', cmsgpack.pack(add(gone and unpacked(gone) or {}, sum)))
    call('DEL', K.totals(name))
    for i = 0, 29 do call('DEL', K.minutes(name, i), K.hours(name, i)) end
  end
end

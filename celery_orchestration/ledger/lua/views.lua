-- Parts of replies for people. Needs records, rules, index, term.

-- A hash with numbers as numbers; nil if it is empty.
function counts(key)
  local found, flat = {}, call('HGETALL', key)
  for i = 1, #flat, 2 do found[flat[i]] = tonumber(flat[i + 1]) or flat[i + 1] end
  return next(found) and found or nil
end

-- A run. closely: with its progress, and whether it timed out. Its fence is a string: Lua writes 14 digits into JSON.
function shown(r, closely)
  return with_figures({ id = r.id, job = r.job, key = r.key, state = r.state, attempt = r.attempt,
    fence = r.fence and int(r.fence), worker = r.worker,
    arrived = r.arrived, since = r.since, expires = r.expires, queue = r.destination or r.queue,
    priority = 3 - math.floor(r.rank / CLASS), started = r.started, over = closely and note_of(r, 'timed_out') or nil,
    progress = closely and note_of(r, 'progress') or nil }, r)
end

-- The earliest arrival among the waiting runs of j's highest and its lowest priority. Of a keyed job, only the lane
-- that goes first is read.
function oldest(j)
  local found = nil
  for _, checked in ipairs({ false, true }) do
    local lane = lane_of(j, j.policy.keyed and first_in(lane_heads_of(j, checked)) or '', checked)
    -- The order of arrival is that of the rank within a priority.
    for _, last in ipairs(call('ZCARD', lane) > 0 and { 0, -1 } or {}) do
      local class = math.floor(tonumber(call('ZRANGE', lane, last, last, 'WITHSCORES')[2]) / CLASS)
      local id = call('ZRANGEBYSCORE', lane, int(class * CLASS), '(' .. int((class + 1) * CLASS), 'LIMIT', 0, 1)[1]
      local r = id and load_run(id)
      if r and not (found and found <= r.arrived) then found = r.arrived end
    end
  end
  return found
end

-- What a waiting run of j waits for: a reason of the gate, or why it is not running although the gate would let it in.
-- queue: its destination.
function reason_shown(j, r, queue)
  return unclaimed(j, queue) or r.stray and { 'astray' } or reason_to_wait(j, r) or r.alone and { 'alone' } or { 'slot', queue }
end

-- How a job is doing, or nil if there is none.
function shown_job(name)
  local j = job(name)
  return j and { name = name, max_running = j.policy.max_running, keyed = j.policy.keyed, running = j.running, busy = j.busy,
    waiting = j.waiting, later = j.parked, disabled = j.disabled,
    failures = j.failures, max_consecutive_failures = j.policy.max_consecutive_failures, last_error = j.last_error,
    succeeded = j.last_ok, ended = j.last_end_ms, took = j.last_took,
    begun = j.last_start and math.floor(j.last_start / 1000),
    succeeded_at = j.last_success and math.floor(j.last_success / 1000),
    oldest = j.waiting > 0 and oldest(j) or nil, observed = counts(K.observed(name)),
    dropped_copies = tonumber(call('HGET', K.job(name), 'copies') or 0),
    dead_letters = call('ZCARD', K.job_dead_letters(name)),
    gone = j.policy.hash == 'gone' and (call('HGET', K.job(name), 'seen') or '') or nil, probe = j.disabled and j.probe,
    cools = j.disabled and timer_of(name, 'cool_down') or nil }
end

function shown_jobs(names)
  local found = {}
  for _, name in ipairs(names) do found[#found + 1] = shown_job(name) end
  return found
end

-- Cuts a list: returns its first `most` names, and the others.
function cut(names, most)
  local rest = {}
  for i = most + 1, #names do
    rest[#rest + 1], names[i] = names[i], nil
  end
  return names, rest
end

-- The first `most` members of a sorted set. If that is 0: none, but ZRANGE 0 -1 would return all.
function firsts_of(key, most)
  return most > 0 and call('ZRANGE', key, 0, most - 1) or {}
end

-- A time in ms; nil if it is not a plausible one.
local function time_of(ms)
  return ms and ms > 0 and ms < 1e14 and math.floor(ms) or nil
end

-- Entries that fire jobs, with their due times. Entries from code that the leader does not have are left out: nobody
-- fires them.
function shown_entries(from, count)
  local led = {} -- by service
  local function is_led(service)
    if led[service] == nil then led[service] = leader(service) ~= nil end
    return led[service]
  end
  local found, ids = {}, count > 0 and redis.pcall('ZRANGE', K.entries, from, from + count - 1) or {}
  for _, id in ipairs(ids.err and {} or ids) do
    local e = read_hash(K.entry(id), 'job', 'prev', 'last', 'at', 'next', 'gap', 'paused', 'name', 'source')
    if e and e.job and not (e.source == 'code' and is_left(id)) then
      found[#found + 1] = { id = id, job = e.job, prev = time_of(e.prev), last = time_of(e.last), at = time_of(e.at),
        next = time_of(e.next), gap = e.gap and (time_of(e.gap) or 0), paused = e.paused ~= nil,
        led = is_led(service_of_entry(id)), off = e.paused, name = e.paused and (e.name or id) }
    end
  end
  return found
end

function count_entries()
  local found = redis.pcall('ZCARD', K.entries)
  return type(found) == 'number' and found or 0
end

-- What several verbs tell people. Needs records, rules, index, term.

local function counts(key)
  local found, flat = {}, call('HGETALL', P .. key)
  for i = 1, #flat, 2 do found[flat[i]] = tonumber(flat[i + 1]) or flat[i + 1] end
  return next(found) and found or nil
end

-- closely: with what was noted while it ran. Fences are strings: JSON numbers of Lua have 14 digits.
local function shown(r, closely)
  return { id = r.id, job = r.job, key = r.key, state = r.st, attempt = r.a, fence = r.fence and int(r.fence), worker = r.own,
    recoveries = r.rec, arrived = r.enq, since = r.at, expires = r.ex, queue = r.dest or r.q,
    priority = 3 - math.floor(r.rank / CLASS), started = r.sd or false, over = closely and noted(r, 'o') or nil,
    progress = closely and noted(r, 'p') or nil }
end

-- The arrival of the run that has waited longest, of those of the highest and of the lowest priority; of a keyed job,
-- of the lane that goes first.
local function oldest(j)
  local found = nil
  for _, jd in ipairs({ false, true }) do
    local lane = lane_of(j, j.keyed and first_in(index_of(j, jd)) or '', jd)
    -- The order of arrival is that of the rank within a priority.
    for _, last in ipairs(call('ZCARD', lane) > 0 and { 0, -1 } or {}) do
      local class = math.floor(tonumber(call('ZRANGE', lane, last, last, 'WITHSCORES')[2]) / CLASS)
      local id = call('ZRANGEBYSCORE', lane, int(class * CLASS), '(' .. int((class + 1) * CLASS), 'LIMIT', 0, 1)[1]
      local r = id and load_run(id)
      if r and not (found and found <= r.enq) then found = r.enq end
    end
  end
  return found
end

-- How a job is doing, or nil if there is none.
local function told_job(name)
  local j = job(name)
  return j and { name = name, cap = j.cap, keyed = j.keyed, running = j.n, busy = j.busy, waiting = j.w, later = j.z, off = j.off,
    fails = j.fails, fmax = j.fmax, err = j.err, succeeded = j.ok, ended = j.ends_at, took = j.took,
    begun = j.begun and math.floor(j.begun / 1000), succeeded_at = j.good and math.floor(j.good / 1000),
    oldest = j.w > 0 and oldest(j) or nil, observed = counts('ob:' .. name),
    copies = tonumber(call('HGET', P .. 'j:' .. name, 'copies') or 0), letters = call('ZCARD', P .. 'dj:' .. name),
    gone = j.hash == 'gone' and (call('HGET', P .. 'j:' .. name, 'seen') or '') or nil, probe = j.off and j.probe, cools = j.off and tonumber(call('ZSCORE', P .. 'cool', name)) or nil }
end

local function told_jobs(names)
  local found = {}
  for _, name in ipairs(names) do found[#found + 1] = told_job(name) end
  return found
end

-- Of a list the first ones, and the others.
local function cut(names, most)
  local rest = {}
  for i = most + 1, #names do
    rest[#rest + 1], names[i] = names[i], nil
  end
  return names, rest
end

-- The first members of a sorted set; of none, none: to ZRANGE, -1 is the last one.
local function firsts_of(key, most)
  return most > 0 and call('ZRANGE', P .. key, 0, most - 1) or {}
end

-- A time in ms that can be one.
local function time_of(text)
  local ms = tonumber(text or nil)
  return ms and ms > 0 and ms < 1e14 and math.floor(ms) or nil
end

-- Entries that fire jobs, and what of them is due when. Not those of code that whoever leads does not have: nobody fires
-- them.
local function told_entries(from, count)
  local led = {} -- by service
  local function is_led(service)
    if led[service] == nil then led[service] = leader(service) ~= nil end
    return led[service]
  end
  local found, ids = {}, count > 0 and redis.pcall('ZRANGE', P .. 'entries', from, from + count - 1) or {}
  for _, id in ipairs(ids.err and {} or ids) do
    local v = redis.pcall('HMGET', P .. 'e:' .. id, 'job', 'prev', 'last', 'at', 'next', 'cont', 'off', 'name', 'src')
    if not v.err and v[1] and not (v[9] == 'code' and is_left(id)) then
      found[#found + 1] = { id = id, job = v[1], prev = time_of(v[2]), last = time_of(v[3]), at = time_of(v[4]),
        next = time_of(v[5]), gap = v[6] and (time_of(v[6]) or 0) or nil, paused = v[7] ~= false, led = is_led(service_of_entry(id)),
        off = v[7] or nil, name = v[7] and (v[8] or id) or nil }
    end
  end
  return found
end

local function count_entries()
  local found = redis.pcall('ZCARD', P .. 'entries')
  return type(found) == 'number' and found or 0
end

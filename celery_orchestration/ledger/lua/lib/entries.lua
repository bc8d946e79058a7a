-- Entries of the schedule, and how they fire. Needs records, rules, index, room, transitions.
--
--   K.entry(entry), a hash: name, as people wrote it; task: what it fires; job: the same, encoded, if it is a job;
--   every: when, for people; source: code | people; written: what people wrote (JSON);
--   generation: the tick at which it was added or changed; last: due times up to this one are refused (ms): the due
--   time of the last fire, or the time at which the entry was added, changed or resumed; prev, next: the due times
--   before and after that; at: the due time of its last fire, missing if it never fired; how: what became of that fire
--   (fired | sent | skipped | missed); run: its last run; fires, skips, misses: how many so far; paused: by whom, why
--   and since when it is paused (JSON); of a continuous entry also gap: ms between two runs; message: of its runs, with
--   marks for their id; queue, granted_queue, key, priority: of its runs

local MARK_PATTERN = '0rch0000%-0000%-4000%-8000%-000000000000'

-- Returns an entry; nil if there is none; or nil and what is wrong with it.
function load_entry(entry)
  local e, problem = read_hash(K.entry(entry), 'generation', 'last', 'run', 'paused', 'how', 'gap', 'message', 'queue',
    'granted_queue', 'key', 'priority', 'job', 'at')
  if not e then return nil, problem end
  if not e.generation then return nil end
  if not tonumber(e.generation) or not e.last or e.last ~= e.last or math.abs(e.last) == math.huge then
    return nil, 'its generation or last fire is no number'
  end
  e.id, e.how = entry, e.how or ''
  -- When a run of a continuous entry ends, verbs of workers make the next one. If the entry lacks something for that,
  -- it rests until it is adopted again.
  if not (e.message and #e.message >= 4 and e.queue and e.granted_queue and e.key and e.priority) then e.gap = nil end
  return e
end

local MOST_CHANGES = 1000

-- People changed the entry: the leader finds it in changed_entries.
function note_change(entry)
  call('ZADD', K.changed_entries, call('HINCRBY', K.ledger, 'changes', 1), entry)
  for _, old in ipairs(call('ZRANGE', K.changed_entries, 0, -MOST_CHANGES - 1)) do
    call('HSET', K.ledger, 'unchanged', call('ZSCORE', K.changed_entries, old))
    call('ZREM', K.changed_entries, old)
  end
end

AHEAD_MS = 5000

-- Was Redis's clock set back? Then the entry's last fire is in the future, and the entry would not fire until that
-- time.
function is_ahead(e)
  return e.last > NOW + (e.gap or 0) + AHEAD_MS
end

-- A run that an entry made, if it has not ended.
function unended_run(id)
  local r = id and load_run(id)
  return r and r.state ~= 'ending' and r.state ~= 'released' and r or nil
end

local COUNTED = { fired = 'fires', sent = 'fires', skipped = 'skips', missed = 'misses' }

-- Records what became of a fire. due: its due time; next_due: the due time after that, or ''.
function note_fire(e, due, next_due, how, run, missed)
  local key = K.entry(e.id)
  local prev = e.at == e.last and int(e.last) or ''
  call('HSET', key, 'last', int(due), 'at', int(due), 'prev', prev, 'next', next_due, 'how', how)
  call('HINCRBY', key, COUNTED[how], 1)
  if missed and missed > 0 then call('HINCRBY', key, 'misses', missed) end
  if run then call('HSET', key, 'run', run) end
  local j = e.job and job(e.job)
  if j then
    STATS.count(j, STATS.FIRES[how])
    if missed and missed > 0 then STATS.count(j, 'fires_missed', missed) end
    if how == 'fired' and not e.gap then STATS.observe(j, 'lateness', NOW - due) end
  end
  e.last, e.at, e.how, e.run = due, due, how, run or e.run
end

-- For people: records fires that made no run. Fires in a row with the same reason share one line of the history, whose
-- arrival is the due time of the first. id: of the run that was not made, or ''.
function note_no_run(j, e, outcome, why, id, due, count)
  local head = call('LINDEX', K.history(j.name), 0)
  local f = head and cjson.decode(head)
  if f and f.outcome == outcome and f.error == why and f.entry == e.id then
    f.ended, f.due, f.fires = NOW, due, (f.fires or 1) + count
    call('LSET', K.history(j.name), 0, cjson.encode(f))
  else
    add_to_history(j, { id = id, outcome = outcome, arrived = due, ended = NOW, error = why, entry = e.id, due = due,
      fires = count })
  end
end

-- The run that a fire makes goes to the gate. f: id, key, priority, expires_ms, queue, granted_queue, eta_ms, message.
function fire(j, e, due, f)
  local message = f.message
  local r = run_record({ id = f.id, job = j.name, key = j.policy.keyed and f.key or nil,
    rank = (3 - f.priority) * CLASS + next_seq(), arrived = NOW, expires = f.expires_ms,
    eta = f.eta_ms, queue = f.queue, granted_queue = f.granted_queue, entry = e.id, due = due, continuous = e.gap and true })
  if r.eta and r.eta > NOW then
    STATS.waits(r, nil, nil, message)
    put_off(j, r, message)
    return
  end
  local reason = reason_to_wait(j, r)
  r.first_wait = as_recorded(reason)
  STATS.waits(r, reason, r.first_wait, message)
  enqueue(j, r, message)
  refresh(j)
end

-- The id of the run that follows from an entry, its generation and a due time. Entry.run_id in scheduler/entries.py
-- computes the same.
local function run_id(e, due)
  local h = redis.sha1hex(e.id .. ' ' .. e.generation .. ' ' .. int(due))
  return string.format('%s-%s-%s-%s-%s', h:sub(1, 8), h:sub(9, 12), h:sub(13, 16), h:sub(17, 20), h:sub(21, 32))
end

-- Makes the next run of a continuous entry, unless something keeps it from going on. In the head of the message
-- (envelope.py) its id replaces the marks, which are as long as an id.
function fire_again(e)
  local j = e.job and job(e.job)
  if not j or j.policy.hash == 'gone' or e.paused then return false end
  if j.disabled and j.policy.when_disabled == 'drop' and j.probe ~= '' then return false end
  local gap = e.run and e.gap or 0 -- the first one begins at once
  local due = NOW + gap
  if due <= e.last and not is_ahead(e) then due = e.last + 1 end
  local id = run_id(e, due)
  local a, b, c, d = string.byte(e.message, 1, 4)
  local body = 5 + ((a * 256 + b) * 256 + c) * 256 + d
  local message = string.gsub(string.sub(e.message, 1, body - 1), MARK_PATTERN, id) .. string.sub(e.message, body)
  note_fire(e, due, '', 'fired', id)
  fire(j, e, due, { id = id, key = e.key, priority = e.priority, queue = e.queue, granted_queue = e.granted_queue,
    eta_ms = gap > 0 and due or nil, message = message })
  return true
end

-- Continuous jobs whose run has ended in this call go on: hand_over begins with this. A run that replaced itself has
-- not ended: it goes on under the same id.
function fire_continuous()
  while #ENDED_CONTINUOUS > 0 do
    local r = table.remove(ENDED_CONTINUOUS)
    local e, now = load_entry(r.entry), load_run(r.id)
    if e and e.gap and e.run == r.id and not (now and now.continuous and now.state ~= 'ending') then fire_again(e) end
  end
end

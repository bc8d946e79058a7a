-- Ended runs: the history, done-markers and dead letters. Needs records, statistics.

local function worker_name(worker)
  if not worker then return nil end
  if worker == SESSION.worker then return SESSION.name end
  return call('HGET', K.worker(worker), 'name') or worker
end

-- Runs of continuous entries that ended in this call: lib/entries.lua goes on with these.
ENDED_CONTINUOUS = nil

on_call(function() ENDED_CONTINUOUS = {} end)

-- For people: adds a line to the history, with fields as in HISTORY.
function add_to_history(j, fields)
  if G.history <= 0 then return end
  local kept = call('LPUSH', K.history(j.name), cjson.encode(fields))
  if kept > G.history * 1.2 then call('LTRIM', K.history(j.name), 0, G.history - 1) end
end

-- For people: records how a run ended. started: whether it was running until now. Its worker may have reported how long
-- its code ran, and how long ago that ended (settle): after an outage the ledger cannot know.
function note_end(j, r, outcome, note, started)
  local over = NOW - (r.ago or 0)
  local began = started and (r.ran and over - r.ran or r.since)
  add_to_history(j, with_figures({ id = r.id, attempt = r.attempt ~= 0 and r.attempt or nil, outcome = outcome,
    arrived = math.min(r.arrived, began or over), started = began or nil, ended = over, worker = worker_name(r.worker),
    fence = r.fence and int(r.fence), waited_for = r.first_wait, error = note ~= '' and note or nil,
    key = r.key ~= '' and r.key or nil, entry = r.entry, due = r.due }, r))
  STATS.count(j, outcome)
  if started then
    j.last_took = over - began
    STATS.observe(j, 'run', j.last_took)
  end
  if r.continuous and outcome ~= 'requeued' and outcome ~= 'released' then ENDED_CONTINUOUS[#ENDED_CONTINUOUS + 1] = r end
end

-- The highest attempt of this run that has ended; nil if none is remembered. r: its id and publication.
function done_of(r)
  local attempt, publication = string.match(call('GET', K.done(r.id)) or '', '^(-?%d+) (.*)$')
  return publication == r.publication and tonumber(attempt) or nil
end

-- The done-marker makes sure that no copy of a message starts this attempt again.
function mark_done(r, attempt)
  call('SET', K.done(r.id), int(attempt) .. ' ' .. r.publication, 'PX', G.done_ms)
end

-- Deletes the record of an attempt. marker: leaves a done-marker.
function forget(r, marker)
  delete_run(r)
  if marker then mark_done(r, r.attempt) end
end

-- Deletes a dead letter.
function remove_dead_letter(id, name)
  local r = load_run(id, K.dead_letter)
  if r and r.task_id then call('SREM', K.task_runs(r.task_id), id) end
  call('DEL', K.dead_letter(id))
  call('ZREM', K.dead_letters, id)
  call('ZREM', K.unknown_dead_letters, id)
  call('ZREM', K.job_dead_letters(name), id)
end

-- The run failed for good: its record becomes a dead letter. trace: the traceback, or ''.
function dead_letter(r, note, trace)
  if G.dead_letters <= 0 then return forget(r, true) end
  mark_done(r, r.attempt)
  local key = K.dead_letter(r.id)
  call('RENAME', K.run(r.id), key)
  call('HDEL', key, 'progress', 'timed_out')
  call('HSET', key, 'info', cjson.encode(with_figures({ id = r.id, job = r.job, at = NOW, error = note or '',
    traceback = trace or '', attempt = r.attempt, key = r.key, arrived = r.arrived, worker = worker_name(r.worker),
    queue = r.queue }, r)))
  call('ZADD', K.dead_letters, int(NOW), r.id)
  call('ZADD', K.job_dead_letters(r.job), int(NOW), r.id)
  local over = call('ZCARD', K.job_dead_letters(r.job)) - G.dead_letters
  for _, id in ipairs(over > 0 and call('ZRANGE', K.job_dead_letters(r.job), 0, over - 1) or {}) do
    remove_dead_letter(id, r.job)
  end
end

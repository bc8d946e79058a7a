-- Identity: which run a message belongs to. Needs records, transitions.
--
-- A publication is one call. Everybody may publish a task id again, and each time it is another run, as in Celery; but a
-- redelivery, a copy of ours, a retry and a replacement belong to the publication that they come from, and say so. The
-- run of a publication has its task id for an id. If the ledger still knows another run of that task id (it has not ended,
-- has a done-marker or is a dead letter), it is <task id>~<publication>: that follows from the message, so that a copy
-- finds the same run. The publication of a fire is ''.

-- Returns the id of the run; its record, if it has not ended; the highest attempt that ended, if that is remembered.
-- any: the redelivered message does not say which publication it belongs to, so any known one counts.
function run_of(task, publication, any)
  local own = task .. '~' .. publication
  local r = load_run(task)
  if r and (any or r.publication == publication) then return task, r end
  if not r and call('EXISTS', K.done(task), K.dead_letter(task), K.run(own), K.done(own)) == 0 then
    return task
  end
  local known = any and string.match(call('GET', K.done(task)) or '', ' (.*)$')
  local done = done_of({ id = task, publication = known or publication })
  if done then return task, nil, done end
  local further = load_run(own)
  if further then return own, further end
  done = done_of({ id = own, publication = publication })
  if done then return own, nil, done end
  for _, id in ipairs(any and call('SRANDMEMBER', K.task_runs(task), 10) or {}) do
    further = load_run(id)
    if further then return id, further end
  end
  return own
end

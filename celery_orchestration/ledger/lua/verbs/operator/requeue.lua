-- uses: schema records lanes rules statistics index room ended_runs transitions entries hand_over memory
--
-- requeue: a dead letter becomes a run again, from the beginning. Or a dead letter or a waiting run becomes a run of
-- another job: it waits until a worker that has this job takes its message in.
--
-- ARGV  who, id of the letter, id of the run, its attempt, its message, and for another job: its name, own queue, granted
--       queue or ''
-- Returns  { 'ok' | 'none' (no such letter, or requeued already) | 'unknown' (nobody has its job) | 'exists' (a run of
--            that id has not ended), { granted: {id, grant number} for the caller to publish } }
-- Errors   none
-- Called again: 'none'; what was granted and not published is granted again by a sweep.
allow_when_full()
local r, as = load_run(ARGV[2], K.dead_letter), ARGV[6]
local waits = not r and as and load_run(ARGV[2]) or nil
if waits and (waits.state == 'waiting' or waits.state == 'later') and waits.job ~= as then r = waits end
if not r then return { 'none', {} } end
local j = job(as or r.job)
if not j or j.policy.hash == 'gone' then return { 'unknown', {} } end
if not waits and call('EXISTS', K.run(ARGV[3])) == 1 then return { 'exists', {} } end

-- If nobody knew the job when the message came, nobody knows the room key either.
local stray = (as or call('ZSCORE', K.unknown_dead_letters, r.id)) and true or nil
if waits then
  local old = job(r.job)
  withdraw(old, r)
  note_end(old, r, 'requeued', 'as ' .. as, false)
  ended(old, r, nil)
  forget(r, false)
  refresh(old)
  refresh_dependents(old)
else
  remove_dead_letter(r.id, r.job)
end
call('DEL', K.done(ARGV[3]))
local class = is_forced(r.rank) and 2 or math.floor(r.rank / CLASS)
enqueue(j, run_record({ id = ARGV[3], job = j.name, key = j.policy.keyed and not as and r.key or nil, stray = stray,
  attempt = tonumber(ARGV[4]), rank = class * CLASS + next_seq(), queue = ARGV[7] or r.queue,
  granted_queue = ARGV[8] or r.granted_queue, arrived = NOW, publication = r.publication,
  task_id = ARGV[3] == r.id and r.task_id or nil }), ARGV[5])
refresh(j)
audit(ARGV[1], 'requeue', r.id, r.job)
hand_over(16)
flush()
return { 'ok', HAND.grants }

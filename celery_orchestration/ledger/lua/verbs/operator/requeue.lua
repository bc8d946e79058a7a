-- uses: schema records statistics rules index room transitions entries hand_over memory
--
-- requeue: a dead letter becomes a run again, from the beginning. Or it, or a run that waits, becomes one of another job: that
-- waits for a worker that has this job to take its message in.
--
-- ARGV  who, id of the letter, id of the run, its attempt, its message, and for another job: its name, own queue, granted
--       queue or ''
-- Returns  { 'ok' | 'none' (no such letter, or requeued already) | 'unknown' (nobody has its job) | 'exists' (a run of
--            that id has not ended), { granted: {id, grant number} for the caller to publish } }
-- Called again: 'none'; what was granted and not published is granted again by a sweep.
make_way()
local r, as = load_run(ARGV[2], 'dl:'), ARGV[6]
local waits = not r and as and load_run(ARGV[2]) or nil
if waits and (waits.st == 'waiting' or waits.st == 'later') and waits.job ~= as then r = waits end
if not r then return { 'none', {} } end
local j = job(as or r.job)
if not j or j.hash == 'gone' then return { 'unknown', {} } end
if not waits and call('EXISTS', P .. 'r:' .. ARGV[3]) == 1 then return { 'exists', {} } end

-- Of a job that nobody knew when it came, its room key is not known either.
local stray = (as or call('ZSCORE', P .. 'lost', r.id)) and true or nil
if waits then
  local old = job(r.job)
  withdraw(old, r)
  note_down(old, r, 'requeued', 'as ' .. as, false)
  ended(old, r, nil)
  forget(r, false)
  refresh(old)
  refresh_dependents(old)
else
  remove_dead_letter(r.id, r.job)
end
call('DEL', P .. 'd:' .. ARGV[3])
local class = r.rank < 0 and 2 or math.floor(r.rank / CLASS)
enqueue(j, { id = ARGV[3], job = j.name, key = j.keyed and not as and r.key or '', stray = stray, a = tonumber(ARGV[4]), rank = class * CLASS + next_seq(),
  rec = 0, tries = 0, jd = false, sd = false, q = ARGV[7] or r.q, gq = ARGV[8] or r.gq, enq = NOW, pub = r.pub,
  tid = ARGV[3] == r.id and r.tid or nil }, ARGV[5])
refresh(j)
audit(ARGV[1], 'requeue', r.id, r.job)
hand_over(16)
flush()
return { 'ok', HAND.grants }

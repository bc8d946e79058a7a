-- uses: records gate room life entries hand_over full
--
-- requeue: a dead letter becomes a run again, from the beginning.
--
-- ARGV  who, id of the letter, id of the run, its attempt, its message
-- Returns  { 'ok' | 'none' (no such letter, or requeued already) | 'unknown' (nobody has its job) | 'exists' (a run of
--            that id has not ended), { granted: {id, grant number} for the caller to publish } }
-- Called again: 'none'; what was granted and not published is granted again by a sweep.
make_way()
local r = load_run(ARGV[2], 'dl:')
if not r then return { 'none', {} } end
local j = job(r.job)
if not j or j.hash == 'gone' then return { 'unknown', {} } end
if call('EXISTS', P .. 'r:' .. ARGV[3]) == 1 then return { 'exists', {} } end

unbury(r.id, r.job)
call('DEL', P .. 'd:' .. ARGV[3])
local class = r.rank < 0 and 2 or math.floor(r.rank / CLASS)
enqueue(j, { id = ARGV[3], job = r.job, key = j.keyed and r.key or '', a = tonumber(ARGV[4]), rank = class * CLASS + next_seq(),
  rec = 0, tries = 0, jd = false, sd = false, q = r.q, gq = r.gq, enq = NOW }, ARGV[5])
refresh(j)
audit(ARGV[1], 'requeue', r.id, r.job)
hand_over(16)
flush()
return { 'ok', HAND.grants }

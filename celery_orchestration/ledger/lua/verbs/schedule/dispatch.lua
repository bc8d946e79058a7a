-- uses: schema records statistics rules index room transitions entries term hand_over due memory
--
-- dispatch: fires that are due. Each becomes one run, whatever happens: it is named by its entry, the generation of that and
-- its due time, and a due time not after the entry's last one is refused. Whether it makes a run at all (catch_up, overlap,
-- a disabled job that drops runs) is decided here, and so is the gate: it is granted, or it waits.
--
-- ARGV  term, then for each: entry, generation, due time (ms), the due time after it (ms) or '', how many due times before
--         it were missed, job or '' (no job of ours: only whether to send it is asked), run id, room key, priority, expires (ms)
--         or '', own queue, granted queue or '', message or '' (it is made only if the fire makes a run: ask again with it),
--         not before (ms) or '', overlap (skip | queue | allow), how late it may be (ms), why it is not to be sent or ''
-- Returns  { ok | term (another one leads: nothing changed) | full (Redis has no room for more runs: nothing changed),
--            { of each: {fired} | {skipped, why} | {missed} (too late) | {send} (publish it, then tell verb confirm_sent)
--                     | {make} (it makes a run: make its message and ask again; nothing changed)
--                     | {known, how} (this one or a later one was fired before) | {paused} | {early} (by Redis's clock)
--                     | {stale} (another generation, or none: adopt it) | {unknown} (no policy for its job: register)
--                     | {corrupt, what is wrong}: nothing changed, the others go on },
--            { granted: {id, grant number} for the caller to publish } }
-- Called again: known, with the same grants as long as nobody published them.
local FIELDS, EARLY_MS, LATE = 17, 1000, 'nobody fired it in time'
if not is_term(ARGV[1]) then return { 'term', {}, {} } end
local full, unwritable = is_full(lead_key(service_of_term(ARGV[1])), 'term')
if unwritable then return unwritable end
if full then return { 'full', {}, {} } end

-- Does the entry's last run keep the next one from being made? Returns why.
local function overlaps(e, overlap)
  local r = overlap ~= 'allow' and is_under_way(e.run)
  if not r then return nil end
  if not r.sd then return 'the run before it has not started' end
  if overlap == 'skip' then return 'the run before it has not ended' end
  return nil
end

-- Why this fire makes no run, or nil.
local function keeps_from_firing(j, e, f)
  local why = overlaps(e, f.overlap)
  if not why and is_dropped(j, { id = f.id, rank = (3 - f.prio) * CLASS }) then why = 'its job is disabled' end
  if not why and f.refused ~= '' then why = f.refused end
  return why
end

-- The gate looks at these for a run of j: should one of them be corrupt, that has to show before anything is written.
local function look_around(j, key)
  for _, jd in ipairs({ false, true }) do call('ZCARD', lane_of(j, j.keyed and key or '', jd)) end
  see_to('sq:' .. j.name, 'zset')
  for _, dep in ipairs(j.deps) do job(dep.job) end
  for _, name in ipairs(j.blk > 0 and j.conf or with_waiters(j.conf)) do job(name) end
  for _, group in ipairs(j.groups) do
    see_to('bar:' .. group, 'zset')
    see_to('held:' .. group, 'set')
    local name = first_of_group(group, j.name)
    if name then job(name) end
  end
end

local function judge(f)
  local e, problem = load_entry(f.entry)
  if problem then return { 'corrupt', problem } end
  if not e or e.gen ~= f.gen then return { 'stale' } end
  if f.due <= e.last then
    local r = f.due == e.last and load_run(f.id)
    if r and r.st == 'granted' then HAND.grants[#HAND.grants + 1] = { r.id, int(r.gn) } end
    return { 'known', f.due == e.last and e.how or '' }
  end
  if e.off then return { 'paused' } end
  if f.due > NOW + EARLY_MS then return { 'early' } end
  local late = NOW - f.due > f.late
  if f.job == '' then
    if not late and f.refused == '' then return { 'send' } end
    note_fire(e, f.due, f.next, late and 'missed' or 'skipped', nil, f.missed)
    return late and { 'missed' } or { 'skipped', f.refused }
  end
  local j = job(f.job)
  if not j or j.hash == 'gone' then return { 'unknown' } end
  look_around(j, f.key)
  local why = not late and keeps_from_firing(j, e, f)
  local remembered = call('EXISTS', P .. 'r:' .. f.id, P .. 'd:' .. f.id) > 0
  if not late and not why and not remembered and f.message == '' then return { 'make' } end

  if f.missed > 0 then note_none(j, e, 'missed', LATE, '', f.due, f.missed) end
  if late then
    note_none(j, e, 'missed', LATE, '', f.due, 1)
    note_fire(e, f.due, f.next, 'missed', nil, f.missed)
    return { 'missed' }
  end
  if why then
    note_none(j, e, 'skipped', why, f.id, f.due, 1)
    note_fire(e, f.due, f.next, 'skipped', nil, f.missed)
    return { 'skipped', why }
  end
  note_fire(e, f.due, f.next, 'fired', f.id, f.missed)
  -- An entry that was forgotten, and came again: its runs may be remembered.
  if remembered then return { 'known', '' } end
  fire(j, e, f.due, { id = f.id, key = f.key, prio = f.prio, ex = f.ex, q = f.q, gq = f.gq, eta = f.eta }, f.message)
  return { 'fired' }
end

local answers = {}
for i = 2, #ARGV, FIELDS do
  local sound, answer = pcall(judge, { entry = ARGV[i], gen = ARGV[i + 1], due = tonumber(ARGV[i + 2]), next = ARGV[i + 3],
    missed = tonumber(ARGV[i + 4]), job = ARGV[i + 5], id = ARGV[i + 6], key = ARGV[i + 7], prio = tonumber(ARGV[i + 8]),
    ex = tonumber(ARGV[i + 9]), q = ARGV[i + 10], gq = ARGV[i + 11], message = ARGV[i + 12], eta = tonumber(ARGV[i + 13]),
    overlap = ARGV[i + 14], late = tonumber(ARGV[i + 15]), refused = ARGV[i + 16] })
  answers[#answers + 1] = sound and answer or { 'corrupt', type(answer) == 'table' and answer.err or tostring(answer) }
end
-- What others have waiting must not undo what was fired.
local sound, problem = pcall(hand_over, 64)
if not sound then note_bad('dispatch', type(problem) == 'table' and problem.err or tostring(problem)) end
flush()
return { 'ok', answers, HAND.grants }

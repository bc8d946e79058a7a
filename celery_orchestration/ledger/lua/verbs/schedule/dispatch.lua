-- uses: schema records lanes rules statistics index room ended_runs transitions entries term hand_over wake memory
--
-- dispatch: fires that are due. Each becomes one run, whatever happens: the id of the run follows from the entry, its
-- generation and the due time, and a due time that is not after the entry's last one is refused. This verb decides
-- whether a fire makes a run at all (catch_up, overlap, a disabled job that drops runs), and whether that run is
-- granted or waits.
--
-- ARGV  term, then of each a fire: due_ms, next_ms (the due time after it) or '', missed (how many due times before it were
--         missed), job or '' (no job of ours: only whether to send it is asked), id of the run, late_ms (how late it may be),
--         overlap (skip | queue | allow), expires_ms or '', granted_queue or '', message or '' (the caller makes it
--         only if the fire makes a run, and then asks again), eta_ms (not before) or '', refused (why it must not be
--         sent) or ''
-- Returns  { ok | term (another one leads: nothing changed) | full (Redis has no room for more runs: nothing changed),
--            { of each: {fired} | {skipped, why} | {missed} (too late) | {send} (publish it, then call confirm_sent)
--                     | {make} (it makes a run: make its message and ask again; nothing changed)
--                     | {known, how} (this due time or a later one was fired before) | {paused}
--                     | {early} (by Redis's clock)
--                     | {stale} (another generation, or none: adopt it) | {unknown} (no policy for its job: register)
--                     | {corrupt, what is wrong}: nothing changed, the others go on },
--            { granted: {id, grant number} for the caller to publish } }
-- Errors   none of its own; Redis's, if it takes no writes
-- Called again: known, with the same grants as long as nobody published them.
local EARLY_MS, LATE = 1000, 'nobody fired it in time'
if not is_term(ARGV[1]) then return { 'term', {}, {} } end
local full, unwritable = is_full(lead_key(service_of_term(ARGV[1])), 'term')
if unwritable then return unwritable end
if full then return { 'full', {}, {} } end

-- Does the entry's last run keep the next one from being made? Returns why.
local function overlaps(e, overlap)
  local r = overlap ~= 'allow' and unended_run(e.run)
  if not r then return nil end
  if not r.started then return 'the run before it has not started' end
  if overlap == 'skip' then return 'the run before it has not ended' end
  return nil
end

-- Why this fire makes no run, or nil.
local function keeps_from_firing(j, e, f)
  local why = overlaps(e, f.overlap)
  if not why and is_dropped(j, { id = f.id, rank = (3 - f.priority) * CLASS }) then why = 'its job is disabled' end
  if not why and f.refused ~= '' then why = f.refused end
  return why
end

-- Reads all records that the gate reads for a run of j: if one of them is corrupt, that must show before anything is
-- written.
local function preload(j, key)
  for _, checked in ipairs({ false, true }) do call('ZCARD', lane_of(j, j.policy.keyed and key or '', checked)) end
  ensure_type('unstarted', j.name)
  for _, dep in ipairs(j.policy.depends_on) do job(dep.job) end
  for _, name in ipairs(j.blocked > 0 and j.policy.conflicts or with_waiters(j.policy.conflicts)) do job(name) end
  for _, group in ipairs(j.policy.groups) do
    ensure_type('group_bars', group)
    ensure_type('group_holders', group)
    local name = first_of_group(group, j.name)
    if name then job(name) end
  end
end

local function judge(f)
  local e, problem = load_entry(f.entry)
  if problem then return { 'corrupt', problem } end
  if not e or e.generation ~= f.generation then return { 'stale' } end
  if f.due_ms <= e.last then
    local r = f.due_ms == e.last and load_run(f.id)
    if r and r.state == 'granted' then HAND.grants[#HAND.grants + 1] = { r.id, int(r.grant) } end
    return { 'known', f.due_ms == e.last and e.how or '' }
  end
  if e.paused then return { 'paused' } end
  if f.due_ms > NOW + EARLY_MS then return { 'early' } end
  local late = NOW - f.due_ms > f.late_ms
  if f.job == '' then
    if not late and f.refused == '' then return { 'send' } end
    note_fire(e, f.due_ms, f.next_ms, late and 'missed' or 'skipped', nil, f.missed)
    return late and { 'missed' } or { 'skipped', f.refused }
  end
  local j = job(f.job)
  if not j or j.policy.hash == 'gone' then return { 'unknown' } end
  preload(j, f.key)
  local why = not late and keeps_from_firing(j, e, f)
  local remembered = call('EXISTS', K.run(f.id), K.done(f.id)) > 0
  if not late and not why and not remembered and f.message == '' then return { 'make' } end

  if f.missed > 0 then note_no_run(j, e, 'missed', LATE, '', f.due_ms, f.missed) end
  if late then
    note_no_run(j, e, 'missed', LATE, '', f.due_ms, 1)
    note_fire(e, f.due_ms, f.next_ms, 'missed', nil, f.missed)
    return { 'missed' }
  end
  if why then
    note_no_run(j, e, 'skipped', why, f.id, f.due_ms, 1)
    note_fire(e, f.due_ms, f.next_ms, 'skipped', nil, f.missed)
    return { 'skipped', why }
  end
  note_fire(e, f.due_ms, f.next_ms, 'fired', f.id, f.missed)
  -- The ledger had forgotten the entry, but may remember its runs.
  if remembered then return { 'known', '' } end
  fire(j, e, f.due_ms, f)
  return { 'fired' }
end

local answers = {}
for _, f in ipairs(read_arguments('fire', 2)) do
  local sound, answer = pcall(judge, f)
  answers[#answers + 1] = sound and answer or { 'corrupt', type(answer) == 'table' and answer.err or tostring(answer) }
end
-- An error in another job must not undo these fires.
local sound, problem = pcall(hand_over, 64)
if not sound then note_corrupt('dispatch', type(problem) == 'table' and problem.err or tostring(problem)) end
flush()
return { 'ok', answers, HAND.grants }

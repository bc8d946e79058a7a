-- uses: schema records lanes rules statistics index room ended_runs transitions entries term hand_over memory
--
-- continue_entries: continuous entries begin, or go on if their chain of runs broke (a run was cancelled by hand,
-- forgotten or dropped). If a run waits for much longer than the pause between two runs, because Redis's clock was set
-- back or the pause is shorter now, it is brought forward.
--
-- ARGV  term, entries...
-- Returns  { ok | term (another one leads: nothing changed) | full,
--            { of each: {fired} | {rests} (it has a run, or may not have one now) | {stale} (adopt it) },
--            { granted: {id, grant number} for the caller to publish } }
-- Errors   none of its own; Redis's, if it takes no writes
-- Called again: the runs that were made are there; what was granted and not published is granted again by a sweep.
if not is_term(ARGV[1]) then return { 'term', {}, {} } end
local full, unwritable = is_full(lead_key(service_of_term(ARGV[1])), 'term')
if unwritable then return unwritable end
if full then return { 'full', {}, {} } end

local function bring_forward(e, r)
  if r.state ~= 'later' or r.started or r.eta <= NOW + e.gap + AHEAD_MS then return end
  r.eta = NOW + e.gap
  save_run(r)
  call('ZADD', K.later, int(r.eta), r.id)
  note_due(r.eta)
end

local answers = {}
for i = 2, #ARGV do
  local e = load_entry(ARGV[i])
  if not e or not e.gap then
    answers[#answers + 1] = { 'stale' }
  else
    local r = unended_run(e.run)
    if r then bring_forward(e, r) end
    answers[#answers + 1] = { not r and fire_again(e) and 'fired' or 'rests' }
  end
end
hand_over(64)
flush()
return { 'ok', answers, HAND.grants }

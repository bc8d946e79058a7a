-- uses: records gate room life entries term hand_over full
--
-- continue: continuous entries begin, and go on if their chain of runs broke: cancelled by hand, forgotten, dropped.
--
-- ARGV  term, entries...
-- Returns  { ok | term (another one leads: nothing changed) | full,
--            { of each: {fired} | {rests} (it has a run, or may not have one now) | {stale} (adopt it) },
--            { granted: {id, grant number} for the caller to publish } }
-- Called again: the runs that were made are there; what was granted and not published is granted again by a sweep.
if not is_term(ARGV[1]) then return { 'term', {}, {} } end
local full, unwritable = is_full(P .. 'lead', 'term')
if unwritable then return unwritable end
if full then return { 'full', {}, {} } end

local answers = {}
for i = 2, #ARGV do
  local e = load_entry(ARGV[i])
  if not e or not e.cont then
    answers[#answers + 1] = { 'stale' }
  else
    answers[#answers + 1] = { not is_under_way(e.run) and fire_again(e) and 'fired' or 'rests' }
  end
end
hand_over(64)
flush()
return { 'ok', answers, HAND.grants }

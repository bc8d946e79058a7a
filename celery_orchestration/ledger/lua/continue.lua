-- uses: records gate room life entries term hand_over full
--
-- continue: continuous entries begin, and go on if their chain of runs broke: cancelled by hand, forgotten, dropped.
--
-- ARGV  term, entries...
-- Returns  { ok | term (another one leads: nothing changed) | full,
--            { of each: 1 if a run was made, 0 if it has one, or may not have one now, -1 if it is to be adopted again },
--            { granted: {id, grant number} for the caller to publish } }
-- Called again: the runs that were made are there; what was granted and not published is granted again by a sweep.
if not is_term(ARGV[1]) then return { 'term', {}, {} } end
local full, unwritable = is_full(P .. 'lead', 'term')
if unwritable then return unwritable end
if full then return { 'full', {}, {} } end

local function is_over(id)
  local r = load_run(id)
  return not r or r.st == 'ending' or r.st == 'released'
end

local made = {}
for i = 2, #ARGV do
  local e = load_entry(ARGV[i])
  if not e or not e.cont then
    made[#made + 1] = -1
  else
    made[#made + 1] = (not e.run or is_over(e.run)) and fire_again(e) and 1 or 0
  end
end
hand_over(64)
flush()
return { 'ok', made, HAND.grants }

-- The rules of the gate: may a run start now, and if not, what does it wait for? Needs schema, records, lanes.
--
-- The facts come first: what is known about jobs and their waiting runs. The rules follow, one function each, and RULES is the
-- order in which they are asked. index.lua uses the same facts to find waiting runs that may start without asking every job.

-- A forced run ranks below zero: see schema.lua.
function is_forced(rank)
  return rank < 0
end

-- The age of a tick (lib/records.lua) in ms. A tick is close to Redis's clock in microseconds.
local function age_ms(t)
  return NOW - math.floor(t / 1000)
end

-- The arrival of the first waiting run of d that has not started. Later runs of d's dependents wait for that run.
local function first_unstarted(d)
  while true do
    local e = redis.pcall('ZRANGE', K.unstarted(d.name), 0, 0, 'WITHSCORES')
    if e.err then set_aside(K.unstarted(d.name), e.err) end
    if not e[1] then return nil end
    local r = load_run(e[1])
    if r and not r.started and r.state ~= 'ending' then return tonumber(e[2]) end
    -- A worker with an older version of the package started it: that version does not know this set.
    call('ZREM', K.unstarted(d.name), e[1])
  end
end

-- The dependencies of a run of j of this rank. Returns nil if every dependency is met, else which one is not and how:
-- {dependency, 'unknown' | 'busy' | 'earlier' | 'disabled' | 'never' | 'failed' | 'old' | 'stale'}.
function unmet(j, rank)
  for _, dep in ipairs(j.policy.depends_on) do
    local d = job(dep.job)
    if not d then return { dep.job, 'unknown' } end
    if d.busy > 0 then return { dep.job, 'busy' } end
    local from = first_unstarted(d)
    if from and from < rank % CLASS then return { dep.job, d.disabled and 'disabled' or 'earlier' } end
    if dep.on ~= 'idle' then
      local how = nil
      if not d.last_end then
        how = 'never'
      elseif dep.on == 'success' and d.last_ok ~= true then
        how = 'failed'
      elseif dep.max_age_seconds and age_ms(d.last_end) > dep.max_age_seconds * 1000 then
        how = 'old'
      elseif dep.fresh and j.last_start and d.last_end <= j.last_start then
        how = 'stale'
      end
      if how then return { dep.job, d.disabled and 'disabled' or how } end
    end
  end
  return nil
end

local function room_taken(j, key)
  if not j.policy.keyed then return j.running end
  return tonumber(call('HGET', K.room(j.name), key)) or 0
end

function has_room(j, key)
  return not j.policy.max_running or room_taken(j, key) < j.policy.max_running
end

-- A run of j takes room (by: 1), or no longer holds it (-1). What a rule counts about runs that take room is counted here, in
-- a field of j with the word of the rule.
function count_room(j, key, by)
  j.running, j.dirty = j.running + by, true
  G.total, G.dirty = G.total + by, true
  if j.policy.keyed and call('HINCRBY', K.room(j.name), key, by) <= 0 then call('HDEL', K.room(j.name), key) end
end

-- Runs of j that arrived before this arrival wait for no waiting run of a dependency. nil: no run of j waits for one.
function free_until(j)
  local arrival = nil
  for _, dep in ipairs(j.policy.depends_on) do
    local d = job(dep.job)
    local from = d and first_unstarted(d)
    if from and (not arrival or from < arrival) then arrival = from end
  end
  return arrival
end

-- Does `disabled` let this run start? Yes if the job is enabled, the run is forced, or it is the probe run (the next
-- run, if probe is '').
function enabled_for(j, id, rank)
  return not j.disabled or is_forced(rank) or j.probe == '' or j.probe == id
end

-- How many jobs of a group hold room; read once a call.
HELD = nil

on_call(function() HELD = {} end)

local function held(group)
  HELD[group] = HELD[group] or call('SCARD', K.group_holders(group))
  return HELD[group]
end

-- Is another job of the group holding room?
local function group_blocks(j, group)
  return held(group) > (j.running > 0 and 1 or 0)
end

-- Does a job that j conflicts with hold room?
function is_blocked(j)
  if j.blocked > 0 then return true end
  for _, group in ipairs(j.policy.groups) do
    if group_blocks(j, group) then return true end
  end
  return false
end

-- The job of a group whose waiting run ranks first, except these two jobs: its name and rank. It bars all other jobs of
-- the group.
function first_of_group(group, name, except)
  local e = call('ZRANGE', K.group_bars(group), 0, 2, 'WITHSCORES')
  for i = 1, #e, 2 do
    if e[i] ~= name and e[i] ~= except then return e[i], tonumber(e[i + 1]) end
  end
  return nil
end

-- Does a conflicting job have a waiting run that ranks before `rank`? Returns the name of the first such job.
-- `except` names a job whose runs do not count.
function barred(j, rank, except)
  local found = nil
  for from = 1, #j.policy.conflicts, 1000 do
    local part = { unpack(j.policy.conflicts, from, math.min(from + 999, #j.policy.conflicts)) }
    for i, r in ipairs(call('ZMSCORE', K.bars, unpack(part))) do
      local before = r and tonumber(r)
      if before and before < rank and part[i] ~= except then found, rank = part[i], before end
    end
  end
  for _, group in ipairs(j.policy.groups) do
    local name, before = first_of_group(group, j.name, except)
    if name and before < rank then found, rank = name, before end
  end
  return found
end

-- The job that blocks j; if there are several, the first by name.
local function blocking(j)
  local found = nil
  if j.blocked > 0 then
    for _, name in ipairs(j.policy.conflicts) do
      local k = job(name)
      if k and k.running > 0 and (not found or name < found) then found = name end
    end
  end
  for _, group in ipairs(j.policy.groups) do
    for _, name in ipairs(group_blocks(j, group) and call('SMEMBERS', K.group_holders(group)) or {}) do
      if name ~= j.name and (not found or name < found) then found = name end
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------ rules
-- Each takes a job and a run of it (id, key, rank, deps_checked), and returns nil, or what the run waits for: a list of words
-- that job/reasons.py turns into a sentence. A rule that opens by itself also returns when (ms). Rules change
-- no state of a run or a job.
local RULE = {}

-- In a new epoch nothing starts until every worker could claim what it runs.
function RULE.epoch()
  if G.clock < G.opens then return { 'epoch' } end
end

function RULE.paused(_, r)
  if G.paused and not is_forced(r.rank) then return { 'paused' } end
end

function RULE.disabled(j, r)
  if not enabled_for(j, r.id, r.rank) then return { 'disabled', j.disabled } end
end

function RULE.room(j, r)
  if not has_room(j, r.key) then return { 'room', j.name, r.key } end
end

-- The verb turn also lets no arrival pass waiting runs into this room.
function RULE.global()
  if G.max_running and G.total >= G.max_running then return { 'global' } end
end

function RULE.blocked(j)
  local holder = blocking(j)
  if holder then return { 'blocked', holder } end
end

function RULE.depends(j, r)
  local dep = not r.deps_checked and unmet(j, r.rank)
  if dep then return { 'depends', dep[1], dep[2] } end
end

-- The kinds of the rules that are listed below. The gate asks all rules about a run that arrives. To ask them about
-- each waiting run would take hand_over too long: the kind of a rule says who asks it instead.
--   all_jobs: about all jobs alike. hand_over asks before it looks for a run (held_back): without a job, with a rank only.
--   its_job: about the job and its dependencies. The index asks about the first waiting run of a job (bars_others). A waiting
--     run that such a rule holds back does not bar others: if J waits for D, J must not bar D. Only such a rule may
--     open by itself, as time passes.
--   indexed: index.lua and room.lua keep the answer up to date.
local ALL_JOBS, ITS_JOB = {}, {}
local OF_KIND = { all_jobs = ALL_JOBS, its_job = ITS_JOB, indexed = {} }

-- Does a waiting run bar runs that rank after it? Returns true; or false, the rule, and when (ms) time opens that
-- rule, if it does.
function bars_others(j, r)
  for i = 1, #ITS_JOB do
    local reason, opens = ITS_JOB[i](j, r)
    if reason then return false, reason[1], opens end
  end
  return true
end

-- The run of the same lane that goes before a run of this rank, or nil.
local function lane_bars(j, key, rank)
  if j.waiting <= 0 then return nil end
  local id, other = first_in(lane_of(j, key, true))
  if id and other < rank and bars_others(j, { id = id, key = key, rank = other, deps_checked = true }) then return id end
  id, other = first_until(lane_of(j, key, false), free_until(j))
  if id and other < rank and bars_others(j, { id = id, key = key, rank = other }) then return id end
  return nil
end

function RULE.behind_own(j, r)
  local first = lane_bars(j, r.key, r.rank)
  if first then return { 'behind', j.name, first } end
end

function RULE.behind_others(j, r)
  local other = barred(j, r.rank)
  if other then return { 'behind', other } end
end

-- The rules in order, each with its kind: the first that returns a reason is what the run waits for.
local RULES = {
  { RULE.epoch, 'all_jobs' },
  { RULE.paused, 'all_jobs' },
  { RULE.disabled, 'its_job' },
  { RULE.room, 'indexed' },
  { RULE.global, 'all_jobs' },
  { RULE.blocked, 'indexed' },
  { RULE.depends, 'its_job' },
  { RULE.behind_own, 'indexed' },
  { RULE.behind_others, 'indexed' },
}

for i = 1, #RULES do -- while Redis loads a library there is no ipairs
  local rule, kind = RULES[i][1], OF_KIND[RULES[i][2]]
  kind[#kind + 1] = rule
  RULES[i] = rule
end

-- The reasons for which waits are counted (lib/statistics.lua). Their places are stored: only append.
STATS.REASONS = { 'slot', 'epoch', 'paused', 'disabled', 'room', 'global', 'blocked', 'depends', 'behind', 'alone' }

local ANY_RUN = {}

-- Does a rule about all jobs keep runs of this rank from starting? Returns its reason, or nil.
function held_back(rank)
  ANY_RUN.rank = rank
  for i = 1, #ALL_JOBS do
    local reason = ALL_JOBS[i](nil, ANY_RUN)
    if reason then return reason end
  end
  return nil
end

-- May this run of j start now? Returns nil if so, else what it waits for.
function reason_to_wait(j, r)
  for i = 1, #RULES do
    local reason = RULES[i](j, r)
    if reason then return reason end
  end
  return nil
end

-- The reason as one text, as the history and observe mode record it. Room keys and ids are left out: they are unbounded.
function as_recorded(reason)
  if not reason then return nil end
  local most = reason[1] == 'disabled' and 1 or reason[1] == 'depends' and 3 or 2
  return table.concat(reason, ' ', 1, math.min(#reason, most))
end

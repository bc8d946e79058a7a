-- This file is long because it declares all data of the ledger once.
--
-- The data of the ledger, declared once: its keys, the fields of its records, and the arguments of its verbs.
-- ledger/records.py declares keys and arguments for Python; tests/integration/test_ledger_schema.py compares the two.
--
-- KEYS[1] is the prefix "{namespace}:". Every key starts with it, so that one hash slot holds the ledger.
-- K.<name> is a key: K.waiting, K.run(id), K.lane(job, room key). Job names are encoded by keys.py and never contain ':'.
-- Ranks: (3 - priority) * 2^50 + the number of the arrival. A lower rank goes first. A forced run has one below zero.
-- Redis may load this file once and call its functions many times (ledger/scripts.py). So functions given to `on_call`
-- set what belongs to one call.

-- Single keys, with their types.
KEY = {
  ledger = 'hash', -- the ledger itself: see GLOBAL below, and lib/epoch.lua
  -- jobs
  jobs = 'set', -- names of all jobs
  installed = 'hash', -- job -> hash of its policy
  groups = 'hash', -- group of jobs that run one at a time -> how many jobs it has
  disabled_jobs = 'set', -- jobs that are disabled
  timers = 'zset', -- <rule>:<job>, by time (ms): that rule may let the job's waiting runs start then
  waiting_jobs = 'set', -- jobs with runs in their lanes
  stale_jobs = 'set', -- jobs to be refreshed, because workers serve other queues than before
  unseen_jobs = 'set', -- jobs to be refreshed, because a job that very many depend on started or ended
  jobs_with_unseen_dependents = 'set', -- the jobs that very many depend on: their waiting runs stay until unseen_jobs is empty
  -- the index: which waiting runs may start
  bars = 'zset', -- jobs whose first waiting run lacks only room or its turn, by its rank: they bar jobs they conflict with
  open_sets = 'set', -- queues with a non-empty open set
  ready_sets = 'set', -- those of them that live workers serve
  -- runs
  waiting = 'zset', -- every run that waits, by rank
  later = 'zset', -- runs that must not start before a time, by that time (ms)
  expiring = 'zset', -- waiting runs that expire, by time (ms)
  released = 'zset', -- runs that are being published past the gate, by rank
  astray = 'zset', -- runs whose message came to a worker without their job, by when another may take it in (ledger clock)
  alone = 'hash', -- run that took its workers down too often -> the worker kept free for it, or ''
  deadlines = 'zset', -- granted runs, ends not carried out yet, runs whose retry has not arrived: by deadline (ledger clock)
  under_way = 'hash', -- queue -> granted runs that have not started
  dead_letters = 'zset', -- dead letters of all jobs, by time (ms)
  unknown_dead_letters = 'zset', -- dead letters of jobs that nobody knew, by time (ms); bounded
  -- workers and schedulers (nodes); a key or argument called `worker` stands for either
  leases = 'zset', -- live workers by the end of their lease (ledger clock)
  live = 'hash', -- release:<release> and kind:<kind> -> how many live workers there are
  worker_names = 'hash', -- worker name -> worker, the latest that registered
  ordered_names = 'zset', -- names of workers, in order
  dead_workers = 'list', -- workers that died (JSON), the latest first; bounded
  slots = 'hash', -- queue -> slots of the live workers that serve it
  -- releases
  releases = 'hash', -- release -> its policies (JSON)
  release_order = 'zset', -- releases, by when they were first seen
  services = 'hash', -- release -> the service that brings it
  stopped_releases = 'hash', -- release -> when its last worker went (ms)
  -- the schedule
  entries = 'zset', -- entries of the schedule, by when a leader last adopted them (ms)
  added_entries = 'set', -- entries that people added
  changed_entries = 'zset', -- entries that people changed, by the number of the change; bounded
  paused_entries = 'set', -- entries that are paused
  leader = 'hash', -- the leading scheduler: term, who, name, since, until (ms; Redis's clock)
  led_services = 'set', -- services that ever had a leader
  -- people
  decided = 'hash', -- decisions made while the gate was closed in a new epoch: pause | job:<job> | entry:<entry> ->
  --                   people | restored (nodes remembered it)
  audit = 'list', -- who changed what when (JSON), the latest first; bounded
  corrupt = 'hash', -- records that could not be read: key -> when and why (JSON)
  supervisors = 'hash', -- supervisor of pools -> JSON (lib/places.lua). Dead ones are kept for a while
}

-- Families of keys: one key for each job, run, worker and so on.
KEYS_OF = {
  job = 'hash', -- <job>: policy, state (packed); blocked: how many conflicting jobs hold room; disabled: by whom, why and since
  --              when (JSON); seen: the latest release that had it, if no live one has it; copies: how many copies of
  --              its messages were dropped; minute: what it did in the current minute (lib/statistics.lua)
  room = 'hash', -- <job>: keyed jobs: room key -> room taken
  unstarted = 'zset', -- <job>: its runs that wait and have not started, by arrival; only of jobs that others depend on
  history = 'list', -- <job>: runs that ended (JSON: see HISTORY), the latest first; bounded
  observed = 'hash', -- <job>: observe mode: reason -> how often a run would have waited for it
  job_dead_letters = 'zset', -- <job>: its dead letters, by time (ms); bounded
  totals = 'hash', -- <job>: statistics, as minutes and hours (lib/statistics.lua)
  minutes = 'hash', -- <job>:<0-23>
  hours = 'hash', -- <job>:<0-29>
  lane = 'zset', -- <job>:<room key>: waiting runs whose dependencies are not checked yet, by rank
  lane_checked = 'zset', -- <job>:<room key>: waiting runs whose dependencies were checked: retries, recovered runs
  lane_heads = 'zset', -- <job>: keyed jobs: room keys whose lane has waiting runs and room, by the rank of its first run
  lane_heads_checked = 'zset', -- <job>: the same for lane_checked
  group_bars = 'zset', -- <group>: the same as bars, of the jobs in one group
  group_holders = 'set', -- <group>: jobs of the group that hold room
  open = 'zset', -- <queue>: jobs whose first waiting run may start on that queue (by all rules but those about all jobs),
  --               by rank. If some of the workers there lack the job: <queue>, a line feed, and the releases that have it
  run = 'hash', -- <run>: record (packed), message (opaque), progress, timed_out (both packed, with the fence of the
  --              start that they are about), revoked
  next_attempt = 'hash', -- <run>: a higher attempt of a running run, which waits for that run to end. Fields as of run
  done = 'string', -- <run>: done-marker: the highest attempt that ended, and its publication. The only keys with a TTL
  task_runs = 'set', -- <task id>: runs and dead letters of this task id with another id, because it was published again
  dead_letter = 'hash', -- <run>: record and message as of the run; info: what happened (JSON); revoked
  worker = 'hash', -- <worker>: name, host, pid, slots, kind, queues, release, service, mode, lease (ms), since, heartbeat (ms),
  --                 done, failed (runs that ended there), alone (the run it is kept free for); state: draining (ends
  --                 when its runs have ended), departing (its process is about to end); epoch (the last in which it
  --                 claimed its runs); strays: how far it has searched astray; call:<verb>, reply:<verb>: the last call
  worker_runs = 'set', -- <worker>: its running runs
  release_slots = 'hash', -- <queue>: release -> slots of its live workers that serve the queue
  release_jobs = 'set', -- <release>: its jobs
  entry = 'hash', -- <entry>: see lib/entries.lua
  service_leader = 'hash', -- <service>: as leader, for a service that the ledger is not named after
  pool = 'hash', -- <pool>: wanted: how many workers it should have, changed: since when (ms); needed: when that
  --               many were last needed (ms); oldest: how long the oldest ready run has waited (ms); why; seen: when
  --               that was decided (ms)
  places = 'hash', -- <pool>: number -> JSON (lib/places.lua). No more than the pool's max
  pool_changes = 'list', -- <pool>: how the number of its workers changed (JSON), the latest first; bounded
  set_aside = 'any', -- <key>: the contents of a record that could not be read
}

-- States of a run: later (not due yet), waiting, granted (holds room, to be published), queued (published), running,
-- retrying (its next attempt is under way), ending (a worker has to report its end to Celery), early (a next_attempt
-- record), released (a person publishes it past the gate).
--
-- A run is stored as a table of these fields, by name. Fields that this version does not know are kept as they are.
RUN = {
  -- An attempt of the same job takes these over from the attempt before it.
  inherited = { 'arrived', 'entry', 'due', 'continuous', 'first_wait', 'figures' },
  -- The values of missing fields. They are not stored.
  defaults = { key = '', publication = '', granted_queue = '', attempt = 0, tries = 0, started = false, deps_checked = false },
}

function RUN.fields()
  return {
    job = 'its job',
    key = 'its room key',
    state = 'see above',
    since = 'when it got into this state (ms)',
    attempt = 'of its message: see keys.py',
    rank = 'see the top of this file',
    arrived = 'when it was first seen (ms)',
    publication = 'see lib/identity.lua',
    task_id = 'if the run has an id of its own',
    fence = 'of its start',
    worker = 'where it started',
    started = 'it has started',
    figures = 'what was counted of it: name -> how often (Figures in records.py)',
    grant = 'number of the grant',
    destination = 'the queue that it is handed over to',
    tries = 'how often its granted message, or its retry, was lost',
    deps_checked = 'its dependencies were met once, and are not checked again',
    expires = 'not to start after (ms)',
    eta = 'not to start before (ms)',
    queue = 'its own queue',
    granted_queue = 'the granted queue of its pool',
    why = 'how it ends',
    has_next_attempt = 'a higher attempt arrived while it runs: there is a next_attempt record',
    alone = 'it is tried alone',
    stray = 'its message came to a worker that lacks its job; it waits, in no lane, for one that takes the message in',
    entry = 'the entry of the schedule that fired it',
    due = 'the due time for which it was fired (ms)',
    continuous = 'that entry is continuous',
    first_wait = 'what it waited for first',
    gate_for = 'the rule that keeps it waiting',
    spent = 'waits since its last start (ms): { gate, delay, hand_over, traced: for a tracer } (lib/statistics.lua)',
  }
end

-- Known only during a call, and not stored.
function RUN.of_call()
  return {
    id = 'part of its key',
    was = 'its state as it was read',
    ran = 'how long its code ran (ms), as its worker says',
    ago = 'how long ago it ended (ms), as its worker says',
    hangs = 'verb explain: 1 if its worker is silent',
  }
end

-- A job is stored as two tables: its policy, in j.policy, and its state, in the fields of j itself. A rule may keep what it
-- counts in a field with its own word (see count_room in rules.lua).
local JOB = {}

function JOB.policy()
  return {
    -- And the options that are marked as InLedger (job/options.py), by their names.
    depends_on = 'an option',
    hash = 'of all these',
    keyed = 'max_running counts by room key',
    conflicts = 'jobs that it conflicts with, without those in its groups',
    groups = 'groups of jobs that run one at a time',
    dependents = 'jobs that depend on it',
  }
end

function JOB.fields()
  return {
    running = 'room taken',
    busy = 'runs that started and have not ended',
    waiting = 'runs in its lanes',
    waiting_checked = 'of these: in lane_checked',
    parked = 'waiting runs that are in no lane',
    last_ok = 'whether the last run succeeded',
    last_end = 'tick of the last end',
    last_success = 'tick of the last success',
    last_start = 'tick of the last start',
    last_end_ms = 'time of the last end',
    last_took = 'how long the last run took (ms)',
    last_run = 'the run that started last',
    last_error = 'the last error, in one line',
    failures = 'in a row',
    bar_rank = 'its rank in bars',
    open_set = 'the open set that it is in',
    probe = "while disabled: the run that tests whether the job works again; '' if the next run may do so",
  }
end

-- Known only during a call, or stored in fields of their own: packed_state leaves these out.
function JOB.of_call()
  return {
    name = 'part of its key',
    policy = 'above',
    blocked = 'how many conflicting jobs hold room',
    disabled = 'by whom, why and since when (JSON)',
    minute = 'what it did in the current minute, as stored',
    sum = 'the same, unpacked, with what this call added',
    dirty = 'the state changed',
  }
end

-- The fields of a line of the history, besides the figures of its run. A field without a value is left out. Times in
-- ms. fires: the line stands for this many fires that made no run.
local HISTORY = { 'id', 'attempt', 'outcome', 'arrived', 'started', 'ended', 'worker', 'fence', 'waited_for',
  'error', 'key', 'entry', 'due', 'fires' }

-- Records in the arguments of verbs. Each field is one argument. In the fields of `numbers`, '' stands for no value.
-- These are functions, because a script runs this whole file in every call, and needs few of them.
local ARGUMENTS = {}

function ARGUMENTS.outcome()
  return { 'id', 'fence', 'outcome', 'note', 'traceback', 'ran_ms', 'ended_ago_ms',
    numbers = { fence = true, ran_ms = true, ended_ago_ms = true } }
end

function ARGUMENTS.arrival()
  return { 'id', 'attempt', 'job', 'key', 'priority', 'grant', 'expires_ms', 'queue', 'granted_queue', 'message', 'eta_ms',
    'publication', 'anonymous', 'queued_ms',
    numbers = { attempt = true, priority = true, grant = true, expires_ms = true, eta_ms = true, queued_ms = true } }
end

function ARGUMENTS.claim()
  return { 'fence', 'task_id', numbers = { fence = true } }
end

function ARGUMENTS.stray()
  return { 'id', 'attempt', 'job', 'priority', 'grant', 'expires_ms', 'queue', 'granted_queue', 'message', 'publication',
    'anonymous', numbers = { attempt = true, priority = true, grant = true, expires_ms = true } }
end

function ARGUMENTS.end_of_run()
  return { 'id', 'attempt', numbers = { attempt = true } }
end

function ARGUMENTS.discarded()
  return { 'id', 'attempt', 'publication', 'anonymous', numbers = { attempt = true } }
end

function ARGUMENTS.held_run()
  return { 'id', 'fence', numbers = { fence = true } }
end

function ARGUMENTS.grant()
  return { 'id', 'number', numbers = { number = true } }
end

function ARGUMENTS.progress()
  return { 'id', 'fence', 'text', numbers = { fence = true } }
end

function ARGUMENTS.presence()
  return { 'worker', 'name', 'host', 'pid', 'slots', 'kind', 'queues', 'release', 'mode', 'lease_ms', 'owner', 'done_ms',
    'policies', 'jobs', 'history', 'dead_letters', 'dead_letter_ms', numbers = { slots = true, lease_ms = true } }
end

function ARGUMENTS.registration()
  return { 'schema', 'oldest_schema', 'epoch', 'fence', 'service',
    numbers = { schema = true, oldest_schema = true, fence = true } }
end

function ARGUMENTS.adoption()
  return { 'entry', 'name', 'task', 'job', 'every', 'source', 'last_ms', 'gap_ms', 'message', 'queue', 'granted_queue', 'key',
    'priority', numbers = { last_ms = true } }
end

function ARGUMENTS.fire()
  return { 'entry', 'generation', 'due_ms', 'next_ms', 'missed', 'job', 'id', 'late_ms', 'overlap', 'key', 'priority',
    'expires_ms', 'queue', 'granted_queue', 'message', 'eta_ms', 'refused',
    numbers = { due_ms = true, missed = true, late_ms = true, priority = true, expires_ms = true, eta_ms = true } }
end

function ARGUMENTS.sent()
  return { 'entry', 'generation', 'due_ms', 'next_ms', 'missed', numbers = { due_ms = true, missed = true } }
end

function ARGUMENTS.next_due()
  return { 'entry', 'due_ms', numbers = {} }
end

function ARGUMENTS.place()
  return { 'pool', 'number', 'fence', 'info', 'leaving', numbers = {} }
end

-- The fields of the key `ledger` that every call reads, with the defaults of missing ones.
--   tick: the last fence; seq: the last arrival; clock: the ledger clock (ms); total: room taken; max_running: the global cap;
--   paused; done_ms: life of a done-marker; next: nothing in later, expiring and timers comes before this time (ms); alone:
--   how many runs wait to be tried alone; history, dead_letters, dead_letter_ms: how many ended runs and dead letters are kept
--   for a job, and for how long the latter; epoch, opens: lib/epoch.lua
-- It also has: schema, owner, swept (Redis's time of the last sweep, ms), counted (of the last count of all workers), lease
--   (ms), pause (by whom, why and since when: JSON), releases (what the installed policies were merged from), changes (how
--   often people changed the schedule), unchanged (the number of the last change that changed_entries no longer has),
--   decisions (how often somebody paused, disabled or enabled something, or changed the schedule), restored (the number
--   of the latest decision that a node restored after the ledger was emptied), left_out (how many that node did not
--   know)
GLOBAL = { 'tick', 'seq', 'clock', 'total', 'max_running', 'done_ms', 'next', 'alone', 'history', 'dead_letters',
  'dead_letter_ms', 'opens', 'epoch', 'paused',
  defaults = { tick = 0, seq = 0, clock = 0, total = 0, done_ms = 7200000, alone = 0, history = 100, dead_letters = 1000,
    dead_letter_ms = 1209600000, opens = 0 } }

-- The prefix, Redis's clock (seconds and microseconds; ms), and the calling worker, filled in by lib/session.lua.
local P
K, call, TIME, NOW, SESSION = nil
-- 2^50. A rank is the class of its priority (3 - priority) * CLASS + the number of the arrival: rank % CLASS is the arrival.
CLASS = 1125899906842624
-- Filled in by lib/statistics.lua.
STATS = {}

-- Keys are put together when they are used, and kept as long as the prefix is the same.
local AS_KEY = {
  __index = function(known, name)
    local key = nil
    if KEY[name] then
      key = P .. name
    elseif KEYS_OF[name] then
      local beginning = P .. name .. ':'
      key = function(first, second)
        if second then return beginning .. first .. ':' .. second end
        return beginning .. first
      end
    else
      error('no key is declared as ' .. tostring(name))
    end
    known[name] = key
    return key
  end,
}

on_call(function()
  if P ~= KEYS[1] then
    P = KEYS[1]
    K = setmetatable({}, AS_KEY)
  end
  call = redis.call
  TIME = call('TIME')
  NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
  SESSION = { lease = 30000 }
end)

-- Lua's own tostring() keeps 14 digits of a number; ticks and ranks have more.
function int(x)
  return string.format('%.0f', x)
end

-- Which fields of hashes are numbers.
local function number_fields()
  return {
    pid = true, slots = true, since = true, heartbeat = true, lease = true, done = true, failed = true,
    last = true, at = true, prev = true, next = true, gap = true, priority = true,
    wanted = true, needed = true, changed = true, seen = true, oldest = true,
    ['until'] = true, swept = true, schema = true, decisions = true,
  }
end

local IS_NUMBER = nil

-- Reads these fields of a hash, by name. A field is nil if it is missing, or should be a number and is not. Returns nil
-- and the error if the key is of another type.
function read_hash(key, ...)
  local v = redis.pcall('HMGET', key, ...)
  if v.err then return nil, v.err end
  IS_NUMBER = IS_NUMBER or number_fields()
  local found = {}
  for i = 1, #v do
    local field = select(i, ...)
    if v[i] then
      if IS_NUMBER[field] then found[field] = tonumber(v[i]) else found[field] = v[i] end
    end
  end
  return found
end

local READ = {}

local function fields_of(kind)
  READ[kind] = READ[kind] or ARGUMENTS[kind]()
  return READ[kind]
end

-- The record of ARGV that begins at `at`, and where the next one begins.
function read_argument(kind, at)
  local fields, record = fields_of(kind), {}
  local count, numbers = #fields, fields.numbers
  for i = 1, count do
    local field, value = fields[i], ARGV[at + i - 1]
    if numbers[field] then value = tonumber(value) end
    record[field] = value
  end
  return record, at + count
end

-- The records of ARGV from `at` on: `count` of them, or all. Also returns where the next one begins.
function read_arguments(kind, at, count)
  local found, width = {}, #fields_of(kind)
  for i = 1, count or math.floor((#ARGV - at + 1) / width) do found[i], at = read_argument(kind, at) end
  return found, at
end

local WITH_DEFAULTS = { __index = RUN.defaults }

-- The record of a run, with its defaults.
function run_record(fields)
  return setmetatable(fields, WITH_DEFAULTS)
end

-- The record of a run as it is stored: without defaults, and without the fields that belong to the call.
function packed_run(r)
  for field, default in pairs(RUN.defaults) do
    if r[field] == default then r[field] = nil end
  end
  local id, was, ran, ago = r.id, r.was, r.ran, r.ago
  r.id, r.was, r.ran, r.ago = nil, nil, nil, nil
  local text = cmsgpack.pack(r)
  r.id, r.was, r.ran, r.ago = id, was, ran, ago
  return text
end

-- The state of a job as it is stored: without the fields that belong to the call or are stored apart.
function packed_state(j)
  local name, policy, blocked, disabled, minute, sum = j.name, j.policy, j.blocked, j.disabled, j.minute, j.sum
  j.name, j.policy, j.blocked, j.disabled, j.minute, j.sum, j.dirty = nil, nil, nil, nil, nil, nil, nil
  local text = cmsgpack.pack(j)
  j.name, j.policy, j.blocked, j.disabled, j.minute, j.sum = name, policy, blocked, disabled, minute, sum
  return text
end

-- A stored record, or nil if it cannot be read.
function unpacked(text)
  if type(text) ~= 'string' then return nil end
  local sound, record = pcall(cmsgpack.unpack, text)
  return sound and type(record) == 'table' and record or nil
end

-- Which run or job a key is about, without the prefix: for people, and for set_aside.
function without_prefix(key)
  return string.sub(key, #P + 1)
end

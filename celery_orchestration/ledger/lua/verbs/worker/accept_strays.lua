-- uses: schema records statistics rules index room transitions identity entries hand_over memory
--
-- accept_strays: messages came to a worker that lacks their jobs. Each waits here for a worker that has its job; a run that was handed
-- over waits again. One of a job that no live release has, and that the ledger knows nothing of, becomes a dead letter.
--
-- ARGV  worker, then for each: id, attempt, job, priority, grant number or '', expires (ms) or '', own queue, granted queue
--         or '', message, '=' and its publication, or '*' and one if it may be of any that is known (lib/identity.lua)
-- Returns  { { of each: wait (the ledger has it: acknowledge it) | drop (it is known already: acknowledge it)
--                     | nobody (it is a dead letter: discard it) | later (ask again: the attempt before it has not ended, or
--                       its job's policy is about to be installed) | full (Redis is: ask again) },
--            { granted: {id, grant number} for the caller to publish } }
-- Errors   UNKNOWNWORKER
-- Called again: drop in place of wait; else the same.
local FIELDS = 10
local worker = ARGV[1]
if call('EXISTS', P .. 'w:' .. worker) == 0 then return redis.error_reply('UNKNOWNWORKER ' .. worker) end
local full, unwritable = is_full(P .. 'w:' .. worker, 'name')
if unwritable then return unwritable end

local function a_release_has(name)
  for _, rel in ipairs(call('ZRANGE', P .. 'relseq', 0, -1)) do
    if call('SISMEMBER', P .. 'rj:' .. rel, name) == 1 then return true end
  end
  return false
end

-- Nobody knows it. There may be any number of such jobs: their letters are bounded together.
local function dead_letter_unknown(r, message)
  save_run(r, nil, message)
  dead_letter(r, UNREGISTERED)
  if G.letters <= 0 then return end
  call('ZADD', P .. 'lost', int(NOW), r.id)
  local over = call('ZCARD', P .. 'lost') - G.letters
  for _, id in ipairs(over > 0 and call('ZRANGE', P .. 'lost', 0, over - 1) or {}) do
    local letter = load_run(id, 'dl:')
    if letter then remove_dead_letter(id, letter.job) end
    call('ZREM', P .. 'lost', id)
  end
end

-- What the ledger knows of it. Returns an answer if that decides, else nil and the attempt before it.
local function known(v, id, r, done)
  if not r then
    if call('ZSCORE', P .. 'lost', id) then return 'nobody' end
    return done and done >= v.a and 'drop' or nil
  end
  if r.st == 'released' then
    call('ZREM', P .. 'released', id)
    forget(r, false)
    return nil
  end
  if v.a < r.a or r.st == 'ending' then return 'drop' end
  if v.a == r.a then
    if (r.st ~= 'granted' and r.st ~= 'queued') or v.gn ~= r.gn then return 'drop' end
    take_back(job(r.job), r)
    return 'wait'
  end
  if r.st == 'running' then return 'later' end
  local old = job(r.job)
  withdraw(old, r)
  if r.job ~= v.job then
    ended(old, r, nil)
    refresh_dependents(old)
  end
  forget(r, false)
  return nil, r
end

local function take_in(v)
  local j = job(v.job)
  if not j and a_release_has(v.job) then return 'later' end
  local id, found, done = run_of(v.id, v.pub, v.any)
  if full and not found then return 'full' end
  local answer, before = known(v, id, found, done)
  if answer then return answer end
  local r = { id = id, job = v.job, key = '', a = v.a, rank = (3 - v.priority) * CLASS + next_seq(), rec = 0, tries = 0,
    ex = v.ex, q = v.q, gq = v.gq, enq = NOW, sd = false, stray = true,
    pub = found and found.pub or v.pub, tid = id ~= v.id and v.id or nil }
  if not j or (j.hash == 'gone' and not before) then
    r.stray = nil
    dead_letter_unknown(r, v.message)
    return 'nobody'
  end
  if before and before.job == v.job then
    r.rank, r.rec, r.jd, r.sd, r.enq = before.rank, before.rec, before.jd, before.sd, before.enq
    r.ent, r.due, r.cont = before.ent, before.due, before.cont
  end
  enqueue(j, r, v.message)
  refresh(j)
  return 'wait'
end

local answers = {}
for i = 2, #ARGV, FIELDS do
  answers[#answers + 1] = take_in({ id = ARGV[i], a = tonumber(ARGV[i + 1]), job = ARGV[i + 2],
    priority = tonumber(ARGV[i + 3]), gn = tonumber(ARGV[i + 4]), ex = tonumber(ARGV[i + 5]), q = ARGV[i + 6],
    gq = ARGV[i + 7], message = ARGV[i + 8], pub = string.sub(ARGV[i + 9], 2), any = string.sub(ARGV[i + 9], 1, 1) == '*' })
end
hand_over(16)
flush()
return { answers, HAND.grants }

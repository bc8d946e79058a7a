-- The records every verb reads and writes. The loader puts the libraries a verb names in front of it.
--
-- KEYS[1] is the prefix "{namespace}:". Every key starts with it, so that one hash slot holds the ledger.
-- Job names are encoded by keys.py and never contain ':'; a room key is always the last part of a key.
--
--   g                hash  the ledger itself: schema, owner, tick (last fence), seq (last arrival), clk (ledger
--                          clock, ms), swept (Redis time of the last sweep, ms), total (room taken), cap (global
--                          cap), paused, done_ms (life of a done-marker), releases (what the installed
--                          policies were merged from)
--   jobs             set   names of all jobs
--   j:<job>          hash  policy: cap, keyed, conf, deps, depd (JSON lists of names), crash, recmax, hash
--                          state:  n (room taken), busy (runs started and not ended), blk (conflicting jobs that
--                                  hold room), w (runs that wait), off, ok, ended, good, begun (ticks), ends_at,
--                                  br (its rank in bar), at (the open set it is in)
--   r:<id>           hash  a run: job, key, st (state), a (attempt), rank, fence, own (its worker), gn (grant
--                          number), dest (queue it is handed over to), tries, rec (recoveries), jd (dependencies
--                          were judged), sd (has started), ex (expires, ms), q, gq (own and granted queue),
--                          enq (arrival, ms), at (since when in this state, ms), why (it ends)
--   m:<id>           str   its message, opaque
--   x:<id>, y:<id>         run and message of a higher attempt that waits for the attempt before it
--   d:<id>           str   done-marker: the highest attempt that ended (the only keys with a TTL)
--   wait             zset  every run that waits, by rank
--   waitjobs         set   jobs with runs in their lanes
--   l:<job>:<key>    zset  a lane: waiting runs of one job and room key, by score
--   jl:<job>         zset  keyed jobs: room keys whose lane has waiting runs and room, by the score of its head
--   n:<job>          hash  keyed jobs: room key -> room taken
--   bar              zset  jobs whose head passes rules 1, 2 and 4, by its rank: they bar those they conflict with
--   open:<queue>     zset  jobs whose head may start on that queue (rules 1 to 5 but for the global cap), by rank
--   opens            set   queues with a non-empty open set
--   due              zset  waiting runs that expire, by time (ms)
--   gr               zset  granted runs and endings not carried out yet, by deadline (ledger clock)
--   out              hash  queue -> granted runs that have not started
--   slots            hash  queue -> slots of the live workers that serve it
--   ws               zset  live workers by the end of their lease (ledger clock)
--   w:<worker>       hash  name, host, pid, slots, kind, queues, rel, mode, since, beat; no, reply: the last call
--   wr:<worker>      set   its running runs
--   wn               hash  worker name -> worker, the latest that registered
--   rel              hash  release -> its policies (JSON); relseq zset: releases by first sight; rj:<release> set of jobs
--   ob:<job>         hash  observe mode: reason -> how often a run would have waited for it
--
-- States of a run: waiting, granted (holds room, to be published), queued (published), running, retrying (its
-- next attempt is under way), ending (somebody has to tell Celery how it ended), behind (an x: record).
-- rank = (3 - priority) * 2^50 + seq: a lower one goes first. A lane's score is the rank, less 2^52 for a run
-- that was judged already (a recovered run, a retry): inside its lane it goes first.

local P = KEYS[1]
local call = redis.call
local TIME = call('TIME')
local NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
local JUDGED = 4503599627370496 -- 2^52
local CLASS = 1125899906842624 -- 2^50

-- Lua's own tostring() keeps 14 digits of a number; ticks and ranks have more.
local function int(x)
  return string.format('%.0f', x)
end

local function list(json)
  if not json or json == '' then return {} end
  return cjson.decode(json)
end

-- ---------------------------------------------------------------------------------------------- globals

local G = {}
do
  local v = call('HMGET', P .. 'g', 'tick', 'seq', 'clk', 'total', 'cap', 'paused', 'done_ms')
  G.tick = tonumber(v[1]) or 0
  G.seq = tonumber(v[2]) or 0
  G.clk = tonumber(v[3]) or 0
  G.total = tonumber(v[4]) or 0
  G.cap = tonumber(v[5])
  G.paused = v[6] == '1'
  G.done_ms = tonumber(v[7]) or 7200000
end

-- Fences and the order of events: always rising, close to Redis's clock in microseconds.
local function tick()
  G.dirty = true
  G.tick = math.max(G.tick + 1, TIME[1] * 1000000 + TIME[2])
  return G.tick
end

-- ------------------------------------------------------------------------------------------------- jobs

local J = {}
local JOB = { 'cap', 'keyed', 'conf', 'deps', 'depd', 'crash', 'recmax', 'n', 'busy', 'blk', 'w', 'off', 'ok',
  'ended', 'good', 'begun', 'ends_at', 'br', 'at', 'hash' }

-- A job, or nil if the ledger has no policy for it.
local function job(name)
  local j = J[name]
  if j ~= nil then return j or nil end
  local v = call('HMGET', P .. 'j:' .. name, unpack(JOB))
  if not v[20] then
    J[name] = false
    return nil
  end
  j = {
    name = name,
    cap = tonumber(v[1]),
    keyed = v[2] == '1',
    conf = list(v[3]),
    deps = list(v[4]),
    depd = list(v[5]),
    crash = v[6],
    recmax = tonumber(v[7]) or 0,
    n = tonumber(v[8]) or 0,
    busy = tonumber(v[9]) or 0,
    blk = tonumber(v[10]) or 0,
    w = tonumber(v[11]) or 0,
    off = v[12] and v[12] ~= '' and v[12] or nil,
    ok = v[13] or '',
    ended = tonumber(v[14]),
    good = tonumber(v[15]),
    begun = tonumber(v[16]),
    ends_at = tonumber(v[17]),
    br = tonumber(v[18]),
    at = v[19] and v[19] ~= '' and v[19] or nil,
    hash = v[20],
  }
  J[name] = j
  return j
end

local function num(x)
  return x and int(x) or ''
end

local function flush()
  for name, j in pairs(J) do
    if j and j.dirty then
      call('HSET', P .. 'j:' .. name, 'n', j.n, 'busy', j.busy, 'blk', j.blk, 'w', j.w, 'ok', j.ok,
        'ended', num(j.ended), 'good', num(j.good), 'begun', num(j.begun), 'ends_at', num(j.ends_at),
        'br', num(j.br), 'at', j.at or '')
      j.dirty = false
    end
  end
  if G.dirty then
    call('HSET', P .. 'g', 'tick', int(G.tick), 'seq', int(G.seq), 'total', G.total)
    G.dirty = false
  end
end

-- Those of the given jobs that have runs in their lanes.
local function with_waiters(names)
  local found = {}
  for from = 1, #names, 1000 do
    local part = { unpack(names, from, math.min(from + 999, #names)) }
    for i, yes in ipairs(call('SMISMEMBER', P .. 'waitjobs', unpack(part))) do
      if yes == 1 then found[#found + 1] = part[i] end
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------------- runs

local RUN = { 'job', 'key', 'st', 'a', 'rank', 'fence', 'own', 'gn', 'dest', 'tries', 'rec', 'jd', 'sd', 'ex',
  'q', 'gq', 'enq', 'at', 'why' }

local function load_run(id, prefix)
  local v = call('HMGET', P .. (prefix or 'r:') .. id, unpack(RUN))
  if not v[1] then return nil end
  return {
    id = id,
    job = v[1],
    key = v[2],
    st = v[3],
    a = tonumber(v[4]),
    rank = tonumber(v[5]),
    fence = v[6],
    own = v[7],
    gn = v[8],
    dest = v[9],
    tries = tonumber(v[10]) or 0,
    rec = tonumber(v[11]) or 0,
    jd = v[12] == '1',
    sd = v[13] == '1',
    ex = tonumber(v[14]),
    q = v[15],
    gq = v[16],
    enq = v[17],
    at = v[18],
    why = v[19] or '',
  }
end

local function save_run(r, prefix)
  call('HSET', P .. (prefix or 'r:') .. r.id, 'job', r.job, 'key', r.key, 'st', r.st, 'a', int(r.a),
    'rank', int(r.rank), 'fence', r.fence or '', 'own', r.own or '', 'gn', r.gn or '', 'dest', r.dest or '',
    'tries', r.tries or 0, 'rec', r.rec or 0, 'jd', r.jd and 1 or 0, 'sd', r.sd and 1 or 0, 'ex', num(r.ex), 'q', r.q, 'gq', r.gq,
    'enq', r.enq, 'at', int(NOW), 'why', r.why or '')
end

local function score_of(r)
  return r.jd and r.rank - JUDGED or r.rank
end

local function rank_of(score)
  return score < 0 and score + JUDGED or score
end

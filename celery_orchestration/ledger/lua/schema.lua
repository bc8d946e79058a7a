-- The records every verb reads and writes. The loader puts the libraries a verb names in front of it.
--
-- KEYS[1] is the prefix "{namespace}:". Every key starts with it, so that one hash slot holds the ledger.
-- Job names are encoded by keys.py and never contain ':'; a room key is always the last part of a key.
--
--   g                hash  the ledger itself: schema, owner, tick (last fence), seq (last arrival), clk (ledger
--                          clock, ms), swept (Redis time of the last sweep, ms), counted (of the last count of all workers), lease
--                          (ms), total (room taken), cap (global cap), paused, pause (by whom, why and since when: JSON), done_ms (life of a done-marker), history, letters, letters_ms (how
--                          many ended runs and dead letters are kept for a job, and how long these),
--                          next (nothing in later, due and cool comes before this time, ms), alone (how many
--                          runs wait to be tried alone), releases (what the installed policies were merged from),
--                          changes (how often people changed the schedule), unchanged (up to which change entries are
--                          no longer in changed), decisions (how often somebody paused, disabled or enabled
--                          something, or changed the schedule), restored (the number of the last that members
--                          knew when the ledger was emptied), left_out (how many of these nobody could restore);
--                          what epoch.lua keeps
--   jobs             set   names of all jobs; installed hash: each with the hash of its policy
--   j:<job>          hash  p: its policy, packed; s: its state, packed; blk: how many conflicting jobs hold room;
--                          off: by whom, why and since when it is disabled (JSON); seen: once no live release has it, the
--                          latest that had it; copies: how many copies of its messages were dropped
--                          t: what it did in the current minute (lib/statistics.lua, which describes t:, tm: and th:, too)
--   r:<id>           hash  a run (lib/identity.lua says what its id is). s: its record, packed; m: its message, opaque;
--                          p: its progress, o: that its time is over
--                          while its code goes on, both packed and of the start whose fence they begin with
--   x:<id>           hash  a higher attempt of a running run: it waits for the attempt before it
--   d:<id>           str   done-marker: the highest attempt that ended, and its publication (the only keys with a TTL)
--   p:<task id>      set   runs and dead letters of a task id that was published again: those with an id of their own
--   wait             zset  every run that waits, by rank
--   waitjobs         set   jobs with runs in their lanes
--   l:<job>:<key>    zset  a lane: waiting runs of one job and room key whose dependencies are not judged yet, by rank
--   k:<job>:<key>    zset  the same for those whose dependencies were judged: retries, recovered runs
--   jl:, jk:<job>    zset  keyed jobs: room keys whose lane has waiting runs and room, by the rank of its head
--   n:<job>          hash  keyed jobs: room key -> room taken
--   bar              zset  jobs whose head passes rules 1, 2 and 4, by its rank: they bar those they conflict with
--   groups           hash  groups of jobs of which no two run together -> how many jobs each has
--   bar:<group>      zset  the same as bar, of the jobs in one group
--   held:<group>     set   jobs of a group that hold room
--   open:<queue>     zset  jobs whose head may start on that queue (rules 1 to 5 but for the global cap), by rank. Where some
--                          of the workers there lack the job: open:<queue>, a line feed, and the releases that have it
--   opens            set   queues with a non-empty open set; ready: those of them that live workers serve
--   stale            set   jobs to be looked at again, because other queues are served than before
--   unseen           set   jobs to be looked at again, because a job began or ended that very many depend on
--   after            set   those jobs: their waiting runs stay until unseen is empty
--   later            zset  runs that are not to start before a time, by that (ms)
--   due              zset  waiting runs that expire, by time (ms)
--   cool             zset  jobs that failures have disabled and that get a probe run, by time (ms)
--   released         zset  runs that are being published past the gate, by rank
--   astray           zset  runs whose message came to a worker without their job, by when one that has it may take it in
--                          (ledger clock); lost zset: dead letters of jobs that nobody knew, by time (ms). Bounded
--   alone            hash  runs that took their workers down too often -> the worker kept free for it, or ''
--   gr               zset  granted runs, endings not carried out yet and runs whose retry has not arrived, by
--                          deadline (ledger clock)
--   out              hash  queue -> granted runs that have not started
--   slots            hash  queue -> slots of the live workers that serve it
--   sr:<queue>       hash  the same by release: release -> slots
--   ws               zset  live workers by the end of their lease (ledger clock)
--   live             hash  how many live workers there are of each release (r:) and of each kind (k:)
--   w:<worker>       hash  name, host, pid, slots, kind, queues, rel, service, mode, lease (ms), since, beat (ms), done,
--                          failed (runs that ended there), alone (the run it is kept free for); state: draining (hands
--                          in its runs), departing (and is about to end its process); epoch (the last in which it
--                          claimed its runs); strays: how far it has looked through astray; no:<verb>, reply:<verb>: the
--                          last call
--   wr:<worker>      set   its running runs
--   wn               hash  worker name -> worker, the latest that registered; names zset: those of workers, in order
--   gone             list  workers that died (JSON), the latest first; bounded
--   h:<job>          list  runs that ended (JSON), the latest first; bounded
--   dl:<id>          hash  a dead letter. s, m: as of the run; i: what happened (JSON)
--   dj:<job>         zset  dead letters of a job, by time (ms); dead: of all jobs. Bounded
--   sq:<job>         zset  its runs that wait and have not started, by arrival; only of jobs that others depend on
--   entries          zset  entries of the schedule, by when a leader had them last (ms)
--   e:<entry>        hash  an entry: see lib/entries.lua
--   added            set   entries that people added
--   changed          zset  entries that people changed, by the number of the change; bounded
--   lead             hash  who schedules: term, who, name, since, until (ms; Redis's clock); lead:<service>: the same for
--                          a service that the ledger is not named after; leads set: services that ever had a leader
--   rel              hash  release -> its policies (JSON); relseq zset: releases by first sight; rj:<release> set of jobs
--   services         hash  release -> the service that brings it; stopped hash: release -> when its last worker went (ms)
--   off              set   jobs that are disabled; resting: entries that are paused
--   decided          hash  what people decided while the gate was closed in a new epoch: pause | j:<job> | e:<entry> ->
--                          people | restored (members knew it from before)
--   sups             hash  supervisors of pools -> JSON; see lib/places.lua. Those of dead ones are kept for a while
--   pool:<pool>      hash  wanted: how many workers it is to have, changed: since when (ms); needed: when as many were needed last
--                          (ms); oldest: how long the oldest ready run has waited (ms); why; seen: when that was decided (ms)
--   pl:<pool>        hash  places: number -> JSON; see lib/places.lua. No more than the pool's max
--   pc:<pool>        list  how the number of its workers changed (JSON), the latest first; bounded
--   audit            list  who changed what when (JSON), the latest first; bounded
--   bad              hash  records that could not be read: key -> when and why (JSON); bad:<key>: what was in them
--   ob:<job>         hash  observe mode: reason -> how often a run would have waited for it
--
-- States of a run: later (not due yet), waiting, granted (holds room, to be published), queued (published), running, retrying (its
-- next attempt is under way), ending (somebody has to tell Celery how it ended), behind (an x: record), released
-- (somebody is publishing it past the gate).
-- rank = (3 - priority) * 2^50 + seq: a lower one goes first. That of a forced run is below zero.

-- Redis loads these files once and calls their functions many times (see ledger/scripts.py): whatever belongs to one call is
-- set by a function that is given to `on_call`.

-- Filled in by lib/statistics.lua.
local STATS = {}

-- The prefix, Redis's clock (seconds and microseconds; ms), and the calling worker, filled in by lib/session.lua.
local P, call, TIME, NOW, SESSION
local CLASS = 1125899906842624 -- 2^50

on_call(function()
  P = KEYS[1]
  call = redis.call
  TIME = call('TIME')
  NOW = TIME[1] * 1000 + math.floor(TIME[2] / 1000)
  SESSION = { lease = 30000 }
end)

-- Lua's own tostring() keeps 14 digits of a number; ticks and ranks have more.
local function int(x)
  return string.format('%.0f', x)
end

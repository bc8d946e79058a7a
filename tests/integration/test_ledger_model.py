"""The ledger and the model: after any sequence of events, both decide the same.

The machine drives a real Redis. It checks equal decisions, and these invariants:

- I1: no two runs overlap that the gate forbids, and no outcome with a void fence is accepted.
- I2: every run that was sent is in some state.
- I4: no run that may start waits while there are slots.
- I5: nothing is left over when all is done.

This file is long because a second machine inherits all rules of the first and adds epochs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_orchestration.ledger import (
    Adoption,
    Arrival,
    Claim,
    Claimed,
    Fire,
    Grant,
    Ledger,
    NewEpoch,
    Outcome,
    Presence,
)
from celery_orchestration.ledger.records import key_of
from celery_orchestration.ledger.scripts import as_script
from celery_orchestration.operate.explain.chain import steps
from celery_orchestration.operate.explain.root_cause import RootCauseFinder
from support.model import Dep, Job, Model, Past, Run, Worker
from support.servers import RedisServer
from support.verbs import make_unknown

NAMES = ["a", "b", "c", "d"]
#: Own queue and granted queue of each job.
QUEUES = {"a": ("q", "g"), "b": ("q", "g"), "c": ("q", ""), "d": ("other", "")}
SERVED = [("q", "g"), ("q",), ("other", "q", "g")]
OUTCOMES = [
    "succeeded", "failed", "ignored", "rejected", "revoked", "retry", "requeued", "crashed", "interrupted", "returned",
]  # fmt: skip
PREFIX = "{model}:"
#: The keys that may be left over when all is done, and the families of such keys.
KEPT = {
    "ledger", "jobs", "groups", "live", "releases", "release_order", "installed", "dead_letters", "dead_workers",
    "audit", "disabled_jobs", "decided", "services", "stopped_releases", "leader", "led_services", "entries",
}  # fmt: skip
HISTORY = ("done", "history", "dead_letter", "job_dead_letters", "task_runs", "totals", "minutes", "hours")
#: A time in milliseconds that does not come during the test, and the priority of a forced run.
FAR, FORCED = 10**14, 4
#: Milliseconds: no end is half as old as that, however slow the machine is, unless the test moves time.
OLD = 7_200_000
READ_STATE = """
local found = { runs = {}, jobs = {}, total = G.total }
for _, key in ipairs(call('KEYS', K.run('*'))) do
  local r = load_run(string.sub(key, #K.run('') + 1))
  if r.fence then r.fence = int(r.fence) end
  if r.grant then r.grant = int(r.grant) end
  if r.has_next_attempt then r.next_attempt = load_run(r.id, K.next_attempt).attempt end
  for field in pairs(RUN.defaults) do r[field] = r[field] end
  found.runs[#found.runs + 1] = r
end
for _, name in ipairs(call('SMEMBERS', K.jobs)) do
  local j = job(name)
  found.jobs[#found.jobs + 1] = { name = name, running = j.running, busy = j.busy, waiting = j.waiting,
    blocked = j.blocked, disabled = j.disabled ~= nil, probe = j.probe,
    scheduled = call('ZRANGE', K.unstarted(name), 0, -1) }
end
return cjson.encode(found)
"""

#: Moves all starts and ends so far ARGV[1] milliseconds back; the next sweep looks at all jobs.
PASS = """
for _, name in ipairs(call('SMEMBERS', K.jobs)) do
  local j = job(name)
  j.last_end = j.last_end and j.last_end - 1000 * ARGV[1]
  j.last_start = j.last_start and j.last_start - 1000 * ARGV[1]
  j.dirty = true
  call('SADD', K.stale_jobs, name)
end
flush()
"""

_server: list[RedisServer] = []


@pytest.fixture(scope="module", autouse=True)
def _redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    server = RedisServer(tmp_path_factory.mktemp("model"))
    _server.append(server.start())
    yield
    _server.clear()
    server.cleanup()


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Job]:
    pairs = [(x, y) for i, x in enumerate(NAMES) for y in NAMES[i + 1 :]]
    blocked = draw(st.sets(st.sampled_from(pairs), max_size=3))
    groups = {name: draw(st.sets(st.sampled_from(["g", "h"]), max_size=2)) for name in NAMES}
    together = {(x, y) for x, y in pairs if groups[x] & groups[y]}
    depending = draw(st.sets(st.sampled_from(pairs), max_size=3))
    if draw(st.booleans()):
        depending |= blocked  # a job that depends on another and blocks it
    found = {}
    for name in NAMES:
        cap = draw(st.sampled_from([None, 1, 1, 2]))
        found[name] = Job(
            name,
            cap=cap,
            keyed=cap is not None and draw(st.booleans()),
            blocks=_others(name, blocked | together),
            groups=frozenset(groups[name]),
            pairs=_others(name, blocked),
            deps=tuple(
                Dep(x, draw(st.sampled_from(["success", "finish", "idle"])), draw(st.booleans()), draw(st.booleans()))
                for x, y in sorted(depending)
                if y == name
            ),
            crash=draw(st.sampled_from(["requeue", "requeue", "fail"])),
            max_recoveries=draw(st.sampled_from([0, 2])),
            max_failures=draw(st.sampled_from([None, 1, 2])),
            cools=draw(st.booleans()),
            drop=draw(st.booleans()),
        )
    return found


def _others(name: str, pairs: set[tuple[str, str]]) -> frozenset[str]:
    return frozenset({y for x, y in pairs if x == name} | {x for x, y in pairs if y == name})


def documents(jobs: dict[str, Job]) -> dict[str, Any]:
    found = {}
    for job in jobs.values():
        entry: dict[str, Any] = {
            "max_running": job.cap,
            "keyed": job.keyed,
            "conflicts": sorted(job.pairs),
            "groups": sorted(job.groups),
            "depends_on": [
                {"job": dep.job, "on": dep.on, "max_age_seconds": OLD // 2000 if dep.ages else None, "fresh": dep.fresh}
                for dep in job.deps
            ],
            "dependents": sorted(o.name for o in jobs.values() if any(dep.job == job.name for dep in o.deps)),
            "on_crash": job.crash,
            "max_recoveries": job.max_recoveries,
            "max_consecutive_failures": job.max_failures,
            "cool_down_seconds": 3600 if job.cools else None,
            "when_disabled": "drop" if job.drop else "hold",
        }
        found[job.name] = {**entry, "hash": json.dumps(entry)}
    return found


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.redis: redis.Redis = _server[0].client()
        self.redis.flushall()
        self.ledger = Ledger(redis.ConnectionPool.from_url(_server[0].url()), PREFIX)
        self.read_state, self.pass_time = self.registered(READ_STATE), self.registered(PASS)
        self.numbers = 0
        #: Jobs by run, and the task id and publication of each run.
        self.sent: dict[str, str] = {}
        self.identity: dict[str, tuple[str, str]] = {}
        #: Fences by run, the latest and older ones.
        self.fences: dict[str, list[str]] = {}
        self.grants: dict[str, list[str]] = {}
        self.term = ""

    def registered(self, text: str) -> Any:
        """A script of the test's own, with the ledger's records."""
        return self.redis.register_script(as_script(f"-- uses: schema records\n--\n{text}"))

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.drain()
        self.redis.close()
        self.ledger.close()

    @initialize(jobs=jobs(), cap=st.sampled_from([None, None, 1, 2]))
    def begin(self, jobs: dict[str, Job], cap: int | None) -> None:
        self.model = Model({n: Job(**{**vars(j), "deps": _sane(j)}) for n, j in jobs.items()}, cap)
        for index, queues in enumerate(SERVED):
            self.register(f"w{index}", queues, 2)
        assert self.ledger.install_policies("release", cap, documents(self.model.jobs))

    def entries(self) -> dict[str, str]:
        """A scheduler leads, and has an entry for each job: returns their generations."""
        self.term = self.ledger.lead("scheduler", "scheduler", 3_600_000, self.term).term
        adoptions = [Adoption(name, name, name, name, "", "code", None) for name in NAMES]
        adopted = self.ledger.adopt_entries(self.term, 1, adoptions) or []
        return {name: one.generation for name, one in zip(NAMES, adopted, strict=True)}

    def register(self, name: str, queues: tuple[str, ...], slots: int) -> None:
        self.ledger.register(
            Presence(
                worker=name, name=name, host="h", pid=1, slots=slots, kind="prefork", queues=queues, release="release",
                mode="enforce", lease_ms=3_600_000, owner="test", done_ms=3_600_000, policies="{}", jobs=tuple(NAMES),
            )
        )  # fmt: skip
        self.model.workers[name] = Worker(name, slots, queues)

    # -- rules ----------------------------------------------------------------------------------------------

    @rule(data=st.data(), offered=st.integers(0, 2), flush=st.booleans())
    def turn(self, data: st.DataObject, offered: int, flush: bool) -> None:
        """A worker reports outcomes, asks for arrivals and offers slots, all in one call."""
        if not self.model.workers:
            return
        worker = self.model.workers[data.draw(st.sampled_from(sorted(self.model.workers)))]
        running = sorted(r.id for r in self.model.runs.values() if r.worker == worker.name)
        ended = data.draw(st.lists(st.sampled_from(running), unique=True, max_size=3)) if running else []
        outcomes = [Outcome(id, self.fences[id][-1], data.draw(st.sampled_from(OUTCOMES))) for id in ended]
        late = [id for id, fences in self.fences.items() if len(fences) > 1]
        if late and data.draw(st.booleans()):
            zombie = data.draw(st.sampled_from(sorted(late)))
            if zombie not in ended:
                outcomes.append(Outcome(zombie, self.fences[zombie][0], "succeeded"))
        arrivals = [data.draw(self.arrivals()) for _ in range(data.draw(st.integers(0, 3)))]
        if flush:
            make_unknown(self.redis)
        self.numbers += 1
        found = self.ledger.turn(worker.name, self.numbers, "enforce", offered, outcomes, arrivals)
        self.expect_turn(worker, offered, outcomes, arrivals, found)
        again = self.ledger.turn(worker.name, self.numbers, "enforce", offered, outcomes, arrivals)
        assert again == found, "a call whose reply was lost must give the same answer again"

    @rule(data=st.data(), fires=st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=3))
    def scheduler_dispatches(self, data: st.DataObject, fires: list[tuple[str, bool]]) -> None:
        """Entries are due, some of them with a start time."""
        generations = self.entries()
        calls, expected = [], []
        for name, later in fires:
            one = self.arrival(self.new_id(name), 0, name, data.draw(st.sampled_from(["", "k"])), 0, "")
            self.numbers += 1
            one = Fire(
                name, generations[name], 1 + self.numbers, 2 + self.numbers, 0, name, one.id, 10**15,
                data.draw(st.sampled_from(["allow", "allow", "queue", "skip"])), one.key,
                self.priority(name, data.draw(st.integers(0, FORCED))), None, one.queue, one.granted_queue, one.message,
                FAR if later else None,
            )  # fmt: skip
            calls.append(one)
            run = Run(one.id, name, one.key, 0, (0, 0), one.queue, one.granted_queue, task=one.id, later=later)
            expected.append(self.model.fire(name, run, one.priority, one.overlap))
        found = self.ledger.dispatch(self.term, calls)
        assert [answer[0] for answer in found.answers] == expected
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in found.grants] == granted
        self.note_grants(found.grants)
        again = self.ledger.dispatch(self.term, calls)
        assert {answer[0] for answer in again.answers} == {"known"}
        assert set(map(str, again.grants)) <= set(map(str, found.grants))

    @rule(data=st.data())
    @precondition(lambda self: any(job.deps for job in self.model.jobs.values()))
    def line_is_due(self, data: st.DataObject) -> None:
        """A job that others depend on fires, and they arrive after it."""
        name = data.draw(st.sampled_from(sorted({dep.job for job in self.model.jobs.values() for dep in job.deps})))
        after = [job.name for job in self.model.jobs.values() if any(dep.job == name for dep in job.deps)]
        self.scheduler_dispatches(data, [(name, False), *((one, False) for one in after if data.draw(st.booleans()))])
        if data.draw(st.booleans()):
            self.turn(data, data.draw(st.integers(0, 2)), False)

    def arrivals(self) -> st.SearchStrategy[Arrival]:
        def new(name: str, key: str, priority: int) -> Arrival:
            return self.arrival(self.new_id(name), 0, name, key, priority, "")

        def later(name: str, key: str, priority: int) -> Arrival:
            return replace(new(name, key, priority), eta_ms=FAR)

        known = sorted(self.sent)
        # Often jobs that have to wait for an earlier fire.
        waited_for = {run.job for run in self.model.runs.values() if run.first}
        held = [job.name for job in self.model.jobs.values() if any(dep.job in waited_for for dep in job.deps)]
        parts = st.sampled_from(NAMES + 4 * held), st.sampled_from(["", "k"]), st.integers(0, FORCED)
        fresh = st.one_of(st.builds(new, *parts), st.builds(new, *parts), st.builds(later, *parts))
        if not known:
            return fresh
        return st.one_of(
            fresh, fresh, st.builds(self.again, st.sampled_from(known), st.integers(0, 6), st.integers(0, 9))
        )

    def again(self, id: str, kind: int, other: int) -> Arrival:  # noqa: PLR0911 - one return for each kind
        """Another message of a known run: a copy, a granted copy, a retry, a replacement by another job, an earlier
        attempt; or its task id is published again."""
        run = self.model.runs.get(id)
        name = run.job if run is not None else self.sent[id]
        attempt = run.attempt if run is not None else self.model.done.get(id, (0, ""))[0]
        grants = self.grants.get(id, [])
        if kind == 0:
            return self.arrival(id, attempt, name, "", 1, "")
        if kind == 1:
            return self.arrival(id, attempt, name, "", 1, grants[-1 if other % 2 else 0] if grants else "7")
        if kind == 2:
            return self.arrival(id, attempt + 1, name, "", 1, "")
        if kind == 3:
            return replace(self.arrival(id, attempt + 1, name, "", 1, ""), eta_ms=FAR)
        if kind == 4:
            return self.arrival(id, attempt + 1000, NAMES[other % len(NAMES)], "", 1, "")
        if kind == 5:
            return self.arrival(id, max(0, attempt - 1), name, "", 1, grants[-1] if grants and other % 2 else "")
        self.numbers += 1
        task, publication = self.identity[id][0], f"p{self.numbers}"
        return replace(
            self.arrival(id, 0, name, "", 1, ""), publication=publication, message=message_of(task, publication)
        )

    def new_id(self, name: str) -> str:
        id = f"r{len(self.sent)}"
        self.sent[id], self.identity[id] = name, (id, "")
        return id

    def priority(self, name: str, drawn: int) -> int:
        """Of a keyed job the ledger looks only at the first run of each lane: a run that arrived before a fire may be
        behind one of a higher priority that has to wait for the fire. This difference is known, and not compared."""
        job = self.model.jobs[name]
        return 1 if job.keyed and job.deps else drawn

    def arrival(self, id: str, attempt: int, name: str, key: str, priority: int, grant: str) -> Arrival:
        """A message of the run with that id."""
        task, publication = self.identity[id]
        queue, granted = QUEUES[name]
        priority = self.priority(name, priority)
        message = self.message_of(id)
        return Arrival(
            task, attempt, name, key, priority, grant, None, queue, granted, message, publication=publication
        )

    def message_of(self, id: str) -> bytes:
        return message_of(*self.identity[id])

    def expect_turn(
        self, worker: Worker, offered: int, outcomes: list[Outcome], arrivals: list[Arrival], found: Any
    ) -> None:
        model, after = self.model, []
        expected = []
        for one in outcomes:
            run = model.runs.get(one.id)
            current = run is not None and run.state == "running" and self.fences[one.id][-1] == one.fence
            expected.append(model.settle(run, one.outcome, after) if run is not None and current else "refused")
        assert found.settled == expected
        granted, started, free = ([], [], offered)
        alone, free = model.try_alone(worker, free)
        arriving = [
            Run(
                a.id,
                a.job,
                a.key,
                a.attempt,
                (0, 0),
                a.queue,
                a.granted_queue,
                a.publication,
                a.id,
                later=a.eta_ms is not None,
            )
            for a in arrivals
        ]
        spare = [False] * len(arrivals)

        def slots_of_those_who_wait() -> int:
            """An arrival that will have to wait leaves its slot to a run that is handed over."""
            for i, (a, run) in enumerate(zip(arrivals, arriving, strict=True)):
                asks = not a.grant and a.eta_ms is None
                spare[i] = asks and model.would_wait(run, a.priority, i + 1, worker.name)
            return sum(spare)

        if (outcomes or free) and worker.name not in model.kept:
            granted, started, free = model.hand_over(after, worker, free, slots_of_those_who_wait)
        skipped, answers, ids = [], [], []
        for i, (a, run) in enumerate(zip(arrivals, arriving, strict=True)):
            id = model.run_id(a.id, a.publication)
            self.sent[id], self.identity[id] = a.job, (a.id, a.publication)
            on_its_way = id in model.runs and bool(model.runs[id].dest) and id not in granted
            is_latest = on_its_way and a.grant == self.grants[id][-1]
            answers.append(model.admit(worker.name, run, a.priority, is_latest, after))
            ids.append(id)
            if a.eta_ms is None:
                free += (answers[-1] != "start") - spare[i]
            now = model.runs.get(id)
            if answers[-1] == "wait" and now is not None and now.state == "ending":
                skipped.append(id)
        assert [ending.id for ending in found.endings] == skipped
        assert [answer.what for answer in found.answers] == answers
        waiting = any(r.state in ("waiting", "early") or r.next_attempt for r in model.runs.values())
        if arrivals and waiting and worker.name not in model.kept:
            more, here, _ = model.hand_over(after, worker, free)
            granted, started = granted + more, started + here
        assert [grant.id for grant in found.grants] == granted
        assert [start.id for start in found.starts] == alone + started
        assert all(start.message == self.message_of(start.id) for start in found.starts)
        for answer, id in zip(found.answers, ids, strict=True):
            if answer.what == "start":
                assert answer.run == id
                self.fence(id, answer.fence)
        for start in found.starts:
            self.fence(start.id, start.fence)
        self.note_grants(found.grants)

    def fence(self, id: str, fence: str) -> None:
        fences = self.fences.setdefault(id, [])
        assert not fences or int(fence) > int(fences[-1]), "fences rise"
        fences.append(fence)

    def note_grants(self, grants: list[Grant]) -> None:
        for grant in grants:
            self.grants.setdefault(grant.id, []).append(grant.number)

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == "granted" for r in self.model.runs.values()))
    def publish(self, data: st.DataObject) -> None:
        granted = sorted(r.id for r in self.model.runs.values() if r.state == "granted")
        id = data.draw(st.sampled_from(granted))
        grant = Grant(id, self.grants[id][-1])
        queue, message = self.ledger.read_granted(grant) or ("", b"")
        assert (queue, message) == (self.model.runs[id].dest, self.message_of(id))
        assert self.ledger.confirm_published([grant]) == self.ledger.confirm_published([grant]) == 1
        self.model.runs[id].state = "queued"
        old = self.grants[id][0]
        assert len(self.grants[id]) == 1 or self.ledger.read_granted(Grant(id, old)) is None

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.workers) > 1)
    def worker_dies(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.model.workers)))
        self.redis.zadd(key_of(PREFIX, "leases"), {gone: -1})
        del self.model.workers[gone]
        self.model.take_runs(gone, counted="worker")
        self.sweep()

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.workers) > 1)
    def worker_leaves(self, data: st.DataObject) -> None:
        gone = data.draw(st.sampled_from(sorted(self.model.workers)))
        grants = self.ledger.leave(gone)
        assert self.ledger.leave(gone) == []
        del self.model.workers[gone]
        self.model.take_runs(gone, counted="")
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in grants] == granted
        self.note_grants(grants)

    @rule(data=st.data())
    @precondition(lambda self: len(self.model.workers) < len(SERVED))
    def worker_comes(self, data: st.DataObject) -> None:
        index = next(i for i in range(len(SERVED)) if f"w{i}" not in self.model.workers)
        self.register(f"w{index}", SERVED[index], 2)

    @rule(data=st.data())
    @precondition(lambda self: any(r.dest for r in self.model.runs.values()))
    def message_gets_lost(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(r.id for r in self.model.runs.values() if r.dest)))
        self.redis.zadd(key_of(PREFIX, "deadlines"), {id: -1})
        run = self.model.runs[id]
        again = []
        if self.model.slots(self.model.destination(run)):
            self.model.grant(run)
            again = [id]
        else:
            run.state, run.dest = "waiting", None
        self.sweep(again)

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == "later" for r in self.model.runs.values()))
    def time_comes(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(r.id for r in self.model.runs.values() if r.state == "later")))
        self.redis.zadd(key_of(PREFIX, "later"), {id: 1})
        run = self.model.runs[id]
        self.model.come_due(run)
        self.sweep(endings=[id] if run.state == "ending" else None)

    @rule(name=st.sampled_from(NAMES), on=st.booleans())
    def somebody_switches(self, name: str, on: bool) -> None:
        grants = self.ledger.enable_or_disable(name, on, "somebody", "")
        self.model.switch(name, on)
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in grants] == granted
        self.note_grants(grants)

    @rule(data=st.data())
    @precondition(lambda self: any(past.cooling for past in self.model.past.values()))
    def job_has_cooled_down(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(n for n, past in self.model.past.items() if past.cooling)))
        self.redis.zadd(key_of(PREFIX, "timers"), {f"cool_down:{name}": 1})
        self.model.cooled_down(name)
        self.sweep()

    @rule()
    def time_passes(self) -> None:
        """All ends so far are too old for dependencies with max_age_seconds."""
        self.pass_time(keys=[PREFIX], args=[OLD])
        for past in self.model.past.values():
            past.old = past.ended is not None
        self.sweep()

    @rule(paused=st.booleans())
    def somebody_pauses(self, paused: bool) -> None:
        grants = self.ledger.pause_or_resume(paused, "somebody", "")
        self.model.paused = paused
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in grants] == granted
        self.note_grants(grants)

    @rule(data=st.data(), how=st.sampled_from(["expired", "revoked"]))
    @precondition(lambda self: any(r.state in ("waiting", "later") for r in self.model.runs.values()))
    def run_is_called_off(self, data: st.DataObject, how: str) -> None:
        waiting = sorted(r.id for r in self.model.runs.values() if r.state in ("waiting", "later"))
        id = data.draw(st.sampled_from(waiting))
        ended = [id]
        if how == "revoked":
            # All runs of that task id.
            ended = [run.id for run in self.model.runs.values() if id in (run.id, run.task)]
        ended = [one for one in ended if self.model.end_unstarted(one, how)]
        if how == "expired":
            self.redis.zadd(key_of(PREFIX, "expiring"), {id: 1})
            self.sweep(endings=[id])
            return
        self.numbers += 1
        worker = sorted(self.model.workers)[0]
        endings, grants = self.ledger.cancel(worker, self.numbers, how, [id])
        assert (endings, grants) == self.ledger.cancel(worker, self.numbers, how, [id])
        assert sorted(ending.id for ending in endings) == sorted(ended)
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in grants] == granted
        self.note_grants(grants)

    @rule(data=st.data())
    @precondition(lambda self: any(r.state == "ending" for r in self.model.runs.values()))
    def ending_is_carried_out(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(r.id for r in self.model.runs.values() if r.state == "ending")))
        self.finish(id)

    def finish(self, id: str) -> None:
        run = self.model.runs[id]
        found = self.ledger.pending_end(id)
        assert found == (run.why, run.attempt, self.message_of(id))
        grants = self.ledger.confirm_end([(id, run.attempt)])
        self.model.forget(run, True)
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in grants] == granted
        self.note_grants(grants)

    @rule(jobs=jobs(), cap=st.sampled_from([None, 1, 2]))
    def policies_change(self, jobs: dict[str, Job], cap: int | None) -> None:
        """A new release: caps, blocks, dependencies. Whether room is counted by key stays, but the keys may change."""
        old = self.model.jobs
        self.model.jobs = {
            n: Job(
                **{
                    **vars(j),
                    "deps": _sane(j),
                    "keyed": old[n].keyed,
                    "cap": j.cap or (1 if old[n].keyed else None),
                }
            )
            for n, j in jobs.items()
        }
        self.model.cap = cap
        self.model.forget_first()
        assert self.ledger.install_policies("release", cap, documents(self.model.jobs))
        self.sweep()

    @rule(data=st.data())
    def somebody_asks_why(self, data: st.DataObject) -> None:
        """After any events, explain finds a root cause, and no chain leads to itself."""
        asked = [("job", name) for name in sorted(self.model.jobs)] + [("run", id) for id in sorted(self.model.runs)]
        kind, name = data.draw(st.sampled_from(asked))
        found = self.ledger.explain(kind, name)
        chain = steps(found)
        last = chain[-1]
        assert "cycle" not in last.found
        assert last.rule not in ("room", "blocked", "behind", "depends", "attempt"), "it leads to somebody"
        assert RootCauseFinder(found).root(chain).job in self.model.jobs
        first = self.model.runs.get(name)
        if first is not None:
            assert (chain[0].job, chain[0].run.id) == ((first.next_attempt or first).job, name)
        for run in (step.run for step in chain if step.run):
            assert run.state in ("early", self.model.runs[run.id].state)

    def sweep(self, again: list[str] | None = None, endings: list[str] | None = None) -> None:
        self.numbers += 1
        worker = sorted(self.model.workers)[0]
        # The ledger clock must not reach a deadline by itself, however slow the machine is.
        found = self.ledger.sweep(worker, self.numbers, 1)
        assert found == self.ledger.sweep(worker, self.numbers, 1)
        dead = {r.id for r in self.model.runs.values() if r.state == "ending" and r.why == "crashed"}
        if endings is not None:
            assert [ending.id for ending in found.endings] == endings
        else:
            assert {ending.id for ending in found.endings} <= dead
        granted, _, _ = self.model.hand_over([], None, 0)
        assert [grant.id for grant in found.grants] == (again or []) + granted
        self.note_grants(found.grants)

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        found = json.loads(self.read_state(keys=[PREFIX], args=["", ""]))
        runs = {run["id"]: run for run in found["runs"] or ()}
        assert runs.keys() == self.model.runs.keys()
        for id, run in self.model.runs.items():
            theirs = runs[id]
            assert (theirs["state"], theirs["job"], theirs["key"], theirs["attempt"]) == (
                run.state,
                run.job,
                run.key,
                run.attempt,
            )
            assert theirs.get("worker") == run.worker
            assert bool(theirs.get("alone")) == run.alone
            assert (theirs["started"], theirs.get("destination"), theirs.get("figures", {}).get("recoveries", 0)) == (
                run.started,
                run.dest,
                run.recoveries,
            )
            assert theirs.get("next_attempt") == (run.next_attempt.attempt if run.next_attempt else None)
            assert bool(theirs.get("entry")) == run.scheduled
            assert (theirs.get("task_id") or id, theirs["publication"]) == (run.task, run.publication)
        for job in found["jobs"]:
            name = job["name"]
            assert job["running"] == len(self.model.holding(name))
            assert job["busy"] == sum(r.job == name and r.started for r in self.model.runs.values())
            assert job["waiting"] == sum(r.job == name for r in self.model.waiting())
            assert job["blocked"] == sum(bool(self.model.holding(other)) for other in self.model.jobs[name].pairs)
            first = {r.id for r in self.model.runs.values() if r.job == name and r.first}
            assert set(job["scheduled"]) == first
            probe = self.model.disabled.get(name)
            assert (job["disabled"], job.get("probe")) == (name in self.model.disabled, probe)
        assert found["total"] == self.model.room_taken_by_all()

    def drain(self) -> None:
        """I2, I4, I5: everything can be brought to an end, and then nothing is left."""
        self.policies_allow_everything()
        for _ in range(400):
            if not self.model.runs:
                break
            for run in list(self.model.runs.values()):
                self.bring_on(run)
        assert not self.model.runs, "a run is stuck"
        self.both_agree()
        for worker in sorted(self.model.workers):
            self.ledger.leave(worker)
        left = set(self.redis.keys("*"))
        kept = {key_of(PREFIX, name) for name in KEPT}
        kept.add(key_of(PREFIX, "release_jobs", "release"))
        kept |= {key_of(PREFIX, kind, name) for kind in ("job", "entry") for name in NAMES}
        history = tuple(key_of(PREFIX, name, "") for name in HISTORY)
        several = [key for key in left if key.startswith(key_of(PREFIX, "task_runs", ""))]
        further = {id for key in several for id in self.redis.smembers(key)}
        letters = [key_of(PREFIX, "dead_letter", id) in left for id in further]
        assert all(letters), "of a task id that was published again only dead letters"
        assert {key for key in left if not key.startswith(history)} <= kept
        assert all(self.redis.ttl(key) > 0 for key in left if key.startswith(key_of(PREFIX, "done", "")))

    def policies_allow_everything(self) -> None:
        """Drops dependencies on jobs that never run again; the rest has to end by itself."""
        for name in NAMES:
            self.somebody_switches(name, True)
        self.somebody_pauses(False)
        more = {"deps": (), "max_failures": None}
        self.model.jobs = {n: Job(**{**vars(j), **more}) for n, j in self.model.jobs.items()}
        assert self.ledger.install_policies("release", self.model.cap, documents(self.model.jobs))
        for index, queues in enumerate(SERVED):
            if f"w{index}" not in self.model.workers:
                self.register(f"w{index}", queues, 2)
        self.sweep()

    def bring_on(self, run: Run) -> None:
        # A run that is tried alone starts on the worker that is kept free for it.
        heartbeat = next((name for name, id in self.model.kept.items() if id == run.id), "w2")
        worker = self.model.workers[heartbeat if run.state == "waiting" else "w2"]
        if self.model.runs.get(run.id) is not run:
            return None
        outcomes, arrivals = [], []
        if run.state == "running":
            outcomes = [Outcome(run.id, self.fences[run.id][-1], "succeeded")]
        elif run.state in ("granted", "queued"):
            arrivals = [self.arrival(run.id, run.attempt, run.job, run.key, 1, self.grants[run.id][-1])]
        elif run.state == "retrying":
            arrivals = [self.arrival(run.id, run.attempt + 1, run.job, run.key, 1, "")]
        elif run.state == "ending":
            return self.finish(run.id)
        elif run.state == "later":
            self.redis.zadd(key_of(PREFIX, "later"), {run.id: 1})
            self.model.come_due(run)
            return self.sweep()
        self.numbers += 1
        found = self.ledger.turn(worker.name, self.numbers, "enforce", 1, outcomes, arrivals)
        self.expect_turn(worker, 1, outcomes, arrivals, found)
        return None


def message_of(task: str, publication: str) -> bytes:
    return f"message of {task} {publication}".encode()


def _sane(job: Job) -> tuple[Dep, ...]:
    """A dependency that only has to be idle has no condition on the age of its end."""
    return tuple(dep if dep.on != "idle" else Dep(dep.job, "idle") for dep in job.deps)


LedgerMachine.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    # Shrinking an example of this size takes minutes. To understand a failure, add Phase.shrink for a while.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)
TestLedger = LedgerMachine.TestCase


class EpochMachine(LedgerMachine):
    """Redis is also restarted, emptied, or set back to an earlier state.

    Whatever Redis forgot, the runs that workers still execute keep their fences, no other run counts as running, and
    all counts are right. Nothing starts until the epoch opens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[str, str] = {}
        self.kept: tuple[dict[str, tuple[bytes, int]], Model, dict[str, list[str]]] | None = None
        self.raw = self.redis.__class__.from_url(self.redis_url(), decode_responses=False)

    #: A claimed run brings the time of its start, which would have to be moved back, too.
    time_passes = None  # type: ignore[assignment]

    def redis_url(self) -> str:
        options = self.redis.connection_pool.connection_kwargs
        return f"redis://{options['host']}:{options['port']}/0"

    def teardown(self) -> None:
        if hasattr(self, "model") and self.model.in_new_epoch:
            self.opens()
        super().teardown()
        self.raw.close()

    def register(self, name: str, queues: tuple[str, ...], slots: int) -> None:
        """A new process each time: it has nothing to claim."""
        self.announce(Worker(name, slots, queues), "")

    def announce(self, worker: Worker, epoch: str) -> str:
        found = self.ledger.register(
            Presence(
                worker=worker.name, name=worker.name, host="h", pid=1, slots=worker.slots, kind="prefork",
                queues=worker.queues, release="release", mode="enforce", lease_ms=3_600_000, owner="test",
                done_ms=3_600_000, policies="{}", jobs=tuple(NAMES),
            ),
            epoch,
        )  # fmt: skip
        self.model.workers[worker.name] = worker
        if not epoch:
            self.epochs[worker.name] = found.epoch
        return found.epoch

    def fence(self, id: str, fence: str) -> None:
        super().fence(id, fence)
        self.model.runs[id].fence = int(fence)

    # -- rules ----------------------------------------------------------------------------------------------

    @rule()
    def everything_is_kept(self) -> None:
        """By a replica, or on disk: Redis may come back in that state."""
        dump = {key: (self.raw.dump(key), max(self.raw.pttl(key), 0)) for key in self.raw.keys("*")}
        self.kept = dump, copy.deepcopy(self.model), copy.deepcopy(self.grants)

    @rule(what=st.sampled_from(["restarted", "emptied", "went back", "went back"]))
    def redis_forgets(self, what: str) -> None:
        workers, running = dict(self.model.workers), self.running()
        if what == "went back":
            if self.kept is None:
                return
            self.go_back()
        elif what == "emptied":
            self.empty()
        if what != "emptied":
            self.redis.hset(key_of(PREFIX, "ledger"), "server", "another one")
            self.epoch_is_noticed(sorted(self.model.workers))
        self.model.in_new_epoch = True
        told = {name: self.announce(worker, self.epochs[name]) for name, worker in sorted(workers.items())}
        if what != "restarted":
            # The kept state may have other policies.
            for run in self.model.runs.values():
                run.first = run.first and self.model.has_dependents(run.job)
            assert self.ledger.install_policies("release", self.model.cap, documents(self.model.jobs))
            self.model.forget_first()
        for name in sorted(workers):
            self.claim(name, told[name], running[name])
        self.dead = sorted(self.model.workers.keys() - workers.keys())
        for name in self.dead:
            # In the kept state it was alive.
            self.redis.zadd(key_of(PREFIX, "leases"), {name: -1})
            del self.model.workers[name]
            self.model.take_runs(name, counted="worker")
        self.sweep()

    @rule(data=st.data(), before=st.integers(0, 4), after=st.integers(1, 4))
    def redis_goes_back(self, data: st.DataObject, before: int, after: int) -> None:
        """With work before and after the kept state."""
        self.work(data, before)
        self.everything_is_kept()
        self.work(data, after)
        self.redis_forgets("went back")

    def work(self, data: st.DataObject, turns: int) -> None:
        for _ in range(turns):
            self.turn(data, data.draw(st.integers(0, 2)), False)

    def running(self) -> dict[str, list[Run]]:
        runs = copy.deepcopy(list(self.model.runs.values()))
        return {name: [run for run in runs if run.worker == name] for name in self.model.workers}

    def epoch_is_noticed(self, workers: list[str]) -> None:
        for name in workers:
            self.numbers += 1
            with pytest.raises(NewEpoch):
                self.ledger.sweep(name, self.numbers, 1)
            with pytest.raises(NewEpoch):
                self.ledger.turn(name, self.numbers, "enforce", 1, [], [])

    def go_back(self) -> None:
        assert self.kept is not None
        dump, model, grants = self.kept
        clock, jobs, cap = self.model.clock, self.model.jobs, self.model.cap
        self.redis.flushdb()
        for key, (value, ttl) in dump.items():
            self.raw.restore(key, ttl, value)
        self.model, self.grants = copy.deepcopy(model), copy.deepcopy(grants)
        self.model.clock, self.model.jobs, self.model.cap = clock, jobs, cap

    def empty(self) -> None:
        self.redis.flushdb()
        old = self.model
        self.model = Model(old.jobs, old.cap)
        self.model.past = {name: Past() for name in old.jobs}
        self.model.clock = old.clock
        self.kept = None

    def claim(self, name: str, epoch: str, runs: list[Run]) -> None:
        claims = [
            Claim(
                Arrival(
                    run.task, run.attempt, run.job, run.key, 3 - run.rank[0], "", None, *QUEUES[run.job],
                    self.message_of(run.id), publication=run.publication,
                ),
                str(run.fence),
                run.id,
            )
            for run in runs
        ]  # fmt: skip
        found = self.ledger.claim_runs(name, epoch, [], claims)
        back = self.model.return_all_but(name, {(run.id, run.publication) for run in runs})
        expected = [self.model.take_back(name, run) for run in runs]
        # Runs that must not run again count as failures, and may disable their job.
        assert replace(found, disabled=[]) == Claimed(expected, 0, back)
        assert self.ledger.claim_runs(name, epoch, [], claims) == Claimed(expected, 0, 0)
        self.epochs[name] = epoch

    @rule()
    @precondition(lambda self: self.model.in_new_epoch)
    def opens(self) -> None:
        """Its time has passed."""
        self.redis.hset(key_of(PREFIX, "ledger"), "opens", 0)
        self.model.in_new_epoch = False
        self.sweep()


EpochMachine.TestCase.settings = settings(
    max_examples=20,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)
TestEpochs = EpochMachine.TestCase

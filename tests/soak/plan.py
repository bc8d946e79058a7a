"""The calls and faults of a soak, and their times: all of them follow from a seed.

A plan is plain data: it is written beside the history, and can be read, shortened by hand and carried out again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

#: The ledger in one Redis with broker and results; in a Redis of its own; the same, with RabbitMQ as the broker.
TOPOLOGIES = ("together", "apart", "rabbitmq")
#: The topologies that a seed may choose. RabbitMQ is not installed on every machine, so it has to be requested.
BY_SEED = ("together", "apart")

LEASE = 3.0
SWEEP = 0.5
#: Calls a second, and faults a second during a storm.
CALLS, FAULTS = 7.0, 0.45
#: Seconds: faults come in storms; in the quiet time after a storm everything must have begun to progress again.
STORM, CALM = 20.0, 15.0
#: Seconds without faults at the beginning and at the end: a later fault could have no effect.
QUIET = 1.5

RING = 6
KEYS = 4


@dataclass(frozen=True)
class Run:
    """A run that is sent by itself or as part of a canvas."""

    id: str
    job: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    #: The outcomes that are allowed.
    ends: tuple[str, ...] = ("SUCCESS",)
    #: Runs that must have happened before this one is sent.
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """A call: a single run, or a canvas of runs. The last run of a chord is its body."""

    at: float
    shape: str  # "single" | "chain" | "group" | "chord"
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Act:
    """An action of a person: revoke, terminate or cancel a run, or pause everything for a while."""

    at: float
    what: str  # "revoke" | "terminate" | "cancel" | "pause"
    run: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Fault:
    """A fault. ``worker`` is a place, not a process: the fault happens to the worker that has the place at that
    time."""

    at: float
    what: str
    worker: int = -1
    child: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Place:
    """A place of a worker: when the worker is gone, another one takes the place."""

    pool: str
    concurrency: int


@dataclass(frozen=True)
class Plan:
    seed: str
    seconds: float
    topology: str
    places: tuple[Place, ...]
    max_running: int | None
    calls: tuple[Call, ...]
    acts: tuple[Act, ...]
    faults: tuple[Fault, ...]

    def runs(self) -> Iterator[tuple[Call, Run]]:
        for call in self.calls:
            for run in call.runs:
                yield call, run

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Plan:
        found = json.loads(text)
        found["places"] = tuple(Place(**place) for place in found["places"])
        found["acts"] = tuple(Act(**act) for act in found["acts"])
        found["faults"] = tuple(Fault(**fault) for fault in found["faults"])
        found["calls"] = tuple(
            Call(call["at"], call["shape"], tuple(_run(run) for run in call["runs"])) for call in found["calls"]
        )
        return cls(**found)


def _run(found: dict[str, Any]) -> Run:
    return Run(**{**found, "ends": tuple(found["ends"]), "after": tuple(found["after"])})


def make(seed: str, seconds: float, topology: str | None = None) -> Plan:
    """The plan of a seed. Load and faults are drawn separately, so that a longer soak begins like a shorter one."""
    chance = Random(f"{seed} setting")
    chosen = chance.choice(BY_SEED)
    topology = topology or chosen
    places = (Place("prefork", 2), Place("prefork", 3), Place("threads", 3))
    max_running = chance.choice((None, None, 6))
    load = _Load(seed, seconds)
    load.draw()
    faults = tuple(_faults(Random(f"{seed} faults"), seconds, topology, places))
    return Plan(seed, seconds, topology, places, max_running, tuple(load.calls), tuple(load.acts), faults)


# -- the load


class _Load:
    def __init__(self, seed: str, seconds: float) -> None:
        self._seed = seed
        self._seconds = seconds
        self._chance = Random(f"{seed} load")
        self._number = 0
        self.calls: list[Call] = []
        self.acts: list[Act] = []

    def draw(self) -> None:
        shapes, weights = zip(*_SHAPES, strict=True)
        # Jobs that others depend on. They are sent again at the end, so that waiting dependents can start even if
        # earlier runs failed.
        self._dependencies(0.0)
        at = self._chance.expovariate(CALLS)
        while at < self._seconds:
            self._chance.choices(shapes, weights)[0](self, round(at, 3))
            at += self._chance.expovariate(CALLS)
        self._dependencies(self._seconds)
        self.acts.sort(key=lambda act: act.at)

    def _new(self, job: str, **kwargs: Any) -> Run:
        self._number += 1
        return Run(f"{self._seed}-{self._number:05d}", job, kwargs)

    def _work(self, job: str, most: float = 0.3) -> Run:
        return self._new(job, seconds=round(self._chance.uniform(0.0, most), 3))

    def _single(self, at: float, run: Run) -> None:
        self.calls.append(Call(at, "single", (run,)))

    def _dependencies(self, at: float) -> None:
        self._single(at, self._new("fetch", seconds=0.01))
        self.failing(at)

    # Shapes of calls.

    def ordinary(self, at: float) -> None:
        job = self._chance.choice(("free", "free", "exclusive", "pair", "late", "urgent", "low"))
        self._single(at, self._work(job, 0.15 if job in ("exclusive", "late", "urgent") else 0.3))

    def keyed(self, at: float) -> None:
        run = self._work("keyed")
        key = f"k{self._chance.randrange(KEYS)}"
        self._single(at, replace(run, kwargs={**run.kwargs, "key": key}))

    def ring(self, at: float) -> None:
        for _ in range(self._chance.randint(1, 3)):
            self._single(at, self._work(f"ring.{self._chance.randrange(RING)}", 0.2))

    def dependents(self, at: float) -> None:
        job = self._chance.choice(("fetch", "process", "process", "publish", "report"))
        self._single(at, self._work(job, 0.1))

    def long(self, at: float) -> None:
        self._single(at, self._new("long", seconds=round(self._chance.uniform(1.0, 5.0), 2)))

    def plain(self, at: float) -> None:
        self._single(at, self._work("plain"))

    def failing(self, at: float) -> None:
        self._single(at, replace(self._work("failing", 0.1), ends=("FAILURE",)))

    def flaky(self, at: float) -> None:
        job = self._chance.choice(("flaky", "backing_off"))
        delay = self._chance.choice((0, 0, 0.3, 1))
        self._single(at, self._new(job, failures=self._chance.randint(1, 3), delay=delay))

    def later(self, at: float) -> None:
        countdown = round(self._chance.uniform(0.2, 2.0), 2)
        run = self._work(self._chance.choice(("free", "exclusive")), 0.1)
        self._single(at, replace(run, options={"countdown": countdown}))

    def expiring(self, at: float) -> None:
        run = self._work(self._chance.choice(("exclusive", "long_queue")), 0.1)
        expires = round(self._chance.uniform(0.2, 3.0), 2)
        self._single(at, replace(run, options={"expires": expires}, ends=("SUCCESS", "REVOKED")))

    def called_off(self, at: float) -> None:
        what = self._chance.choice(("revoke", "revoke", "cancel", "terminate"))
        run = self._work("long_queue" if what != "terminate" else "long", 1.0)
        self._single(at, replace(run, ends=("SUCCESS", "REVOKED")))
        self.acts.append(Act(round(at + self._chance.uniform(0.0, 2.0), 3), what, run.id))

    def deadly(self, at: float) -> None:
        self._single(at, replace(self._new("deadly"), ends=("FAILURE",)))

    def pause(self, at: float) -> None:
        self.acts.append(Act(at, "pause", seconds=round(self._chance.uniform(0.3, 1.5), 2)))

    def canvas(self, at: float) -> None:
        shape = self._chance.choice(("chain", "group", "chord", "chord"))
        jobs = ("free", "exclusive", "pair", "keyed", "ring.0", "ring.1")
        members: list[Run] = []
        for _ in range(self._chance.randint(2, 5)):
            run = self._work(self._chance.choice(jobs), 0.1)
            kwargs = {**run.kwargs, "canvas": True}
            if run.job == "keyed":
                kwargs["key"] = "canvas"
            after = (members[-1].id,) if shape == "chain" and members else ()
            members.append(replace(run, kwargs=kwargs, after=after))
        if shape == "chord":
            body = self._new("gather", expected=len(members))
            members.append(replace(body, after=tuple(member.id for member in members)))
        self.calls.append(Call(at, shape, tuple(members)))


_SHAPES: list[tuple[Callable[[_Load, float], None], float]] = [
    (_Load.ordinary, 30),
    (_Load.keyed, 10),
    (_Load.ring, 8),
    (_Load.dependents, 10),
    (_Load.long, 6),
    (_Load.plain, 8),
    (_Load.failing, 4),
    (_Load.flaky, 6),
    (_Load.later, 4),
    (_Load.expiring, 4),
    (_Load.called_off, 4),
    (_Load.deadly, 0.6),
    (_Load.pause, 0.6),
    (_Load.canvas, 7),
]


# -- the faults

#: The faults, and how often each is drawn relative to the others.
_KINDS = {
    "kill_child": 6,
    "kill_worker": 4,
    "stop_worker": 3,
    "stop_main": 2,
    "end_worker": 2,
    "kill_ledger": 3,
    "stop_ledger": 1,
    "cut_broker": 2,
    "flush_scripts": 2,
}
#: Seconds for which a worker that was just started is left alone.
_STARTING = 4.0


def _faults(chance: Random, seconds: float, topology: str, places: tuple[Place, ...]) -> Iterator[Fault]:
    free_at = [0.0] * len(places)
    server_at = 0.0
    at = QUIET
    while True:
        at += chance.expovariate(FAULTS)
        if at % (STORM + CALM) > STORM:
            at = (at // (STORM + CALM) + 1) * (STORM + CALM)
        if at >= seconds - QUIET:
            return
        what = chance.choices(list(_KINDS), list(_KINDS.values()))[0]
        fault = Fault(round(at, 3), what, child=chance.randrange(8))
        long = round(chance.uniform(0.5, 2.5) * LEASE, 2)  # around the length of a lease: some lose it, some do not
        short = round(chance.choice((0.0, 0.2, 1.0, 1.5 * LEASE)), 2)
        candidates = [n for n, place in enumerate(places) if what != "kill_child" or place.pool == "prefork"]
        worker = chance.choice(candidates)
        if what.endswith(("_child", "_worker", "_main")):
            # A worker whose place is empty, or that stands still, is left alone; and at least one worker is always
            # intact.
            if free_at[worker] > at or sum(until > at for until in free_at) > 1:
                continue
            lasts = long if what.startswith("stop") else 0.0
            fault = replace(fault, worker=worker, seconds=lasts)
            free_at[worker] = at + {"kill_child": 0.5}.get(what, lasts or _STARTING)
        elif what in ("kill_ledger", "stop_ledger", "cut_broker"):
            if server_at > at:
                continue
            lasts = short if what != "cut_broker" else 0.0
            fault = replace(fault, seconds=lasts)
            server_at = at + lasts + 2.0
        yield fault

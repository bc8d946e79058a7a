"""The runs and jobs of the model (``model.py``), and its answers to the questions of the gate's rules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from celery_orchestration.job import rules

HOLDS_ROOM = ("granted", "queued", "running")


class Dep(NamedTuple):
    job: str
    on: str
    fresh: bool = False
    #: Whether an old end of the dependency does not count.
    ages: bool = False

    @property
    def max_age_seconds(self) -> float | None:
        return 0.001 if self.ages else None


@dataclass(frozen=True)
class Job:
    name: str
    cap: int | None = None
    keyed: bool = False
    #: All jobs that never run at the same time, those of its groups included. Symmetric.
    blocks: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    #: The jobs that it blocks by name.
    pairs: frozenset[str] = frozenset()
    deps: tuple[Dep, ...] = ()
    crash: str = "requeue"
    max_recoveries: int = 2
    max_failures: int | None = None
    cools: bool = False
    drop: bool = False


@dataclass
class Run:
    id: str
    job: str
    key: str
    attempt: int
    rank: tuple[int, int]
    own_queue: str
    granted_queue: str = ""
    #: The call that it comes from, and its task id.
    publication: str = ""
    task: str = ""
    dest: str | None = None
    state: str = "new"
    worker: str | None = None
    dependencies_checked: bool = False
    started: bool = False
    recoveries: int = 0
    why: str = ""
    next_attempt: Run | None = None
    #: The time of its start, and its fence.
    begun: int = 0
    fence: int = 0
    later: bool = False  # it arrived with a start time
    alone: bool = False
    scheduled: bool = False
    #: It waits, has not started, and other jobs depend on its job: runs of theirs that arrive later wait for it.
    first: bool = False
    #: An arrival that may be a copy of a waiting run; that is known only after the gate has looked at it.
    may_be_copy: bool = False

    @property
    def forced(self) -> bool:
        return self.rank[0] < 0


@dataclass
class Past:
    """What is remembered of a job."""

    ok: bool | None = None
    ended: int | None = None
    #: It ended longer ago than any dependency allows.
    old: bool = False
    begun: int | None = None
    failures: int = 0
    cooling: bool = False


@dataclass
class Worker:
    name: str
    slots: int
    queues: tuple[str, ...]


@dataclass
class GateModel:
    """A :class:`rules.Gate` that answers by looking at all runs."""

    jobs: dict[str, Job]
    cap: int | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    #: For ended runs: the attempt, and the publication.
    done: dict[str, tuple[int, str]] = field(default_factory=dict)
    past: dict[str, Past] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    paused: bool = False
    #: A new epoch has begun, and the workers have not had a lease to claim their runs.
    in_new_epoch: bool = False
    #: Disabled jobs, each with its probe: None (there is none), '' (there may be one) or the run.
    disabled: dict[str, str | None] = field(default_factory=dict)
    #: Workers that are kept free, each for a run.
    kept: dict[str, str] = field(default_factory=dict)
    #: Entries of the schedule, each with its last run.
    entries: dict[str, str] = field(default_factory=dict)
    clock: int = 0
    arrivals: int = 0

    def __post_init__(self) -> None:
        self.past = {name: Past() for name in self.jobs}

    # -- looking ------------------------------------------------------------------------------------

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def holding(self, job: str) -> list[Run]:
        return [run for run in self.runs.values() if run.job == job and run.state in HOLDS_ROOM]

    def waiting(self) -> list[Run]:
        return sorted((r for r in self.runs.values() if r.state == "waiting" and not r.alone), key=lambda r: r.rank)

    def forget_first(self) -> None:
        """After a change of policies: nobody waits for runs of a job that no other job depends on any more."""
        for run in self.runs.values():
            run.first = run.first and self.has_dependents(run.job)

    def has_dependents(self, job: str) -> bool:
        return any(dep.job == job for other in self.jobs.values() for dep in other.deps)

    def enabled_for(self, run: Run) -> bool:
        return run.job not in self.disabled or run.forced or self.disabled[run.job] in ("", run.id)

    # -- what the rules ask (see job/rules.py)

    @property
    def max_running(self) -> int | None:
        return self.cap

    def job(self, name: str) -> rules.Job:
        job = self.jobs[name]
        return rules.Job(job.cap, job.deps, job.blocks, job.keyed)

    def why_disabled(self, run: Run) -> str | None:
        return None if self.enabled_for(run) else "disabled"

    def is_disabled(self, job: str) -> bool:
        return job in self.disabled

    def room_taken(self, job: str, key: str) -> int:
        return sum(not self.jobs[job].keyed or run.key == key for run in self.holding(job))

    def room_taken_by_all(self) -> int:
        return sum(run.state in HOLDS_ROOM for run in self.runs.values())

    def holds_room(self, job: str) -> bool:
        return bool(self.holding(job))

    def is_busy(self, job: str) -> bool:
        return any(run.job == job and run.started for run in self.runs.values())

    def has_earlier_run(self, job: str, run: Run) -> bool:
        return any(r.first and r.job == job and r.rank[1] < run.rank[1] for r in self.runs.values())

    def last_end(self, job: str) -> rules.Last | None:
        past = self.past[job]
        return None if past.ended is None else rules.Last(bool(past.ok), past.ended)

    def seconds_since_end(self, job: str) -> float:
        return inf if self.past[job].old else 0.0

    def last_start(self, job: str) -> int | None:
        return self.past[job].begun

    def waiting_before(self, run: Run, jobs: Collection[str]) -> list[Run]:
        before = (other for other in self.waiting() if other.job in jobs and other.rank < run.rank)
        return [other for other in before if other.id != run.id or run.may_be_copy]

    def may_start(self, run: Run, ignoring: str | None = None) -> bool:
        """`ignoring`: as in ``rules.behind``."""
        others = (rule for rule in rules.RULES if rule is not rules.behind)
        return all(rule(self, run) is None for rule in others) and rules.behind(self, run, ignoring) is None

    def held_back(self) -> bool:
        """Not even a forced run could start, whatever its job."""
        return any(rule(self, rules.Run("", 0, forced=True)) for rule in (rules.epoch, rules.paused, rules.global_room))

    def slots(self, queue: str) -> int:
        return sum(worker.slots for worker in self.workers.values() if queue in worker.queues)

    def under_way(self, queue: str) -> int:
        return sum(run.dest == queue for run in self.runs.values())

    def destination(self, run: Run) -> str:
        return run.granted_queue if run.granted_queue and self.slots(run.granted_queue) else run.own_queue

    def run_id(self, task: str, publication: str) -> str:
        """The run to which a message belongs, or which it creates."""
        own = f"{task}~{publication}"
        for id in (task, own):
            if id in self.runs and self.runs[id].publication == publication:
                return id
            if id in self.done and self.done[id][1] == publication:
                return id
        return own if task in self.runs or task in self.done else task

    def done_attempt(self, id: str, publication: str) -> int:
        attempt, of = self.done.get(id, (-1, ""))
        return attempt if of == publication else -1

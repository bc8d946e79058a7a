"""Simulates the gate: due times come, runs wait, start and end. Pure: the same plan gives the same runs.

Every run takes as long as its job usually does, and succeeds.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Literal

from celery_orchestration.job import queues, reasons, rules
from celery_orchestration.scheduler.times import Asked, Times

#: After this many runs the simulation ends early.
MOST_RUNS = 20_000

Source = Literal["statistics", "last run", "unknown"]


@dataclass(frozen=True)
class PlannedJob:
    rules: rules.Job
    priority: int = 1
    pool: str = "default"
    #: The usual duration of a run; 0 if unknown.
    typical_ms: int = 0
    source: Source = "unknown"
    #: Whether fires are dropped while the job is disabled.
    drops: bool = False


@dataclass(frozen=True)
class PlannedEntry:
    name: str
    job: str
    #: None: the entry of a continuous job, whose next run comes `gap_ms` after the last one ended.
    times: Times | None
    last_ms: int
    overlap: str = "skip"
    key: str = ""
    priority: int | None = None
    gap_ms: int = 0


@dataclass(frozen=True)
class Present:
    """A run that exists already: it has run since `since_ms`, or waits if that is None."""

    job: str
    key: str = ""
    priority: int = 1
    since_ms: int | None = None


@dataclass(frozen=True)
class Plan:
    now_ms: int
    until_ms: int
    jobs: Mapping[str, PlannedJob]
    entries: Sequence[PlannedEntry] = ()
    #: The waiting ones in the order of their arrival.
    present: Sequence[Present] = ()
    ended: Mapping[str, rules.Last | None] = field(default_factory=dict)
    started: Mapping[str, float] = field(default_factory=dict)
    disabled: Mapping[str, str] = field(default_factory=dict)
    paused: bool = False
    max_running: int | None = None
    #: The slots of each pool's workers. A pool that is not listed has as many as needed.
    slots: Mapping[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Simulated:
    """A simulated run and its times."""

    run: rules.Run
    due_ms: int
    entry: PlannedEntry | None = None
    next_due_ms: int | None = None
    starts_ms: int | None = None
    ends_ms: int | None = None
    rule: str | None = None
    waits_for: str | None = None

    def is_over(self, now_ms: int) -> bool:
        return self.ends_ms is not None and self.ends_ms <= now_ms


class Simulation:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now_ms = plan.now_ms
        self.gate = rules.Situation(
            jobs={name: job.rules for name, job in plan.jobs.items()},
            max_running=plan.max_running,
            paused=plan.paused,
            disabled=plan.disabled,
            ended={**dict.fromkeys(plan.jobs), **plan.ended},
            started=dict(plan.started),
        )
        self.dependents: dict[str, set[str]] = {}
        for name, job in plan.jobs.items():
            for dependency in job.rules.dependencies:
                self.dependents.setdefault(dependency.job, set()).add(name)
        self.continuous: dict[str, list[PlannedEntry]] = {}
        for entry in plan.entries:
            if entry.times is None:
                self.continuous.setdefault(entry.job, []).append(entry)
        self.levels = _levels(plan.jobs)
        self.busy: Counter[str] = Counter()
        self.waiting: list[Simulated] = []
        self.runs: list[Simulated] = []
        self.skipped: Counter[str] = Counter()
        self.skipped_of_entry: Counter[str] = Counter()
        self.last: dict[str, Simulated] = {}
        self.unpredictable: list[str] = []
        self.reached_ms = plan.until_ms
        #: A run ends, an entry is due, or (None) time opens a rule.
        self._events: list[tuple[int, int, Simulated | PlannedEntry | None]] = []
        self._opening: set[int] = set()
        self._number = 0

    def run(self) -> None:
        self._add_existing_runs()
        for entry in self.plan.entries:
            self._plan_next(entry, entry.last_ms)
        while self._events:
            self.now_ms = self._events[0][0]
            if len(self.runs) >= MOST_RUNS and self.now_ms < self.reached_ms:
                self.reached_ms = self.now_ms
            self.gate.now = self.now_ms / 1000
            self._moment()

    def _moment(self) -> None:
        """Everything that happens at one time: runs end, room is handed over, entries fire. After the end of the plan
        no entry fires, but runs still start and end."""
        ends: list[Simulated] = []
        fires: list[PlannedEntry] = []
        while self._events and self._events[0][0] == self.now_ms:
            what = heapq.heappop(self._events)[-1]
            if isinstance(what, Simulated):
                ends.append(what)
            elif what is not None and self.now_ms <= self.plan.until_ms and len(self.runs) < MOST_RUNS:
                fires.append(what)
        for run in ends:
            self._end(run)
        if ends or self.now_ms in self._opening:
            self._hand_over({run.run.job for run in ends})
        made = [self._fire(entry) for entry in sorted(fires, key=self._order_of)]
        for new in made:
            if new is not None:
                self._try(new)

    def _order_of(self, entry: PlannedEntry) -> tuple[int, int, str]:
        """The order of entries that are due at the same time: dependencies first, then by priority."""
        return self.levels[entry.job], -self._priority(entry), entry.name

    def _priority(self, entry: PlannedEntry) -> int:
        return self.plan.jobs[entry.job].priority if entry.priority is None else entry.priority

    def _add_existing_runs(self) -> None:
        self.gate.now = self.now_ms / 1000
        there = [(one, Simulated(self._new(one.job, one.priority, one.key), self.now_ms)) for one in self.plan.present]
        for one, run in there:
            if one.since_ms is not None:
                self.runs.append(run)
                self._begin(run, one.since_ms)
        for one, run in there:
            if one.since_ms is None:
                self.runs.append(run)
                self._wait(run)
        self._hand_over(set())

    def _new(self, job: str, priority: int, key: str) -> rules.Run:
        self._number += 1
        return rules.Run(job, priority, key, self._number, forced=priority == queues.FORCED)

    def _plan_next(self, entry: PlannedEntry, last_ms: int) -> None:
        if entry.times is None:
            # An existing run is followed by the next one; if there is none, the first run begins now.
            if not any(one.job == entry.job for one in self.plan.present):
                self._at(self.now_ms, entry)
            return
        due = _due_after(entry.times, last_ms, self.now_ms)
        if due is None:
            self.unpredictable.append(entry.name)
        else:
            self._at(due, entry)

    def _at(self, ms: int, what: Simulated | PlannedEntry | None) -> None:
        self._number += 1
        heapq.heappush(self._events, (ms, self._number, what))

    def _fire(self, entry: PlannedEntry) -> Simulated | None:
        following = None
        if entry.times is not None:
            following = _due_after(entry.times, self.now_ms, self.now_ms)
            if following is not None:
                self._at(following, entry)
        if self._is_skipped(entry):
            self.skipped[entry.job] += 1
            self.skipped_of_entry[entry.name] += 1
            return None
        run = Simulated(self._new(entry.job, self._priority(entry), entry.key), self.now_ms, entry, following)
        self.last[entry.name] = run
        self.runs.append(run)
        self._wait(run)
        return run

    def _is_skipped(self, entry: PlannedEntry) -> bool:
        if entry.job in self.plan.disabled and self.plan.jobs[entry.job].drops:
            return True
        before = self.last.get(entry.name)
        if before is None or entry.overlap == "allow" or before.is_over(self.now_ms):
            return False
        return before.starts_ms is None or entry.overlap == "skip"

    def _wait(self, run: Simulated) -> None:
        self.waiting.append(run)
        self.gate.wait(run.run)

    def _try(self, run: Simulated) -> None:
        words = rules.reason_to_wait(self.gate, run.run) or self._no_slot(run)
        if words is None:
            self.waiting.remove(run)
            self.gate.no_longer_wait(run.run)
            self._begin(run, self.now_ms)
            return
        if run.rule is None:
            run.rule = words[0]
            run.waits_for = reasons.job_of(words)
        opens = rules.opens_at(self.gate, run.run)
        if opens is not None and (at_ms := max(self.now_ms + 1, math.ceil(opens * 1000))) not in self._opening:
            self._opening.add(at_ms)
            self._at(at_ms, None)

    def _no_slot(self, run: Simulated) -> list[str] | None:
        pool = self.plan.jobs[run.run.job].pool
        slots = self.plan.slots.get(pool)
        return ["slot", pool] if slots is not None and self.busy[pool] >= slots else None

    def _begin(self, run: Simulated, since_ms: int) -> None:
        job = self.plan.jobs[run.run.job]
        run.starts_ms = since_ms
        run.ends_ms = max(self.now_ms, since_ms + job.typical_ms)
        self.gate.start(run.run, since_ms / 1000)
        self.busy[job.pool] += 1
        self._at(run.ends_ms, run)

    def _end(self, run: Simulated) -> None:
        self.gate.end(run.run)
        self.gate.ended[run.run.job] = rules.Last(True, self.now_ms / 1000)
        self.busy[self.plan.jobs[run.run.job].pool] -= 1
        for entry in self.continuous.get(run.run.job, ()):
            # At least a millisecond: the clock would stand still for a job that takes no time.
            self._at(self.now_ms + max(1, entry.gap_ms), entry)

    def _hand_over(self, ended: set[str]) -> None:
        """Starts waiting runs in rank order; but dependents of a job that has just ended go before its next runs."""
        favoured = {name for job in ended for name in self.dependents.get(job, ())}
        heads = [run.run.rank for run in self.waiting if run.run.job in ended]

        def place(run: Simulated) -> tuple[tuple[int, int], int, int]:
            early = run.run.job in favoured and heads
            rank = min(run.run.rank, *heads) if early else run.run.rank
            return rank, 0 if early else 1, run.run.arrival

        for run in sorted(self.waiting, key=place):
            self._try(run)


def _due_after(times: Times, last_ms: int, now_ms: int) -> int | None:
    """The first due time after now; None if the schedule does not know it."""
    if isinstance(times, Asked):
        return None
    try:
        passed = times.due(last_ms, now_ms)
        return passed.next if passed is not None else times.next(last_ms, now_ms)
    except ValueError:
        return None


def _levels(jobs: Mapping[str, PlannedJob]) -> dict[str, int]:
    """The length of each job's longest chain of dependencies, by which the scheduler orders fires."""
    needs = {name: [one.job for one in job.rules.dependencies if one.job in jobs] for name, job in jobs.items()}
    found: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        found[name] = 1 + max((found[other] for other in needs[name]), default=-1)
    return found

"""The rules of the gate over plain values: what ``lua/rules.lua`` decides in Redis, without Redis.

``testing.decide`` asks for one run, ``operate/forecast.py`` for many, one after another. A change here needs the same
in ``lua/rules.lua`` and in ``tests/support/model.py``; ``tests/integration/test_decide.py`` compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """What the gate has to know of a job."""

    max_running: int | None = None
    #: As a policy's document has them.
    dependencies: Sequence[Mapping[str, Any]] = ()
    #: Jobs that never run at the same time.
    never_beside: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    job: str
    priority: int
    key: str = ""
    #: Which came first.
    arrival: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """A lower one goes first."""
        return -self.priority, self.arrival


@dataclass(frozen=True, slots=True)
class Last:
    """How the latest run of a job that has ended did so, and when."""

    succeeded: bool
    at: float


@dataclass
class Situation:
    """What runs and what waits at a moment. Times are seconds, of whatever clock."""

    jobs: Mapping[str, Job]
    #: Cap over all jobs.
    max_running: int | None = None
    paused: bool = False
    #: With the reason.
    disabled: Mapping[str, str] = field(default_factory=dict)
    #: None: never. A job that is not there has just succeeded.
    ended: dict[str, Last | None] = field(default_factory=dict)
    #: When the last run of a job started, if one ever did.
    started: dict[str, float] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        self._room: Counter[tuple[str, str]] = Counter()
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[str, list[Run]] = {}

    # -- what happens -------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        self._room[run.job, run.key] += 1
        self._running[run.job] += 1
        self._total += 1

    def end(self, run: Run) -> None:
        self._room[run.job, run.key] -= 1
        self._running[run.job] -= 1
        self._total -= 1

    def wait(self, run: Run) -> None:
        self._waiting.setdefault(run.job, []).append(run)

    def no_longer_wait(self, run: Run) -> None:
        self._waiting[run.job].remove(run)

    # -- rules ----------------------------------------------------------------------------------------

    def closed(self, run: Run) -> list[str] | None:
        """None if the run may start, else what it waits for: the words of ``closed`` in ``lua/rules.lua``."""
        job = self.jobs[run.job]
        if self.paused:
            return ["paused"]
        if run.job in self.disabled:
            return ["disabled", self.disabled[run.job]]
        if job.max_running is not None and self._room[run.job, run.key] >= job.max_running:
            return ["room", run.job, run.key]
        if self.max_running is not None and self._total >= self.max_running:
            return ["global"]
        for other in job.never_beside:
            if self._running[other]:
                return ["blocked", other]
        return self._unmet(run) or self._barred(run, job)

    def _unmet(self, run: Run) -> list[str] | None:
        for dep in self.jobs[run.job].dependencies if run.job in self.jobs else ():
            how = self._wanting(dep, run)
            if how is not None:
                return ["depends", dep["job"], how]
        return None

    def _wanting(self, dep: Mapping[str, Any], run: Run) -> str | None:
        name = dep["job"]
        if self._running[name]:
            return "busy"
        if any(one.arrival < run.arrival for one in self._waiting.get(name, ())):
            return "disabled" if name in self.disabled else "fires"
        if dep["on"] == "idle":
            return None
        last = self.ended.get(name, Last(True, self.now))
        started = self.started.get(run.job)
        how = None
        if last is None:
            how = "never"
        elif dep["on"] == "success" and not last.succeeded:
            how = "failed"
        elif dep["max_age_ms"] is not None and (self.now - last.at) * 1000 > dep["max_age_ms"]:
            how = "old"
        elif dep["fresh"] and started is not None and last.at <= started:
            how = "stale"
        return "disabled" if how and name in self.disabled else how

    def _barred(self, run: Run, job: Job) -> list[str] | None:
        """No barging. A run that waits for a dependency, or whose job is disabled, bars nobody."""
        if any(one.key == run.key for one in self._before(run, [run.job])):
            return ["behind", run.job]
        others = sorted(self._before(run, job.never_beside), key=lambda one: one.rank)
        first = next((one for one in others if one.job not in self.disabled and not self._unmet(one)), None)
        return None if first is None else ["behind", first.job]

    def _before(self, run: Run, jobs: Iterable[str]) -> list[Run]:
        """The waiting runs of these jobs that rank before."""
        return [one for job in jobs for one in self._waiting.get(job, ()) if one.rank < run.rank]

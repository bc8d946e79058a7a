"""The rules of the gate, without Redis: one pure function each, tried in the order of :data:`RULES`.

The ledger decides by the same rules in Lua. These serve ``testing.decide``, the forecast
(``operate/forecast/simulation.py``) and the model with which the tests compare the ledger (``tests/support/model.py``).
Each of them describes its runs as a :class:`Gate`. A new rule is a function here, a place in :data:`RULES`, an entry in
``reasons.py``, and the same rule in Lua. ``test_rules.py`` compares the order of the two; ``test_decide.py`` and
``test_ledger_model.py`` compare what they answer, under the options that their jobs have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

from celery_orchestration.job.options import LEDGER_OPTIONS
from celery_orchestration.job.policy import Policy

#: The rules that ``testing.decide`` can answer with. Only a ledger that may have lost data closes the gate ("epoch").
Rule = Literal["paused", "disabled", "room", "global", "blocked", "depends", "behind"]


# -- what the rules look at -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dependency:
    job: str
    on: str = "success"
    max_age_seconds: float | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """The options of a job that the gate looks at. A field with the name of an option has its value."""

    max_running: int | None = None
    dependencies: Sequence[Dependency] = ()
    #: Jobs that never run at the same time.
    never_beside: Collection[str] = ()
    #: Whether runs of different keys have room of their own.
    keyed: bool = True

    @classmethod
    def of(cls, policy: Policy, never_beside: Collection[str]) -> Job:
        options = {one.name: getattr(policy, one.name) for one in fields(cls) if one.name in LEDGER_OPTIONS}
        needs = [Dependency(**one) for one in policy.document()["depends_on"]]
        return cls(dependencies=needs, never_beside=never_beside, **options)


class RunAtGate(Protocol):
    """A run that waits or arrives."""

    @property
    def job(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def rank(self) -> tuple[int, int]:
        """The lower rank goes first."""

    @property
    def forced(self) -> bool: ...
    @property
    def dependencies_checked(self) -> bool:
        """Dependencies are checked once per run: not again for its retries and recoveries."""


@dataclass(frozen=True, slots=True)
class Run:
    job: str
    priority: int
    key: str = ""
    #: Its place in the order of arrival.
    arrival: int = 0
    forced: bool = False
    dependencies_checked: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return -self.priority, self.arrival


@dataclass(frozen=True, slots=True)
class Last:
    """How and when the latest ended run of a job ended."""

    succeeded: bool
    at: float


class Gate(Protocol):
    """All runs and jobs at a moment, as the rules ask about them."""

    paused: bool

    @property
    def in_new_epoch(self) -> bool:
        """The ledger may have lost data: nothing starts until the workers have reported their runs."""

    @property
    def max_running(self) -> int | None:
        """The cap over all jobs."""

    def job(self, name: str) -> Job: ...
    def why_disabled(self, run: RunAtGate) -> str | None:
        """The reason if the run's job is disabled, and this run is not allowed to try it; else None."""

    def is_disabled(self, job: str) -> bool: ...
    def room_taken(self, job: str, key: str) -> int: ...
    def room_taken_by_all(self) -> int: ...
    def holds_room(self, job: str) -> bool: ...
    def is_busy(self, job: str) -> bool:
        """A run of the job has started and not ended."""

    def has_earlier_run(self, job: str, run: RunAtGate) -> bool:
        """A run of the job that has not started arrived before `run`."""

    def last_end(self, job: str) -> Last | None:
        """None if no run of the job has ever ended."""

    def seconds_since_end(self, job: str) -> float: ...
    def last_start(self, job: str) -> float | None: ...
    def waiting_before(self, run: RunAtGate, jobs: Collection[str]) -> Iterable[RunAtGate]:
        """The waiting runs of these jobs that rank before `run`."""


# -- the rules: each returns None, or the words of its reason (see reasons.py) ----------------------


def epoch(gate: Gate, run: RunAtGate) -> list[str] | None:
    return ["epoch"] if gate.in_new_epoch else None


def paused(gate: Gate, run: RunAtGate) -> list[str] | None:
    return ["paused"] if gate.paused and not run.forced else None


def disabled(gate: Gate, run: RunAtGate) -> list[str] | None:
    why = gate.why_disabled(run)
    return None if why is None else ["disabled", why]


def room(gate: Gate, run: RunAtGate) -> list[str] | None:
    cap = gate.job(run.job).max_running
    return ["room", run.job, run.key] if cap is not None and gate.room_taken(run.job, run.key) >= cap else None


def global_room(gate: Gate, run: RunAtGate) -> list[str] | None:
    return ["global"] if gate.max_running is not None and gate.room_taken_by_all() >= gate.max_running else None


def blocked(gate: Gate, run: RunAtGate) -> list[str] | None:
    other = next((name for name in gate.job(run.job).never_beside if gate.holds_room(name)), None)
    return None if other is None else ["blocked", other]


def depends(gate: Gate, run: RunAtGate) -> list[str] | None:
    if run.dependencies_checked:
        return None
    for dependency in gate.job(run.job).dependencies:
        missing = missing_condition(gate, run, dependency)
        if missing is not None:
            return ["depends", dependency.job, missing]
    return None


def behind(gate: Gate, run: RunAtGate, ignoring: str | None = None) -> list[str] | None:
    """No run overtakes another. A run that waits for a dependency, or whose job is disabled, holds up nobody.

    `ignoring`: a job that has just ended. Runs that wait for it go before its own next run.
    """
    job = gate.job(run.job)
    for one in gate.waiting_before(run, [run.job]):
        if (not job.keyed or one.key == run.key) and bars_others(gate, one):
            return ["behind", run.job]
    others = [name for name in job.never_beside if name not in (run.job, ignoring)]
    before = sorted(gate.waiting_before(run, others), key=lambda one: one.rank)
    first = next((one for one in before if bars_others(gate, one)), None)
    return None if first is None else ["behind", first.job]


#: A waiting run that one of these rules holds back does not hold up others.
NOT_BARRING = (
    depends,
    disabled,
)
#: In the order in which the gate tries them: the first rule that keeps a run from starting gives the reason.
RULES: tuple[Callable[[Gate, RunAtGate], list[str] | None], ...] = (
    epoch,
    paused,
    disabled,
    room,
    global_room,
    blocked,
    depends,
    behind,
)


#: Rules that time opens, each with the function that says when, in seconds by the clock of `Situation.now`.
OPENS: dict[Callable[[Gate, RunAtGate], list[str] | None], Callable[[Situation, RunAtGate], float | None]] = {}


def opens_at(gate: Situation, run: RunAtGate) -> float | None:
    """When time opens the rule that keeps the run from starting; None: time alone does not, or the run may start."""
    if not OPENS:
        return None
    keeps = next((rule for rule in RULES if rule(gate, run) is not None), None)
    return OPENS[keeps](gate, run) if keeps in OPENS else None


def reason_to_wait(gate: Gate, run: RunAtGate) -> list[str] | None:
    """None if the run may start."""
    return next((reason for rule in RULES if (reason := rule(gate, run)) is not None), None)


def bars_others(gate: Gate, run: RunAtGate) -> bool:
    """Whether a waiting run bars those that rank after it."""
    return all(rule(gate, run) is None for rule in NOT_BARRING)


def missing_condition(gate: Gate, run: RunAtGate, dependency: Dependency) -> str | None:
    """What the dependency lacks before the run may start: a word of ``reasons.CONDITIONS``, or None."""
    if gate.is_busy(dependency.job):
        return "busy"
    if gate.has_earlier_run(dependency.job, run):
        missing: str | None = "earlier"
    else:
        missing = None if dependency.on == "idle" else _unsatisfied(gate, run, dependency)
    return "disabled" if missing and gate.is_disabled(dependency.job) else missing


def _unsatisfied(gate: Gate, run: RunAtGate, dependency: Dependency) -> str | None:
    last, started = gate.last_end(dependency.job), gate.last_start(run.job)
    if last is None:
        return "never"
    if dependency.on == "success" and not last.succeeded:
        return "failed"
    max_age = dependency.max_age_seconds
    if max_age is not None and gate.seconds_since_end(dependency.job) > max_age:
        return "old"
    return "stale" if dependency.fresh and started is not None and last.at <= started else None


# -- a gate over plain values -----------------------------------------------------------------------


@dataclass
class Situation:
    """A :class:`Gate` over plain values. The caller reports what happens. Times are seconds of any clock."""

    jobs: Mapping[str, Job]
    #: The cap over all jobs.
    max_running: int | None = None
    paused: bool = False
    #: Disabled jobs, with the reason.
    disabled: Mapping[str, str] = field(default_factory=dict)
    #: How the latest run of a job ended; None: no run ever did. A job that is not there has just succeeded.
    ended: dict[str, Last | None] = field(default_factory=dict)
    #: When the last run of a job started, if one ever did.
    started: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    in_new_epoch: bool = False

    def __post_init__(self) -> None:
        self._room: Counter[tuple[str, str]] = Counter()
        self._running: Counter[str] = Counter()
        self._total = 0
        self._waiting: dict[str, list[Run]] = {}

    # -- what happens

    def start(self, run: Run, at: float | None = None) -> None:
        """`at`: when, if that matters."""
        if at is not None:
            self.started[run.job] = at
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

    # -- what the rules ask

    def job(self, name: str) -> Job:
        """A job of another service has no rules here."""
        return self.jobs.get(name, _UNKNOWN)

    def why_disabled(self, run: RunAtGate) -> str | None:
        return None if run.forced else self.disabled.get(run.job)

    def is_disabled(self, job: str) -> bool:
        return job in self.disabled

    def room_taken(self, job: str, key: str) -> int:
        return self._room[job, key]

    def room_taken_by_all(self) -> int:
        return self._total

    def holds_room(self, job: str) -> bool:
        return self._running[job] > 0

    def is_busy(self, job: str) -> bool:
        return self._running[job] > 0

    def has_earlier_run(self, job: str, run: RunAtGate) -> bool:
        return any(one.arrival < run.rank[1] for one in self._waiting.get(job, ()))

    def last_end(self, job: str) -> Last | None:
        return self.ended.get(job, Last(True, self.now))

    def seconds_since_end(self, job: str) -> float:
        last = self.last_end(job)
        return 0.0 if last is None else self.now - last.at

    def last_start(self, job: str) -> float | None:
        return self.started.get(job)

    def waiting_before(self, run: RunAtGate, jobs: Collection[str]) -> Iterable[Run]:
        return [one for job in jobs for one in self._waiting.get(job, ()) if one.rank < run.rank]


_UNKNOWN = Job()

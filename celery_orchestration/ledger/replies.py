"""What the verbs of the ledger reply, as records."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_orchestration.ledger.records import Grant, Place


@dataclass(frozen=True, slots=True)
class Waiting:
    """A run that waits, for Celery's remote control."""

    id: str
    job: str
    #: waiting, later.
    state: str
    eta_ms: int | None
    #: The beginning of its message; empty if that is too large.
    message: bytes


@dataclass(slots=True)
class Claimed:
    #: For each claim: ok, void, unknown.
    answers: list[str]
    #: How many outcomes the ledger had forgotten and took again, and how many runs it has that this worker does not.
    told_again: int
    returned: int
    disabled: list[Disabled] = field(default_factory=list)


@dataclass(slots=True)
class Registered:
    #: Releases of the live workers, and those that the installed policies were merged from.
    live: str
    installed: str
    epoch: str
    #: What began the epoch: '' (the ledger was new), emptied, moved (restarted, or failed over).
    why: str
    closed_ms: int


@dataclass(slots=True)
class Answer:
    """The answer of the gate to an arrival: start (with a fence), wait, drop (why), unknown (job), full (Redis), kept
    (this worker is kept free for another run)."""

    what: str
    fence: str = ""
    #: Id of the run that starts.
    run: str = ""
    detail: tuple[str, ...] = ()


@dataclass(slots=True)
class Start:
    """A run that was handed over to the calling worker: it starts in a slot that the worker offered."""

    id: str
    fence: str
    message: bytes


@dataclass(slots=True)
class Disabled:
    """A job that failures have disabled."""

    job: str
    why: str


@dataclass(slots=True)
class Ending:
    """A run that ends without having run: a worker has to report that to Celery."""

    id: str
    why: str


@dataclass(slots=True)
class Turn:
    waiting: int
    more: bool
    #: The ledger's answers to the outcomes.
    settled: list[str]
    answers: list[Answer]
    grants: list[Grant]
    starts: list[Start]
    disabled: list[Disabled]
    endings: list[Ending]
    #: Seconds until something is due, or None.
    due: float | None
    #: Run id -> its waits as the verb turn returns them, of traced runs that start and have waited.
    traces: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Sweep:
    more: bool
    grants: list[Grant]
    endings: list[Ending]
    dead_workers: list[str]
    recovered: int
    live_releases: str
    installed_releases: str
    served: list[str]
    disabled: list[Disabled]
    #: Runs whose retry got lost.
    retries: list[str]
    due: float | None
    #: Number of the last decision.
    decisions: int
    #: Messages that came to workers without their job. This worker takes them in.
    strays: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What people and failures have decided. Nodes remember it."""

    number: int
    epoch: str
    #: The verb read_decisions writes it, and only the verb restore_decisions reads it.
    document: bytes


@dataclass(slots=True)
class Lead:
    """Who leads. `term` is '' if another scheduler does."""

    term: str
    #: Redis's time, ms.
    now: int
    leader: str
    #: Number of the last change that people made to the schedule.
    changes: int
    epoch: str


@dataclass(slots=True)
class Adopted:
    """How far an entry is; or `problem`: corrupt (what is wrong), gone (people removed it)."""

    generation: str = ""
    last_ms: int = 0
    paused: bool = False
    problem: str = ""


@dataclass(slots=True)
class Dispatched:
    #: ok, term, full.
    what: str
    #: For each fire; see ``lua/verbs/schedule/dispatch.lua``.
    answers: list[tuple[str, ...]]
    grants: list[Grant]


@dataclass(slots=True)
class Changes:
    number: int
    complete: bool
    #: Entry, whether it exists, what people wrote.
    entries: list[tuple[str, bool, str]]


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A worker or a scheduler, as the ledger has it."""

    name: str
    kind: str
    release: str
    mode: str
    #: Redis's time, ms.
    since: int


@dataclass(frozen=True, slots=True)
class Nodes:
    #: Their releases, the oldest first.
    releases: str
    #: Life of a done-marker.
    done_ms: int
    nodes: list[ListedNode]


@dataclass(frozen=True, slots=True)
class RenewedPlaces:
    epoch: str
    #: How long until a new epoch opens.
    closed_ms: int
    #: For each place that was named: ok, leaving, void.
    answers: list[str]
    #: Places that the supervisor holds and did not name: an earlier process of it had them.
    found: list[Place]


@dataclass(frozen=True, slots=True)
class ClaimedPlace:
    #: claimed, enough, full, closed, unknown.
    what: str
    place: Place | None = None

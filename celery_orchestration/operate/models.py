"""What operators see, as pydantic models: the same for Python, ``--json`` and the tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

JobState = Literal["idle", "running", "waiting", "disabled"]
RunState = Literal["later", "waiting", "granted", "queued", "running", "ending", "behind", "retrying", "released"]


class Model(BaseModel):
    #: Built when it is used first: no command uses all of them.
    model_config = ConfigDict(frozen=True, defer_build=True)


class Disabled(Model):
    by: str = Field(description="'failures', or the person who did it")
    why: str
    at: datetime
    failures: str | None = Field(description="why failures had disabled it, where a person has done it since")


class Change(Model):
    """An entry of the audit: somebody changed something."""

    at: datetime
    who: str
    what: str = Field(description="in the word of the command; 'epoch', 'corrupt' and 'lost' are the ledger's own")
    about: str = Field(description="a job, an entry, the id of a run, how many of what, or nothing")
    why: str


class Cancelled(Model):
    run_id: str
    called_off: bool = Field(description="it waited, and ends as revoked")
    terminated: bool = Field(description="it was running, and its worker is told to end it")
    state: RunState = Field(description="in which it was found")


class Triggered(Model):
    run_id: str
    job: str
    forced: bool


class Released(Model):
    count: int = Field(description="runs that were published past the gate")


class Requeued(Model):
    runs: dict[str, str] = Field(description="ids of dead letters, and of the runs they have become")
    left: dict[str, str] = Field(description="ids of those that could not be requeued, and why")


class Purged(Model):
    count: int


#: How a run may end; the last two also tell of fires that made no run.
OUTCOMES = (
    *("succeeded", "failed", "crashed", "revoked", "expired", "rejected", "ignored", "requeued", "released"),
    *("skipped", "missed"),
)


class Ended(Model):
    """How a run ended; or that so many fires of an entry made none."""

    id: str
    job: str
    outcome: str = Field(description=f"one of {', '.join(OUTCOMES)}")
    retries: int
    key: str
    arrived: datetime
    started: datetime | None
    ended: datetime
    seconds: float | None = Field(description="how long it ran")
    waited_seconds: float = Field(description="from its arrival to its last start, attempts before that included")
    waited_for: str | None = Field(description="what it waited for first")
    worker: str | None
    fence: int | None
    recoveries: int
    error: str | None = Field(description="what failed; why fires made no run")
    entry: str | None = Field(default=None, description="of the schedule, if that one asked for it")
    due: datetime | None = Field(default=None, description="for when the schedule asked for it; of many, the last")
    fires: int = Field(default=1, description="how many fires in a row that is: those that made no run are counted")
    made_run: bool = Field(default=True, description="False: a fire that was skipped or missed; `id` names no run")


class DeadLetter(Model):
    """A run that failed for good, kept with its message."""

    id: str
    job: str
    at: datetime
    error: str
    traceback: str
    retries: int
    key: str
    queue: str
    arrived: datetime
    worker: str | None
    recoveries: int
    revoked: bool = Field(description="its id was revoked meanwhile: requeued, it gets a new one")


class Letter(DeadLetter):
    """A dead letter with what can be told of its message without reading its body."""

    args: str | None = Field(description="arguments, as Celery shows them")
    named_args: str | None
    headers: dict[str, str]
    content_type: str | None
    content_encoding: str | None
    body_bytes: int


class JobStatus(Model):
    """A job: what it is doing, and how its last run ended."""

    name: str
    state: JobState
    running: int = Field(description="runs that hold room: running, or on their way to a worker")
    max_running: int | None
    keyed: bool = Field(description="max_running counts per room key")
    priority: str | None = Field(default=None, description="as this app's code has it; None: it has no such job")
    pool: str | None = Field(default=None, description="as this app's code has it")
    waiting: int
    later: int = Field(description="runs that are not due yet, or wait to be tried alone")
    oldest_arrival: datetime | None = Field(description="arrival of the run that has waited longest")
    last_start: datetime | None
    last_end: datetime | None
    last_outcome: Literal["succeeded", "failed"] | None
    last_success: datetime | None
    last_seconds: float | None = Field(description="how long the last run took")
    failures: int = Field(description="in a row")
    max_consecutive_failures: int | None
    last_error: str | None
    disabled: Disabled | None
    probe: str | None = Field(description="while disabled: the run that tries whether it works again; '' if one may")
    next_probe: datetime | None
    dead_letters: int
    next_fire: datetime | None = Field(default=None, description="when the schedule asks for it next")
    overdue: bool = Field(
        default=False, description="its schedule asked for it twice or more since its last success, or would have"
    )
    would_have_waited: dict[str, int] = Field(description="observe mode: reason, and how often")


class Progress(Model):
    """How far a run has come, as its code says it."""

    done: int | float
    total: int | float | None = Field(description="None: nobody knows")
    note: str
    at: datetime


class RunStatus(Model):
    """A run that the ledger knows and that has not ended."""

    id: str
    job: str
    state: RunState
    key: str
    priority: str
    retries: int
    worker: str | None
    queue: str
    fence: int | None
    recoveries: int
    arrived: datetime
    since: datetime = Field(description="when it came into this state")
    seconds: float = Field(description="how long it has been in this state")
    expires: datetime | None
    reason: str | None = Field(description="why it waits")
    timed_out: datetime | None = Field(
        default=None, description="when its time limit passed: it has failed, its room is free when its code returns"
    )
    progress: Progress | None = None


class WorkerStatus(Model):
    name: str
    host: str
    pid: int
    state: Literal["idle", "busy", "draining", "dead"]
    execution_pool: str
    slots: int
    running: int
    done: int = Field(description="runs that ended there, without those that are tried again")
    failed: int = Field(description="of these, the ones that failed for good")
    queues: list[str]
    mode: str
    since: datetime
    last_beat: datetime


class Death(Model):
    """A worker that died."""

    name: str
    at: datetime
    runs: int = Field(description="runs that it had")


class QueueStatus(Model):
    name: str
    depth: int | None = Field(default=None, description="messages in the broker; None: nobody could be asked")
    slots: int = Field(description="slots of the live workers that serve it")
    under_way: int = Field(description="handed-over runs that have not started")
    waiting: int = Field(description="waiting runs (of those listed) that will be handed over to it")


class SchedulerStatus(Model):
    """Who fires the schedule."""

    leader: str | None = None
    since: datetime | None = Field(default=None, description="since when it leads")
    standbys: list[str] = []
    entries: int = Field(default=0, description="how many entries the schedule has")


class Paused(Model):
    by: str
    why: str
    at: datetime


class EntryStatus(Model):
    """An entry of the schedule."""

    name: str
    task: str
    is_job: bool = Field(description="its fires go through the gate")
    every: str = Field(description="when, in words")
    source: Literal["code", "people"]
    continuous: bool
    args: list[Any] | None = Field(default=None, description="of one that people added; so are the next two")
    named_args: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    paused: Paused | None = None
    last_fire: datetime | None = Field(default=None, description="when it was due last; None: it never was")
    last_outcome: Literal["fired", "sent", "skipped", "missed"] | None = Field(default=None, description="of that")
    last_run: str | None = Field(default=None, description="id of the last run of a job that it made")
    next_fire: datetime | None = Field(default=None, description="when it is due next, as far as a scheduler has said")
    fires: int = 0
    skips: int = 0
    misses: int = 0
    problem: str | None = Field(default=None, description="why it is not fired")


class Status(Model):
    """The whole of a ledger at one moment."""

    namespace: str
    at: datetime
    paused: bool
    pause: Paused | None = Field(default=None, description="who paused everything, and why")
    running: int
    max_running: int | None
    waiting: int
    later: int = Field(description="runs that are not due yet")
    dead_letters: int
    jobs: list[JobStatus]
    runs: list[RunStatus] = Field(description="runs that hold room, are to be tried again, or are just ending")
    waits: list[RunStatus] = Field(description="runs that wait, in rank order; the first ones if there are many")
    workers: list[WorkerStatus]
    died: list[Death] = Field(description="workers that died, the latest first")
    queues: list[QueueStatus]
    problems: list[str] = Field(description="what an operator should know")
    scheduler: SchedulerStatus = SchedulerStatus()

"""What operators see, as pydantic models: the same for Python, ``--json`` and the tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.pools.models import PoolStatus

JobState = Literal["idle", "running", "waiting", "disabled"]
RunState = Literal["later", "waiting", "granted", "queued", "running", "ending", "behind", "retrying", "released"]


class Disabled(Model):
    by: str = Field(description="'failures', or the person who did it")
    why: str = Field(description="the reason, or what failed")
    at: datetime = Field(description="since when")
    failures: str | None = Field(description="why failures had disabled it, where a person has done it since")


class Change(Model):
    """An entry of the audit: somebody changed something."""

    at: datetime = Field(description="when")
    who: str = Field(description="user and host")
    what: str = Field(description="in the word of the command; 'epoch', 'corrupt' and 'lost' are the ledger's own")
    about: str = Field(description="a job, an entry, the id of a run, how many of what, or nothing")
    why: str = Field(description="the reason, if one was given; of what is done to a run, its job")


class Cancelled(Model):
    run_id: str = Field(description="the run")
    called_off: bool = Field(description="it waited, and ends as revoked")
    terminated: bool = Field(description="it was running, and its worker is told to end it")
    state: RunState | Literal["fetched"] = Field(
        description="in which it was found; fetched: it waited for a slot in the worker that had fetched it"
    )


class CancelledRuns(Model):
    job: str = Field(description="whose runs")
    count: int = Field(description="runs that had not started, and end as revoked")


class Triggered(Model):
    run_id: str = Field(description="the run that was asked for")
    job: str = Field(description="its job")
    forced: bool = Field(description="it starts even if the job is disabled or everything paused")


class Released(Model):
    count: int = Field(description="runs that were published past the gate")
    given_back: int = Field(
        default=0, description="messages that workers had fetched and not acknowledged: they are back in their queues"
    )


class Requeued(Model):
    runs: dict[str, str] = Field(
        description="ids of dead letters (and, as another job, of runs that waited), and of the runs they have become"
    )
    left: dict[str, str] = Field(description="ids of those that could not be requeued, and why")


class Purged(Model):
    count: int = Field(description="dead letters that were removed")


#: As many ended runs of a job as may be kept.
MOST_HISTORY = 10_000
#: The beginning of a run's id has so many characters at least.
SHORTEST_ID = 4
#: How a run may end; the last two also tell of fires that made no run.
OUTCOMES = (
    *("succeeded", "failed", "crashed", "revoked", "expired", "rejected", "ignored", "requeued", "released"),
    *("skipped", "missed"),
)


class Ended(Model):
    """How a run ended; or that so many fires of an entry made none."""

    id: str = Field(description="of the run")
    job: str = Field(description="its job")
    outcome: str = Field(description=f"one of {', '.join(OUTCOMES)}; the last two also tell of fires that made no run")
    retries: int = Field(description="how often it was tried before")
    key: str = Field(description="room key; '' if the job has none")
    arrived: datetime = Field(description="when it was first seen")
    started: datetime | None = Field(description="when it started last; None: never")
    ended: datetime = Field(description="when it ended")
    seconds: float | None = Field(description="how long it ran")
    waited_seconds: float = Field(description="from its arrival to its last start, attempts before that included")
    waited_for: str | None = Field(description="what it waited for first")
    waited_rule: str | None = Field(default=None, description="the gate's rule of that: depends, blocked, room …")
    worker: str | None = Field(description="where it ran")
    fence: int | None = Field(description="of its last start")
    recoveries: int = Field(description="how often its process or worker died")
    error: str | None = Field(description="what failed; why fires made no run")
    entry: str | None = Field(default=None, description="of the schedule, if that one asked for it")
    due: datetime | None = Field(default=None, description="for when the schedule asked for it; of many, the last")
    fires: int = Field(default=1, description="how many fires in a row that is: those that made no run are counted")
    made_run: bool = Field(default=True, description="False: a fire that was skipped or missed; `id` names no run")


class DeadLetter(Model):
    """A run that failed for good, kept with its message."""

    id: str = Field(description="of the run")
    job: str = Field(description="its job")
    at: datetime = Field(description="when it failed for good")
    error: str = Field(description="what failed, in a line")
    traceback: str = Field(description="where; '' if nobody knows")
    retries: int = Field(description="how often it was tried before")
    key: str = Field(description="room key; '' if the job has none")
    queue: str = Field(description="where it came from")
    arrived: datetime = Field(description="when it was first seen")
    worker: str | None = Field(description="where it ran last")
    recoveries: int = Field(description="how often its process or worker died")
    revoked: bool = Field(description="its id was revoked meanwhile: requeued, it gets a new one")


class Letter(DeadLetter):
    """A dead letter with what can be told of its message without reading its body."""

    args: str | None = Field(description="arguments, as Celery shows them")
    named_args: str | None = Field(description="named arguments, as Celery shows them")
    headers: dict[str, str] = Field(description="of its message, shortened")
    content_type: str | None = Field(description="of its body")
    content_encoding: str | None = Field(description="of its body")
    body_bytes: int = Field(description="length of its body")


class JobStatus(Model):
    """A job: what it is doing, and how its last run ended."""

    name: str = Field(description="full name of the task")
    state: JobState = Field(description="the first that holds: disabled, running, waiting, idle")
    running: int = Field(description="runs that hold room: running, or on their way to a worker")
    max_running: int | None = Field(description="how many at once at most; None: any number")
    keyed: bool = Field(description="max_running counts per room key")
    priority: str | None = Field(default=None, description="as this app's code has it; None: it has no such job")
    pool: str | None = Field(default=None, description="as this app's code has it")
    waiting: int = Field(description="runs that wait for their gate")
    later: int = Field(description="runs that are not due yet, or wait to be tried alone")
    oldest_arrival: datetime | None = Field(description="arrival of the run that has waited longest")
    last_start: datetime | None = Field(description="when a run started last")
    last_end: datetime | None = Field(description="when a run ended last")
    last_outcome: Literal["succeeded", "failed"] | None = Field(description="of that one")
    last_success: datetime | None = Field(description="when a run succeeded last")
    last_seconds: float | None = Field(description="how long the last run took")
    failures: int = Field(description="in a row")
    max_consecutive_failures: int | None = Field(description="after so many it is disabled; None: never")
    last_error: str | None = Field(description="what failed last, in a line")
    disabled: Disabled | None = Field(description="by whom and why, if it is")
    probe: str | None = Field(description="while disabled: the run that tries whether it works again; '' if one may")
    next_probe: datetime | None = Field(
        description="while disabled by failures: when a run may try whether it works again"
    )
    dead_letters: int = Field(description="how many it has")
    dropped_copies: int = Field(
        default=0, description="how many copies of messages were dropped: the broker delivered a known call again"
    )
    next_fire: datetime | None = Field(default=None, description="when the schedule asks for it next")
    overdue: bool = Field(
        default=False, description="its schedule asked for it twice or more since its last success, or would have"
    )
    would_have_waited: dict[str, int] = Field(description="observe mode: reason, and how often")


class Progress(Model):
    """How far a run has come, as its code says it."""

    done: int | float = Field(description="so much")
    total: int | float | None = Field(description="None: nobody knows")
    note: str = Field(description="in words")
    at: datetime = Field(description="when that was said")


class RunStatus(Model):
    """A run that the ledger knows and that has not ended."""

    id: str = Field(description="its task id; <task id>~<call> if that id was sent again while an earlier run is known")
    job: str = Field(description="its job")
    state: RunState = Field(description="where it is in its life")
    key: str = Field(description="room key; '' if the job has none")
    priority: str = Field(description="low, normal, high or critical; 'forced' goes before all")
    retries: int = Field(description="how often it was tried before")
    worker: str | None = Field(description="where it runs")
    queue: str = Field(description="where it came from, or goes to")
    fence: int | None = Field(description="of its start")
    recoveries: int = Field(description="how often its process or worker died")
    arrived: datetime = Field(description="when it was first seen")
    since: datetime = Field(description="when it came into this state")
    seconds: float = Field(description="how long it has been in this state")
    expires: datetime | None = Field(description="when it will not start any more")
    reason: str | None = Field(description="why it waits")
    rule: str | None = Field(default=None, description="the gate's rule that it waits by: depends, blocked, room …")
    waits_for: str | None = Field(default=None, description="the job that it waits for, if it is one")
    timed_out: datetime | None = Field(
        default=None, description="when its time limit passed: it has failed, its room is free when its code returns"
    )
    progress: Progress | None = Field(default=None, description="as its code said last")


class WorkerStatus(Model):
    name: str = Field(description="node name")
    host: str = Field(description="its machine")
    pid: int = Field(description="of its main process")
    state: Literal["idle", "busy", "draining", "dead"] = Field(
        description="dead: its lease ran out, or it is silent for as long"
    )
    execution_pool: str = Field(description="prefork, threads, gevent, solo …")
    slots: int = Field(description="runs that it can have at once")
    running: int = Field(description="runs that it has")
    fetched: int | None = Field(
        default=None,
        description="messages that it has fetched from a Redis broker and not acknowledged: those that have not begun, "
        "and runs with acks_late. From another broker: runs of jobs that wait for a slot there, up to 1,000. None: it "
        "does not tell",
    )
    done: int = Field(description="runs that ended there, without those that are tried again")
    failed: int = Field(description="of these, the ones that failed for good")
    queues: list[str] = Field(description="that it serves")
    mode: str = Field(description="enforce or observe")
    since: datetime = Field(description="when it registered")
    last_beat: datetime = Field(description="when it was heard of last")


class Death(Model):
    """A worker that died."""

    name: str = Field(description="node name")
    at: datetime = Field(description="when that was noticed")
    runs: int = Field(description="runs that it had")


class QueueStatus(Model):
    name: str = Field(description="of the queue")
    depth: int | None = Field(default=None, description="messages in the broker; None: nobody could be asked")
    slots: int = Field(description="slots of the live workers that serve it")
    under_way: int = Field(description="handed-over runs that have not started")
    waiting: int = Field(description="waiting runs (of those listed) that will be handed over to it")


class ServiceLeader(Model):
    """Who fires the schedule of another service that shares the ledger."""

    service: str = Field(description="the name of its app")
    leader: str = Field(description="which one leads")
    since: datetime = Field(description="since when it leads")


class SchedulerStatus(Model):
    """Who fires the schedule."""

    leader: str | None = Field(default=None, description="which one leads; None: none does")
    since: datetime | None = Field(default=None, description="since when it leads")
    standbys: list[str] = Field(default=[], description="those that would take over")
    entries: int = Field(default=0, description="how many entries the schedule has")
    others: list[ServiceLeader] = Field(default=[], description="of other services that share the ledger")


class Paused(Model):
    by: str = Field(description="user and host")
    why: str = Field(description="the reason, if one was given")
    at: datetime = Field(description="since when")


class EntryStatus(Model):
    """An entry of the schedule."""

    name: str = Field(description="of the entry")
    service: str | None = Field(
        default=None, description="another service that shares the ledger, whose entry it is; None: this app's"
    )
    task: str = Field(description="what it fires")
    is_job: bool = Field(description="its fires go through the gate")
    every: str = Field(description="when, in words")
    source: Literal["code", "people"] = Field(description="where it is written")
    continuous: bool = Field(description="the next run comes when the last has ended")
    args: list[Any] | None = Field(default=None, description="of one that people added; so are the next two")
    named_args: dict[str, Any] | None = Field(default=None, description="named arguments")
    options: dict[str, Any] | None = Field(default=None, description="of apply_async")
    paused: Paused | None = Field(default=None, description="by whom and why, if it is")
    last_fire: datetime | None = Field(default=None, description="when it was due last; None: it never was")
    last_outcome: Literal["fired", "sent", "skipped", "missed"] | None = Field(default=None, description="of that")
    last_run: str | None = Field(default=None, description="id of the last run of a job that it made")
    next_fire: datetime | None = Field(default=None, description="when it is due next, as far as a scheduler has said")
    fires: int = Field(default=0, description="how many there were")
    skips: int = Field(default=0, description="fires that made no run: the one before had not ended")
    misses: int = Field(default=0, description="fires that made no run: nobody fired them in time")
    problem: str | None = Field(default=None, description="why it is not fired")


class Status(Model):
    """The whole of a ledger at one moment."""

    namespace: str = Field(description="of the ledger")
    at: datetime = Field(description="Redis's time")
    paused: bool = Field(description="nothing starts")
    pause: Paused | None = Field(default=None, description="who paused everything, and why")
    running: int = Field(description="runs that hold room")
    max_running: int | None = Field(description="how many at once at most, over all jobs; None: any number")
    waiting: int = Field(description="runs that wait for their gate")
    later: int = Field(description="runs that are not due yet")
    dead_letters: int = Field(description="how many there are")
    jobs: list[JobStatus] = Field(description="by name")
    runs: list[RunStatus] = Field(description="runs that hold room, are to be tried again, or are just ending")
    waits: list[RunStatus] = Field(description="runs that wait, in rank order; the first ones if there are many")
    workers: list[WorkerStatus] = Field(description="by name")
    died: list[Death] = Field(description="workers that died, the latest first")
    queues: list[QueueStatus] = Field(description="by name")
    problems: list[str] = Field(description="what an operator should know")
    scheduler: SchedulerStatus = Field(default=SchedulerStatus(), description="who fires the schedule")
    pools: list[PoolStatus] = Field(default=[], description="of orchestration_pools, by name")

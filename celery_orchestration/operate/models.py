"""The models that operators see: the same in Python, with ``--json`` and in tables."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from celery_orchestration.ledger.records import Figures
from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.pools.models import PoolStatus

JobState = Literal["idle", "running", "waiting", "disabled"]
RunState = Literal["later", "waiting", "granted", "queued", "running", "ending", "early", "retrying", "released"]


class Disabled(Model):
    by: str = Field(description="'failures', or the person who disabled it")
    why: str = Field(description="the reason, or the error")
    at: datetime = Field(description="since when")
    failures: str | None = Field(description="the error, if failures had disabled it before a person did")


class Change(Model):
    """An entry of the audit: somebody changed something."""

    at: datetime = Field(description="when")
    who: str = Field(description="user and host")
    what: str = Field(description="the command; 'epoch', 'corrupt' and 'lost' are the ledger's own changes")
    about: str = Field(description="a job, an entry, the id of a run, a number of runs, or nothing")
    why: str = Field(description="the reason, if one was given; for a change of a run: its job")


class Cancelled(Model):
    run_id: str = Field(description="the run")
    cancelled: bool = Field(description="it had not started, and ends as revoked")
    terminated: bool = Field(description="it was running, and its worker was asked to end it")
    state: RunState | Literal["fetched"] = Field(
        description="its state before; fetched: it waited for a slot in the worker that had fetched it"
    )


class CancelledRuns(Model):
    job: str = Field(description="whose runs")
    count: int = Field(description="runs that had not started, and end as revoked")


class Triggered(Model):
    run_id: str = Field(description="the run that was asked for")
    job: str = Field(description="its job")
    forced: bool = Field(description="it starts even if the job is disabled or everything is paused")


class Released(Model):
    count: int = Field(description="runs that were published without asking the gate")
    given_back: int = Field(
        default=0,
        description="messages that workers had fetched and not acknowledged, and that went back to their queues",
    )


class Requeued(Model):
    runs: dict[str, str] = Field(
        description="ids of dead letters (with --as: also of waiting runs), each with the id of its new run"
    )
    left: dict[str, str] = Field(description="ids of those that could not be requeued, and why")


class Purged(Model):
    count: int = Field(description="dead letters that were removed")


#: The most ended runs of a job that the ledger may keep.
MOST_HISTORY = 10_000
#: The fewest characters of an id by which a run is found.
SHORTEST_ID = 4
#: The outcomes of runs; the last two are also those of fires that made no run.
OUTCOMES = (
    *("succeeded", "failed", "crashed", "revoked", "expired", "rejected", "ignored", "requeued", "released"),
    *("skipped", "missed"),
)


class Ended(Model, Figures):
    """An ended run; or several fires of an entry that made no run."""

    id: str = Field(description="of the run")
    job: str = Field(description="its job")
    outcome: str = Field(
        description=f"one of {', '.join(OUTCOMES)}; the last two also stand for fires that made no run"
    )
    retries: int = Field(description="how often it was tried before")
    key: str = Field(description="room key; '' if the job has none")
    arrived: datetime = Field(description="when it was first seen")
    started: datetime | None = Field(description="when it started last; None: never")
    ended: datetime = Field(description="when it ended")
    seconds: float | None = Field(description="how long it ran")
    waited_seconds: float = Field(description="from its arrival to its last start, earlier attempts included")
    waited_for: str | None = Field(description="the first reason why it waited")
    waited_rule: str | None = Field(default=None, description="the rule of that reason: depends, blocked, room …")
    worker: str | None = Field(description="where it ran")
    fence: int | None = Field(description="of its last start")
    error: str | None = Field(description="the error; or why fires made no run")
    entry: str | None = Field(default=None, description="its entry of the schedule, if it has one")
    due: datetime | None = Field(default=None, description="its due time; of several fires: the last")
    fires: int = Field(default=1, description="the number of fires in a row, if they made no run; else 1")
    made_run: bool = Field(default=True, description="False: a fire that was skipped or missed; `id` names no run")


class DeadLetter(Model, Figures):
    """A run that failed for good, kept with its message."""

    id: str = Field(description="of the run")
    job: str = Field(description="its job")
    at: datetime = Field(description="when it failed for good")
    error: str = Field(description="the error in one line")
    traceback: str = Field(description="the traceback; '' if unknown")
    retries: int = Field(description="how often it was tried before")
    key: str = Field(description="room key; '' if the job has none")
    queue: str = Field(description="its queue")
    arrived: datetime = Field(description="when it was first seen")
    worker: str | None = Field(description="where it ran last")
    revoked: bool = Field(description="its id was revoked since then: if requeued, it gets a new id")


class Letter(DeadLetter):
    """A dead letter with the facts of its message that are known without decoding its body."""

    args: str | None = Field(description="arguments, as Celery shows them")
    named_args: str | None = Field(description="named arguments, as Celery shows them")
    headers: dict[str, str] = Field(description="of its message, shortened")
    content_type: str | None = Field(description="of its body")
    content_encoding: str | None = Field(description="of its body")
    body_bytes: int = Field(description="length of its body")


class JobStatus(Model):
    """A job: its state, and how its last run ended."""

    name: str = Field(description="full name of the task")
    state: JobState = Field(description="the first that applies: disabled, running, waiting, idle")
    running: int = Field(description="runs that hold room: running, or on their way to a worker")
    max_running: int | None = Field(default=None, description="the most runs at once; None: any number")
    keyed: bool = Field(description="max_running counts per room key")
    priority: str | None = Field(default=None, description="in this app's code; None: it has no such job")
    pool: str | None = Field(default=None, description="in this app's code")
    waiting: int = Field(description="runs that wait at the gate")
    later: int = Field(description="runs that are not due yet, or wait to be retried alone")
    oldest_arrival: datetime | None = Field(description="arrival of the run that waits longest")
    last_start: datetime | None = Field(description="when a run started last")
    last_end: datetime | None = Field(description="when a run ended last")
    last_outcome: Literal["succeeded", "failed"] | None = Field(description="of that one")
    last_success: datetime | None = Field(description="when a run succeeded last")
    last_seconds: float | None = Field(description="how long the last run took")
    failures: int = Field(description="in a row")
    max_consecutive_failures: int | None = Field(
        default=None, description="the number of failures after which it is disabled; None: never"
    )
    last_error: str | None = Field(description="the last error in one line")
    disabled: Disabled | None = Field(description="by whom and why; None: it is not")
    probe: str | None = Field(
        default=None, description="while disabled: the run that tests whether it works again; '' if the next run may"
    )
    next_probe: datetime | None = Field(
        description="while disabled by failures: when a run may test whether it works again"
    )
    dead_letters: int = Field(description="how many it has")
    dropped_copies: int = Field(
        default=0, description="dropped copies of messages: the broker had redelivered a known call"
    )
    next_fire: datetime | None = Field(default=None, description="its next due time")
    overdue: bool = Field(default=False, description="it was due twice or more since its last success")
    would_have_waited: dict[str, int] = Field(
        description="in observe mode: how often a run would have waited, by reason"
    )


class Progress(Model):
    """The progress of a run, as its code reports it."""

    done: int | float = Field(description="how far")
    total: int | float | None = Field(description="None: unknown")
    note: str = Field(description="in words")
    at: datetime = Field(description="when it was reported")


class RunStatus(Model, Figures):
    """A run that the ledger knows and that has not ended."""

    id: str = Field(description="its task id; <task id>~<call> if that id was sent again while an earlier run is known")
    job: str = Field(description="its job")
    state: RunState = Field(description="its present state")
    key: str = Field(description="room key; '' if the job has none")
    priority: str = Field(description="low, normal, high or critical; 'forced' goes before all others")
    retries: int = Field(description="how often it was tried before")
    worker: str | None = Field(description="where it runs")
    queue: str = Field(description="its queue")
    fence: int | None = Field(description="of its start")
    arrived: datetime = Field(description="when it was first seen")
    since: datetime = Field(description="when it entered this state")
    seconds: float = Field(description="how long it has been in this state")
    expires: datetime | None = Field(description="after this time it does not start")
    reason: str | None = Field(description="why it waits")
    rule: str | None = Field(
        default=None, description="the rule of the gate that makes it wait: depends, blocked, room …"
    )
    waits_for: str | None = Field(default=None, description="the job that it waits for, if it is one")
    timed_out: datetime | None = Field(
        default=None, description="when its time limit passed: it has failed, and holds its room until its code returns"
    )
    progress: Progress | None = Field(default=None, description="as its code reported last")


class WorkerStatus(Model):
    name: str = Field(description="node name")
    host: str = Field(description="its machine")
    pid: int = Field(description="of its main process")
    state: Literal["idle", "busy", "draining", "dead"] = Field(
        description="dead: its lease ran out, or it has been silent for as long"
    )
    execution_pool: str = Field(description="prefork, threads, gevent, solo …")
    slots: int = Field(description="runs that it can execute at once")
    running: int = Field(description="runs that it executes")
    fetched: int | None = Field(
        default=None,
        description="messages that it has fetched from a Redis broker and not acknowledged: those that have not begun, "
        "and runs with acks_late. From another broker: runs of jobs that wait for a slot there, up to 1,000. "
        "None: unknown",
    )
    done: int = Field(description="runs that ended there, without those that are retried")
    failed: int = Field(description="those of them that failed for good")
    queues: list[str] = Field(description="queues that it serves")
    mode: str = Field(description="enforce or observe")
    since: datetime = Field(description="when it registered")
    last_beat: datetime = Field(description="its last heartbeat")


class Death(Model):
    """A worker that died."""

    name: str = Field(description="node name")
    at: datetime = Field(description="when the death was noticed")
    runs: int = Field(description="runs that it had")


class QueueStatus(Model):
    name: str = Field(description="of the queue")
    depth: int | None = Field(default=None, description="messages in the broker; None: the broker did not answer")
    slots: int = Field(description="slots of the live workers that serve it")
    under_way: int = Field(description="handed-over runs that have not started")
    waiting: int = Field(description="listed waiting runs that will be handed over to it")


class ServiceLeader(Model):
    """The scheduler of another service that shares the ledger."""

    service: str = Field(description="the name of its app")
    leader: str = Field(description="the leading scheduler")
    since: datetime = Field(description="since when it leads")


class SchedulerStatus(Model):
    """The scheduler that fires the schedule."""

    leader: str | None = Field(default=None, description="the leading scheduler; None: none leads")
    since: datetime | None = Field(default=None, description="since when it leads")
    standbys: list[str] = Field(default=[], description="schedulers that would take over")
    entries: int = Field(default=0, description="how many entries the schedule has")
    others: list[ServiceLeader] = Field(default=[], description="leaders of other services that share the ledger")


class Paused(Model):
    by: str = Field(description="user and host")
    why: str = Field(description="the reason, if one was given")
    at: datetime = Field(description="since when")


class EntryStatus(Model):
    """An entry of the schedule."""

    name: str = Field(description="of the entry")
    service: str | None = Field(default=None, description="the other service whose entry it is; None: this app's")
    task: str = Field(description="the task that it fires")
    is_job: bool = Field(description="its fires go through the gate")
    every: str = Field(description="when, in words")
    source: Literal["code", "people"] = Field(description="code, or added by people")
    continuous: bool = Field(description="the next run comes when the last one has ended")
    args: list[Any] | None = Field(default=None, description="only of entries that people added, as the next two")
    named_args: dict[str, Any] | None = Field(default=None, description="named arguments")
    options: dict[str, Any] | None = Field(default=None, description="of apply_async")
    paused: Paused | None = Field(default=None, description="by whom and why; None: it is not")
    last_fire: datetime | None = Field(default=None, description="its last due time; None: it was never due")
    last_outcome: Literal["fired", "sent", "skipped", "missed"] | None = Field(default=None, description="of that")
    last_run: str | None = Field(default=None, description="id of the last run of a job that it has made")
    next_fire: datetime | None = Field(default=None, description="its next due time, if a scheduler has computed it")
    fires: int = Field(default=0, description="number of fires")
    skips: int = Field(default=0, description="fires that made no run: the one before had not ended")
    misses: int = Field(default=0, description="fires that made no run: no scheduler fired them in time")
    problem: str | None = Field(default=None, description="why it is not fired")


class Status(Model):
    """The whole ledger at one moment."""

    namespace: str = Field(description="of the ledger")
    at: datetime = Field(description="Redis's time")
    paused: bool = Field(description="nothing starts")
    pause: Paused | None = Field(default=None, description="who paused everything, and why")
    running: int = Field(description="runs that hold room")
    max_running: int | None = Field(description="the most runs of all jobs at once; None: any number")
    waiting: int = Field(description="runs that wait at the gate")
    later: int = Field(description="runs that are not due yet")
    dead_letters: int = Field(description="how many there are")
    jobs: list[JobStatus] = Field(description="by name")
    runs: list[RunStatus] = Field(description="runs that hold room, wait for a retry, or are just ending")
    waits: list[RunStatus] = Field(description="waiting runs in rank order; only the first ones if there are many")
    workers: list[WorkerStatus] = Field(description="by name")
    died: list[Death] = Field(description="dead workers, the latest first")
    queues: list[QueueStatus] = Field(description="by name")
    problems: list[str] = Field(description="problems in sentences")
    scheduler: SchedulerStatus = Field(default=SchedulerStatus(), description="the scheduler")
    pools: list[PoolStatus] = Field(default=[], description="the pools of orchestration_pools, by name")

"""What operators see, as pydantic models: the same for Python, ``--json`` and the tables."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

JobState = Literal["idle", "running", "waiting", "disabled"]
RunState = Literal["waiting", "granted", "queued", "running", "ending", "behind", "retrying"]


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class Disabled(Model):
    by: str = Field(description="'failures', or the person who did it")
    why: str
    at: datetime


class Change(Model):
    """An entry of the audit: somebody changed something."""

    at: datetime
    who: str
    what: Literal["enable", "disable", "pause", "resume", "cancel"]
    about: str = Field(description="a job, or the id of a run")
    why: str


class JobStatus(Model):
    """A job: what it is doing, and how its last run ended."""

    name: str
    state: JobState
    running: int = Field(description="runs that hold room: running, or on their way to a worker")
    max_running: int | None
    keyed: bool = Field(description="max_running counts per room key")
    waiting: int
    oldest_arrival: datetime | None = Field(description="arrival of the waiting run that goes first")
    last_start: datetime | None
    last_end: datetime | None
    last_outcome: Literal["succeeded", "failed"] | None
    last_success: datetime | None
    failures: int = Field(description="in a row")
    max_consecutive_failures: int | None
    last_error: str | None
    disabled: Disabled | None
    would_have_waited: dict[str, int] = Field(description="observe mode: reason, and how often")


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


class WorkerStatus(Model):
    name: str
    host: str
    pid: int
    state: Literal["idle", "busy", "draining", "dead"]
    execution_pool: str
    slots: int
    running: int
    queues: list[str]
    mode: str
    since: datetime
    last_beat: datetime


class QueueStatus(Model):
    name: str
    slots: int = Field(description="slots of the live workers that serve it")
    under_way: int = Field(description="handed-over runs that have not started")
    waiting: int = Field(description="waiting runs (of those listed) that will be handed over to it")


class Status(Model):
    """The whole of a ledger at one moment."""

    namespace: str
    at: datetime
    paused: bool
    running: int
    max_running: int | None
    waiting: int
    jobs: list[JobStatus]
    runs: list[RunStatus] = Field(description="runs that hold room")
    waits: list[RunStatus] = Field(description="runs that wait, in rank order; the first ones if there are many")
    workers: list[WorkerStatus]
    queues: list[QueueStatus]
    problems: list[str] = Field(description="what an operator should know")

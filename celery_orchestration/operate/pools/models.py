"""Pools as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from celery_orchestration.operate.base_model import Model

PoolWorkerState = Literal["starting", "idle", "busy", "draining", "dead", "dying"]


class PoolWorker(Model):
    """A worker of a pool: started by a supervisor on a place that it holds, or by hand."""

    name: str = Field(description="node name; only its beginning until the worker has registered")
    place: int | None = Field(description="number of its place; None: no supervisor started it")
    supervisor: str | None = Field(description="the supervisor that holds its place")
    host: str = Field(description="its machine")
    pid: int | None = Field(description="of its main process; None: it is not running now")
    state: PoolWorkerState = Field(
        description="starting: it has not registered yet; dead: its lease ran out, or it is about to be started again; "
        "dying: it keeps dying at its start, and is tried once a minute"
    )
    slots: int = Field(description="runs that it can have at once")
    running: int = Field(description="runs that it has")
    runs: list[str] = Field(default=[], description="their ids, as far as they are listed")
    done: int = Field(description="runs that ended there, without those that are retried")
    failed: int = Field(description="of these, the ones that failed for good")
    memory_mb: float | None = Field(description="of the worker and its processes; None: unknown")
    uptime_seconds: float | None = Field(description="since it started")
    restarts: int | None = Field(description="how often it was started again on this place")


class ScalingChange(Model):
    """A change of a pool's number of workers."""

    at: datetime = Field(description="when that was decided")
    by: str = Field(description="which supervisor decided")
    before: int | None = Field(description="workers that were wanted before; None: undecided")
    wanted: int = Field(description="workers that were wanted from then on")
    reason: str = Field(description="in words, with the figures")
    ready: int = Field(description="runs that were ready")
    oldest_wait_seconds: float = Field(description="how long the oldest of them had waited, estimated")
    busy_slots: int = Field(description="slots at work")


class PoolStatus(Model):
    """A pool: its work and its workers."""

    name: str = Field(description="of the pool")
    wanted: int = Field(description="workers that it should have; by the present figures if no supervisor has decided")
    live: int = Field(description="workers that take runs")
    min: int = Field(description="workers that it always has, over all machines")
    max: int = Field(description="workers that it has at most, over all machines")
    ready: int | None = Field(
        description="runs that may start as soon as a slot is free; None: the broker does not answer"
    )
    oldest_wait_seconds: float = Field(description="how long the oldest of them has waited, estimated")
    drain_seconds: float | None = Field(description="until all of these have run with the present slots; None: unknown")
    busy_slots: int = Field(description="slots at work")
    slots: int = Field(description="of the workers that take runs")
    done: int = Field(description="runs that ended on its live workers")
    failed: int = Field(description="of these, the ones that failed for good")
    dead_letters: int = Field(description="of its jobs")
    reason: str = Field(description="the reason for the wanted number, in words")
    supervisors: list[str] = Field(description="supervisors that run its workers")
    workers: list[PoolWorker] = Field(description="by place")
    changes: list[ScalingChange] = Field(description="the latest first")
    problems: list[str] = Field(default=[], description="what an operator should know")


class PoolsStatus(Model):
    """All pools of the app at one moment."""

    at: datetime = Field(description="Redis's time")
    pools: list[PoolStatus] = Field(description="by name")
    problems: list[str] = Field(description="what an operator should know")


class DesiredPool(Model):
    wanted: int = Field(description="workers that it should have")
    oldest_wait_seconds: float = Field(description="how long the oldest ready run has waited, estimated")
    ready: int = Field(description="runs that may start as soon as a slot is free")
    live: int = Field(description="workers that take runs")


class Desired(Model):
    """For autoscalers such as KEDA."""

    at: datetime = Field(description="Redis's time")
    pools: dict[str, DesiredPool] = Field(description="by name")

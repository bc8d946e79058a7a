"""Reads the ledger's records of workers into models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from celery_orchestration.operate.clock import optional_time
from celery_orchestration.operate.models import (
    Death,
    WorkerStatus,
)


def is_dead(worker: Mapping[str, Any], now: int) -> bool:
    """Whether its lease ran out. The ledger clock stops while nobody sweeps, so silence counts, too."""
    return bool(worker["left"] <= 0 or now - worker["heartbeat"] > worker["lease"])


def worker_state(worker: Mapping[str, Any], now: int) -> Literal["idle", "busy", "draining", "dead"]:
    if is_dead(worker, now):
        return "dead"
    return "draining" if worker["draining"] else "busy" if worker["running"] else "idle"


def worker_status(worker: Mapping[str, Any], now: int) -> WorkerStatus:
    """Fields of the same name are taken as they are."""
    return WorkerStatus.model_validate(
        {
            **worker,
            "state": worker_state(worker, now),
            "execution_pool": worker["kind"],
            "queues": worker.get("queues") or [],
            "since": optional_time(worker["since"]),
            "last_beat": optional_time(worker["heartbeat"]),
        }
    )


def read_death(found: Mapping[str, Any]) -> Death:
    return Death(name=found["name"], at=optional_time(found["at"]), runs=found["runs"])

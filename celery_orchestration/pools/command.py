"""The command of a pool's worker: a stock ``celery worker``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from celery import Celery

from celery_orchestration.job.pool import Pool
from celery_orchestration.ledger import Place
from celery_orchestration.pools.table import arguments_of
from celery_orchestration.worker.supervised import PLACE, SUPERVISOR


def node_name(place: Place) -> str:
    """The part of a worker's name before the host's."""
    return f"{place.pool}-{place.number}"


def worker_command(app: Celery, app_name: str, place: Place, pool: Pool, options: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "celery", "-q", "-A", app_name, "worker"),
        *("-n", f"{node_name(place)}@%h", "-P", pool.kind, "-c", str(pool.concurrency)),
        *arguments_of(app, place.pool),
        *options,
        *pool.worker_args,
    ]


def worker_environment(place: Place, drain_seconds: float) -> dict[str, str]:
    return {
        **os.environ,
        SUPERVISOR: str(os.getpid()),
        PLACE: f"{place.pool}:{place.number}:{place.fence}",
        "CELERY_ORCHESTRATION_DRAIN_SECONDS": f"{drain_seconds:g}",
        "PYTHONUNBUFFERED": "1",
    }

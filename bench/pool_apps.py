"""The tasks of part (h). BENCH_POOLS is the table of pools as JSON; without it, tasks are plain Celery tasks.

``short`` sleeps for 5 ms, ``heavy`` keeps the processor busy for 20 ms, ``quick`` does nothing. All record when they
ran.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, Task

from bench.apps import note

TABLE = json.loads(os.environ.get("BENCH_POOLS", "{}"))
SHORT_SECONDS, HEAVY_SECONDS = 0.005, 0.020

app = Celery("bench-pools", broker=os.environ.get("BENCH_BROKER", "memory://"))
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True

base: type[Task] = Task
if TABLE:
    from celery_orchestration import OrchestratedTask as base  # type: ignore[no-redef]

    app.conf.orchestration_pools = TABLE


def job(name: str, pool: str) -> Any:
    """A job of a pool, if the table has that pool; else a plain task."""
    options = {"pool": pool, "on_crash": "requeue"} if pool in TABLE else {}
    return app.task(name=name, base=base, **options)


@job("bench.short", "short")
def short(index: int) -> None:
    time.sleep(SHORT_SECONDS)
    note("short", index)


@job("bench.heavy", "heavy")
def heavy(index: int) -> None:
    end = time.thread_time() + HEAVY_SECONDS
    while time.thread_time() < end:
        pass


@job("bench.quick", "quick")
def quick(batch: str, sent: int) -> None:
    note(batch, sent, time.monotonic_ns())

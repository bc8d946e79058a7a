"""The jobs of (c) and (g): 1,000 jobs, each of which blocks its two neighbours in a ring. They have an app of their
own, which (g) passes to Celery's commands."""

from __future__ import annotations

import os

from celery import Celery

from celery_orchestration import OrchestratedTask

JOBS = 1000


def ring(number: int) -> str:
    return f"bench.ring{number % JOBS}"


def nothing() -> None:
    pass


app = Celery("bench", broker=os.environ.get("BENCH_BROKER", "memory://"), set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
for number in range(JOBS):
    options = {"max_running": 1, "blocks": [ring(number + 1)]}
    app.task(name=ring(number), base=OrchestratedTask, shared=False, **options)(nothing)

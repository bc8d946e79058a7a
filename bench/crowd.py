"""The app of (f): as many jobs as in (c), none of which ever runs."""

from __future__ import annotations

import os

from celery import Celery

from celery_orchestration import OrchestratedTask

JOBS = 1000

app = Celery("bench", broker=os.environ.get("BENCH_BROKER", "memory://"), set_as_current=False)
app.conf.task_ignore_result = True


def ring(number: int) -> str:
    return f"bench.ring{number % JOBS}"


def nothing() -> None:
    pass


for number in range(JOBS):
    app.task(name=ring(number), base=OrchestratedTask, max_running=1, blocks=[ring(number + 1)])(nothing)

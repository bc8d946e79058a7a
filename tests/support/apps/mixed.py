"""Plain tasks, and jobs as well if TEST_WITH_JOBS is set: jobs must not change how plain tasks behave."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from support.history import recorded
from support.wait import until as wait_until

app = Celery(
    "mixed",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.result_extended = True
app.conf.task_routes = {"*.routed": {"queue": "own"}}


@app.task(bind=True)
def note(self: Task, what: Any, seconds: float = 0) -> Any:
    with recorded(self, note=what):
        time.sleep(seconds)
    return what


@app.task(bind=True)
def held(self: Task, until: str) -> str:
    with recorded(self):
        wait_until(Path(until).exists, 60, f"{until} is there", poll=0.01)
    return "done"


@app.task
def fail(what: str) -> None:
    raise ValueError(what)


@app.task(bind=True, max_retries=2)
def retried(self: Task) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task
def routed(x: int) -> int:
    return x


@app.task(bind=True, rate_limit="4/s")
def limited(self: Task, what: Any) -> Any:
    with recorded(self, note=what):
        return what


@app.task(time_limit=1)
def overlong() -> None:
    time.sleep(30)


@app.task(soft_time_limit=1)
def overlong_softly() -> None:
    time.sleep(30)


@app.task(acks_late=True)
def late(x: int) -> int:
    return x


if os.environ.get("TEST_WITH_JOBS"):
    from celery_orchestration import OrchestratedTask

    app.conf.orchestration_lease_seconds = 3.0
    app.conf.orchestration_sweep_seconds = 1.0

    @app.task(base=OrchestratedTask, bind=True, max_running=1)
    def exclusive(self: Task, seconds: float = 0) -> None:
        with recorded(self):
            time.sleep(seconds)

    @app.task(base=OrchestratedTask, bind=True, priority="high", blocks=[exclusive])
    def urgent(self: Task) -> None:
        with recorded(self):
            pass

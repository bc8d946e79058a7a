"""Tasks for a schedule that people change. Configured by the environment, like ``jobs``."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded

app = Celery(
    "diary",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_lease_seconds = 3
app.conf.orchestration_sweep_seconds = 0.5
app.conf.orchestration_term_seconds = 2
app.conf.beat_schedule = {"steady": {"task": f"{__name__}.mail", "schedule": 0.5, "args": ("steady",)}}


@app.task(bind=True)
def mail(self: Task, note: Any = None) -> None:
    """No job."""
    with recorded(self, note=note):
        pass


@app.task(base=OrchestratedTask, bind=True, overlap="allow")
def fetch(self: Task, note: Any = None) -> None:
    with recorded(self, note=note):
        pass


@app.task(base=OrchestratedTask)
def slow() -> None:
    """Its fires overlap if no worker takes its runs."""


if "TEST_WITHOUT_REPORT" not in os.environ:

    @app.task(base=OrchestratedTask, bind=True, overlap="allow")
    def report(self: Task, note: Any = None) -> None:
        """Another release lacks this job."""
        with recorded(self, note=note):
            pass

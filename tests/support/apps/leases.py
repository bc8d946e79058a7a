"""Jobs that must not outlive their worker's lease. A run of ``held`` ends when the test releases it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded

app = Celery(
    "leases",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
if "TEST_LEASE" in os.environ:  # else the default
    app.conf.orchestration_lease_seconds = float(os.environ["TEST_LEASE"])


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, max_running=1, **options)


def hold(self: Task, name: str) -> int | None:
    with recorded(self, note=name):
        while not (Path(os.environ["TEST_SCRATCH"]) / name).exists():
            time.sleep(0.01)
    return getattr(self, "fence", None)


@job(on_lease_lost="stop", max_recoveries=0)
def held(self: Task, name: str) -> Any:
    return hold(self, name)


@job(on_lease_lost="stop", on_crash="fail")
def held_once(self: Task, name: str) -> Any:
    return hold(self, name)


@job(on_lease_lost="stop", max_recoveries=0)
def holds_interpreter(self: Task, name: str) -> Any:
    """On the first attempt, after it is released, no other thread of its process runs any more."""
    first, told = (Path(os.environ["TEST_SCRATCH"]) / f"{name}.{what}" for what in ("first", "hold"))
    if first.exists():
        return hold(self, name)
    first.touch()
    with recorded(self, note=name):
        while not told.exists():
            time.sleep(0.01)
        sys.setswitchinterval(1000)
        while True:
            pass


@job()
def goes_on(self: Task, name: str) -> Any:
    return hold(self, name)

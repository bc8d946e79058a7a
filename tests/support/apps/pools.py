"""Jobs of several pools. The table of pools is read from the JSON file that TEST_POOLS names."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded

app = Celery(
    "pools",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = float(os.environ.get("TEST_LEASE", "3"))
app.conf.orchestration_sweep_seconds = float(os.environ.get("TEST_SWEEP", "0.5"))
if "TEST_DRAIN" in os.environ:
    app.conf.orchestration_drain_seconds = float(os.environ["TEST_DRAIN"])
app.conf.worker_autoscaler = os.environ.get("TEST_AUTOSCALER", "celery.worker.autoscale:Autoscaler")
if "TEST_POOLS" in os.environ:
    app.conf.orchestration_pools = json.loads(Path(os.environ["TEST_POOLS"]).read_text())
if "TEST_BROKEN" in os.environ and Path(os.environ["TEST_BROKEN"]).exists() and "worker" in os.sys.argv:  # type: ignore[attr-defined]
    raise ImportError("no module named 'pillow', says the test")


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, **options)


def scratch(name: str) -> Path:
    return Path(os.environ["TEST_SCRATCH"]) / name


@job(pool="images")
def resize(self: Task, seconds: float = 0.0) -> None:
    with recorded(self):
        time.sleep(seconds)


@job(pool="images")
def held(self: Task, name: str) -> None:
    with recorded(self, note=name):
        while not scratch(name).exists():
            time.sleep(0.01)


@job(pool="images", max_running=1)
def lone(self: Task, seconds: float = 0.0) -> None:
    with recorded(self):
        time.sleep(seconds)


@job(pool="email", priority="high")
def mail(self: Task) -> None:
    with recorded(self):
        pass


@app.task(bind=True)
def plain_held(self: Task, name: str) -> None:
    with recorded(self, note=name):
        while not scratch(name).exists():
            time.sleep(0.01)


@app.task(bind=True)
def plain(self: Task) -> None:
    with recorded(self):
        pass

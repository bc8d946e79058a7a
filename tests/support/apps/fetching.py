"""Plain tasks and jobs for the tests of fetching. All settings but those of the lease have their defaults.

A run of ``held`` or ``held_late`` ends when a file of its name exists: see the stage's ``release``.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Reject

from celery_orchestration import OrchestratedTask
from support.history import recorded

app = Celery(
    "fetching",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
app.conf.orchestration_lease_seconds = float(os.environ.get("TEST_LEASE", "3"))
app.conf.orchestration_sweep_seconds = float(os.environ.get("TEST_SWEEP", "0.5"))
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))


def work(self: Task, seconds: float) -> None:
    with recorded(self):
        time.sleep(seconds)


def hold(self: Task, name: str) -> None:
    with recorded(self, note=name):
        while not (Path(os.environ["TEST_SCRATCH"]) / name).exists():
            time.sleep(0.01)


@app.task(bind=True)
def plain(self: Task, seconds: float = 0) -> None:
    work(self, seconds)


@app.task(bind=True, acks_late=True)
def late(self: Task, seconds: float = 0) -> None:
    work(self, seconds)


@app.task(bind=True)
def held(self: Task, name: str) -> None:
    hold(self, name)


@app.task(bind=True, acks_late=True)
def held_late(self: Task, name: str) -> None:
    hold(self, name)


@app.task(bind=True, acks_late=True)
def rejecting(self: Task) -> None:
    """Puts its message back into its queue, once."""
    with recorded(self):
        if not self.request.delivery_info.get("redelivered"):
            raise Reject("again", requeue=True)


@app.task(bind=True, rate_limit="20/m")
def limited(self: Task) -> None:
    work(self, 0)


@app.task(base=OrchestratedTask, bind=True)
def job(self: Task, seconds: float = 0) -> None:
    work(self, seconds)


@app.task(base=OrchestratedTask, bind=True, max_running=1)
def exclusive(self: Task, seconds: float = 0) -> None:
    work(self, seconds)


@app.task(base=OrchestratedTask, bind=True, acks_late=True)
def held_late_job(self: Task, name: str) -> None:
    hold(self, name)


@app.task(base=OrchestratedTask, bind=True)
def held_job(self: Task, name: str) -> None:
    hold(self, name)


@app.task(base=OrchestratedTask, bind=True, priority="low")
def low(self: Task, seconds: float = 0) -> None:
    work(self, seconds)


@app.task(base=OrchestratedTask, bind=True, priority="critical")
def critical(self: Task, seconds: float = 0) -> None:
    work(self, seconds)

"""Jobs with hostile names, room keys, arguments and errors."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded
from support.hostile import TEXTS

app = Celery(
    "hostile",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = 3
app.conf.orchestration_sweep_seconds = 0.5
app.conf.accept_content = os.environ.get("TEST_ACCEPT", "json").split(",")


def hold(self: Task, name: str | None) -> None:
    """Runs until the test makes a file of this name."""
    with recorded(self):
        while name is not None and not (Path(os.environ["TEST_SCRATCH"]) / name).exists():
            time.sleep(0.01)


def _job(name: str) -> Any:
    def held(self: Task, key: str, until_there: str | None = None) -> None:
        hold(self, until_there)

    return app.task(base=OrchestratedTask, bind=True, name=name, max_running=1, key="{key}")(held)


jobs = {name: _job(text) for name, text in TEXTS.items()}


@app.task(base=OrchestratedTask, bind=True, max_running=1)
def echo(self: Task, until_there: str | None = None, what: Any = None) -> Any:
    hold(self, until_there)
    return what


@app.task(base=OrchestratedTask, bind=True, max_consecutive_failures=1)
def failing(self: Task, text: str) -> None:
    raise ValueError(text)


@app.task(base=OrchestratedTask)
def quiet() -> str:
    """Records nothing in the history, which does not accept long ids."""
    return "quiet"

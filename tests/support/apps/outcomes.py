"""Jobs that fail until they are fixed. Configured by the environment, like ``plain``."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import Dependency, OrchestratedTask
from celery_orchestration.signals import job_disabled
from support.history import recorded

app = Celery(
    "outcomes",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = 3
app.conf.orchestration_sweep_seconds = 1

SCRATCH = Path(os.environ.get("TEST_SCRATCH", "/nonexistent"))


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


@app.task(base=OrchestratedTask, bind=True, max_running=1, max_consecutive_failures=3)
def fragile(self: Task, note: Any = None) -> Any:
    with recorded(self, note=note):
        if not (SCRATCH / "fixed").exists():
            raise ConnectionError("no route to \x1b[31mhost\ud800")
    return note


@app.task(base=OrchestratedTask, bind=True, max_consecutive_failures=1)
def evil(self: Task) -> None:
    raise Evil


@app.task(base=OrchestratedTask, bind=True, depends_on=[Dependency("support.apps.outcomes.fragile")])
def follower(self: Task) -> str:
    with recorded(self):
        return "followed"


@job_disabled.connect
def note_disabled(sender: str, why: str, **_: Any) -> None:
    (SCRATCH / f"disabled-{sender.rpartition('.')[2]}").write_text(why)


@app.task(base=OrchestratedTask, bind=True, max_running=1, max_consecutive_failures=1, when_disabled="drop")
def picky(self: Task, note: Any = None) -> Any:
    with recorded(self, note=note):
        if not (SCRATCH / "fixed").exists():
            raise ValueError("not yet")
    return note


@app.task(
    base=OrchestratedTask, bind=True, max_running=2, max_consecutive_failures=2, cool_down_seconds=1, max_recoveries=0
)
def breaker(self: Task, note: Any = None) -> Any:
    """A job whose behaviour a file in the scratch directory decides."""
    with recorded(self, note=note):
        while (SCRATCH / "hold").exists():
            time.sleep(0.01)
        if not (SCRATCH / "fixed").exists():
            raise ValueError("not yet")
    return note


@app.task(base=OrchestratedTask, bind=True, max_retries=1, default_retry_delay=0)
def stubborn(self: Task, note: Any = None) -> Any:
    """Fails after a retry, until it is fixed."""
    with recorded(self, note=note):
        if not (SCRATCH / "fixed").exists():
            raise self.retry(exc=LookupError(f"nothing for {note}"))
    return note


@app.task(base=OrchestratedTask, bind=True, on_crash="requeue")
def deadly(self: Task) -> None:
    """Kills its whole worker."""
    with recorded(self):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(5)


@app.task(base=OrchestratedTask, bind=True, on_crash="requeue")
def bystander(self: Task, name: str = "bystander") -> str:
    with recorded(self):
        while not (SCRATCH / name).exists():
            time.sleep(0.01)
    return name

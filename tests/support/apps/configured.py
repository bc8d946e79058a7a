"""A few jobs in an app whose settings a test chooses: TEST_CONF is a JSON object of Celery's settings.

The call says how long a task lasts: seconds, or ``until`` a file exists.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded
from support.wait import until as wait_until

app = Celery(
    os.environ.get("TEST_MAIN", "configured"),
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = 3.0
app.conf.orchestration_sweep_seconds = 1.0
app.conf.update(json.loads(os.environ.get("TEST_CONF", "{}")))


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, **options)


def work(self: Task, seconds: float, note: Any, until: str | None) -> Any:
    with recorded(self, note=note):
        if until is None:
            time.sleep(seconds)
        else:
            wait_until(Path(until).exists, 60, f"{until} is there", poll=0.01)
    return note


@app.task(bind=True)
def plain(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    return work(self, seconds, note, until)


@job()
def free(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    """A job without any written option."""
    return work(self, seconds, note, until)


@job(max_running=1)
def exclusive(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    return work(self, seconds, note, until)


@job(max_running=1)
def where(self: Task, until: str | None = None) -> Any:
    """Returns the exchange and the routing key through which its message came."""
    work(self, 0, None, until)
    return [self.request.delivery_info["exchange"], self.request.delivery_info["routing_key"]]


@job(priority="low")
def low(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    return work(self, seconds, note, until)


@job(priority="high")
def high(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    return work(self, seconds, note, until)


@job(max_running=1, pool="images", priority="low")
def image(self: Task, seconds: float = 0, note: Any = None, until: str | None = None) -> Any:
    return work(self, seconds, note, until)


@job(max_running=1, key="{key}")
def keyed(self: Task, key: str, seconds: float = 0, until: str | None = None) -> Any:
    return work(self, seconds, key, until)


@job(rate_limit="1/h")
def limited(self: Task, note: Any = None) -> Any:
    return work(self, 0, note, None)

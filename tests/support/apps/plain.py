"""Plain Celery tasks, without the extension: for the tests of the test infrastructure."""

from __future__ import annotations

import os
import time

from celery import Celery, Task

from support.history import recorded

app = Celery(
    "plain",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True)
def sleep(self: Task, seconds: float) -> float:
    with recorded(self):
        time.sleep(seconds)
    return seconds


@app.task(bind=True)
def fail(self: Task) -> None:
    with recorded(self):
        raise ValueError("as asked")

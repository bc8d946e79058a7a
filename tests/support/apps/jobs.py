"""Jobs of every kind, for the tests. Configured by the environment, like ``plain``."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from celery_orchestration import Dependency, OrchestratedTask
from support.history import recorded

app = Celery(
    "jobs",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
# Tests do not wait for half a minute: a worker that died is noticed after lease + sweep, here 4 s.
app.conf.orchestration_lease_seconds = float(os.environ.get("TEST_LEASE", "3"))
app.conf.orchestration_sweep_seconds = float(os.environ.get("TEST_SWEEP", "1"))
if "TEST_MAX_RUNNING" in os.environ:
    app.conf.orchestration_max_running = int(os.environ["TEST_MAX_RUNNING"])
if "TEST_STRICT" in os.environ:
    app.conf.orchestration_strict_priority = True
for name, value in os.environ.items():
    if name.startswith("TEST_CONF_"):
        app.conf[name.removeprefix("TEST_CONF_").lower()] = value


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, **options)


def work(self: Task, seconds: float, note: Any = None) -> Any:
    with recorded(self, note=note):
        time.sleep(seconds)
    return note if note is not None else seconds


@app.task(bind=True)
def plain(self: Task, seconds: float = 0, note: Any = None) -> Any:
    return work(self, seconds, note)


@job()
def free(self: Task, seconds: float = 0, note: Any = None) -> Any:
    """A job without any written option."""
    return work(self, seconds, note)


@job(max_running=1)
def exclusive(self: Task, seconds: float = 0.05, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=2)
def pair(self: Task, seconds: float = 0.05, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=1, key="{tenant}")
def per_tenant(self: Task, tenant: str, seconds: float = 0.05) -> Any:
    return work(self, seconds, tenant)


@job(max_running=1)
def fetch(self: Task, seconds: float = 0.1, fail: bool = False) -> Any:
    with recorded(self):
        time.sleep(seconds)
        if fail:
            raise ValueError("as asked")
    return "fetched"


@job(depends_on=[fetch])
def process(self: Task, seconds: float = 0.05) -> Any:
    return work(self, seconds, "processed")


@job(depends_on=[Dependency(fetch, on="finish")])
def report(self: Task, seconds: float = 0.05) -> Any:
    return work(self, seconds, "reported")


@job(blocks=["support.apps.jobs.process", "support.apps.jobs.report"])
def cleanup(self: Task, seconds: float = 0.05) -> Any:
    return work(self, seconds, "cleaned")


@job(depends_on=[fetch], blocks=[fetch], max_running=1)
def publish(self: Task, seconds: float = 0.05) -> Any:
    """Depends on a job and blocks it."""
    return work(self, seconds, "published")


@job(priority="low")
def low(self: Task, seconds: float = 0, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(priority="high")
def high(self: Task, seconds: float = 0, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=1, acks_late=True)
def late(self: Task, seconds: float = 0.05, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=1, max_retries=5)
def flaky(self: Task, failures: int = 1, countdown: float = 0) -> Any:
    with recorded(self, note=self.request.retries):
        if self.request.retries < failures:
            raise self.retry(countdown=countdown)
    return self.request.retries


@job(max_running=1)
def replaced(self: Task, depth: int = 1) -> Any:
    with recorded(self, note=depth):
        if depth:
            raise self.replace(replaced.si(depth - 1))
    return "replaced"


@job(max_running=1, acks_late=True)
def rejecting(self: Task, requeues: int = 1) -> Any:
    """Rejects itself with requeue that often; how often it ran is counted in a file of its own."""
    path = f"{os.environ['TEST_SCRATCH']}/{self.request.id}"
    with recorded(self), open(path, "a") as file:
        file.write("x")
        file.flush()
        if file.tell() <= requeues:
            raise Reject("again", requeue=True)
    return file.tell() if not file.closed else "accepted"


@job(max_running=1)
def ignoring(self: Task) -> Any:
    with recorded(self):
        raise Ignore


@job(max_running=1, time_limit=1)
def overlong(self: Task, seconds: float = 30) -> Any:
    return work(self, seconds)


@job(max_running=1, time_limit=1)
def stubborn(self: Task, seconds: float = 30) -> Any:
    """Takes almost a second to end after it is interrupted."""
    with recorded(self):
        try:
            time.sleep(seconds)
        finally:
            end = time.monotonic() + 0.8
            while time.monotonic() < end:
                pass

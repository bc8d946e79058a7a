"""Jobs of every kind, for the soak. Configured by the environment, like ``faults``.

The call says how long a job lasts. A job returns its fence, so that the stored result identifies its execution. In a
canvas it returns its id: Celery counts the members of a chord by their results.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery import Celery, Task

from celery_orchestration import Dependency, OrchestratedTask
from soak.journal import VARIABLE, note, spy
from soak.plan import LEASE, RING, SWEEP
from support.history import recorded

app = Celery(
    "soak",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
app.conf.broker_connection_max_retries = None
# With it Celery talks to RabbitMQ from threads of the pool after a lost connection, while its event loop reads from the
# same socket: a worker of threads then hangs, with plain tasks too.
app.conf.worker_enable_prefetch_count_reduction = False
# Without it Celery fails a run, after half a second, whose chain cannot be continued because the broker is down.
app.conf.task_publish_retry_policy = {"max_retries": 100, "interval_start": 0, "interval_max": 0.3}
# Without it Celery loses results while its backend is down.
app.conf.result_backend_always_retry = True
app.conf.orchestration_lease_seconds = LEASE
app.conf.orchestration_sweep_seconds = SWEEP
app.conf.orchestration_on_crash = "requeue"  # each is to succeed
if "TEST_LEDGER" in os.environ:
    app.conf.orchestration_redis_url = os.environ["TEST_LEDGER"]
if "TEST_MAX_RUNNING" in os.environ:
    app.conf.orchestration_max_running = int(os.environ["TEST_MAX_RUNNING"])

if VARIABLE in os.environ:  # for workers; clients keep the default
    spy()

#: A run must not be given up because of the many kills around it.
RECOVERIES = 1000


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, **{"max_recoveries": RECOVERIES, **options})


def work(self: Task, seconds: float, canvas: bool, key: str | None = None) -> Any:
    with recorded(self, note=key):
        time.sleep(seconds)
    return self.request.id if canvas else self.fence


def simple(name: str, **options: Any) -> Any:
    def function(self: Task, seconds: float = 0, canvas: bool = False) -> Any:
        return work(self, seconds, canvas)

    return job(name=name, **options)(function)


@app.task(bind=True, name="plain", acks_late=True)  # else Celery itself gives up a run whose worker dies
def plain(self: Task, seconds: float = 0) -> None:
    with recorded(self):
        time.sleep(seconds)


@job(name="keyed", max_running=1, key="{key}")
def keyed(self: Task, key: str, seconds: float = 0, canvas: bool = False) -> Any:
    return work(self, seconds, canvas, key)


@job(name="failing", max_running=2)
def failing(self: Task, seconds: float = 0) -> Any:
    with recorded(self):
        time.sleep(seconds)
        raise ValueError("as planned")


@job(name="flaky", max_running=2, max_retries=20)
def flaky(self: Task, failures: int = 1, delay: float = 0) -> Any:
    with recorded(self, note=self.request.retries):
        if self.request.retries < failures:
            raise self.retry(countdown=delay)
    return self.fence


@job(name="backing_off", autoretry_for=(ValueError,), retry_backoff=1, retry_backoff_max=2, max_retries=20)
def backing_off(self: Task, failures: int = 1, delay: float = 0) -> Any:
    with recorded(self, note=self.request.retries):
        if self.request.retries < min(failures, 2):
            raise ValueError("not yet")
    return self.fence


@job(name="deadly", max_running=1, max_recoveries=1)
def deadly(self: Task) -> Any:
    """Kills its process; with threads, that is the whole worker."""
    with recorded(self):
        note("dies", pid=os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)


@job(name="gather", max_running=2)
def gather(self: Task, results: list[Any], expected: int = 0) -> Any:
    """The body of a chord."""
    with recorded(self, note=len(results)):
        pass
    return self.fence


simple("free")
simple("exclusive", max_running=1)
simple("pair", max_running=2)
simple("late", max_running=1, acks_late=True)
simple("urgent", max_running=1, priority="critical")
simple("low", max_running=2, priority="low")
simple("long", max_running=2)
simple("long_queue", max_running=1)
fetch = simple("fetch", max_running=1)
simple("process", depends_on=[fetch])
simple("publish", max_running=1, depends_on=[fetch], blocks=[fetch])
simple("report", max_running=1, depends_on=[Dependency(failing, on="finish")])
for number in range(RING):
    simple(f"ring.{number}", blocks=[f"ring.{(number + 1) % RING}"])

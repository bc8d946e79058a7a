"""The tasks that are measured. BENCH_APP names the app; each app has only the tasks of its kind.

``plain``, ``singleton``, ``job``: one empty task. ``beside``: the plain one in an app that also has jobs.
``exclusive``: a job with max_running=1. ``recipes``: the same with a Redis lock by hand. ``later``: a job with a start
time; ``plain`` has such a task. ``killed``: a job and plain tasks, for workers that are killed. ``fires``: a job that a
schedule fires; BENCH_SCHEDULE has the entries of the schedule, for any app.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery, Task

KIND = os.environ.get("BENCH_APP", "plain")
BROKER = os.environ.get("BENCH_BROKER", "memory://")
#: Pairs as JSON: the number of entries, and the seconds between two fires of each.
SCHEDULE = json.loads(os.environ.get("BENCH_SCHEDULE", "[]"))
#: The file in which runs of ``exclusive`` and ``recipes`` record when they ran.
TRACE = os.environ.get("BENCH_TRACE", os.devnull)

EMPTY = "bench.empty"
FIRED = "bench.fired"
PROBE = "bench.probe"
RUN_SECONDS = 0.010

app = Celery("bench", broker=BROKER)
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True

_trace: int | None = None


def note(*parts: object) -> None:
    """Appends one line to the trace in a single write, so that lines of several processes do not mix."""
    global _trace  # noqa: PLW0603
    if _trace is None:
        _trace = os.open(TRACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_trace, (" ".join(map(str, parts)) + "\n").encode())


def run_alone(batch: str, index: int) -> None:
    start = time.monotonic_ns()
    time.sleep(RUN_SECONDS)
    note(batch, start, time.monotonic_ns(), index)


base: type[Task] = Task
if KIND == "singleton":
    from celery_singleton import Singleton as base  # type: ignore[no-redef]
elif KIND == "job":
    from celery_orchestration import OrchestratedTask as base  # type: ignore[no-redef]


@app.task(name=EMPTY, base=base)
def empty(index: int, payload: str = "") -> None:
    """Every call has an index of its own. Otherwise celery-singleton would treat calls as duplicates."""


@app.task(name=PROBE)
def probe(batch: str, sent: int) -> None:
    note(batch, sent, time.monotonic_ns())


if KIND == "later":
    from celery_orchestration import OrchestratedTask as base  # type: ignore[no-redef]

    @app.task(name="bench.held", base=base, max_running=1)
    def held() -> None:
        time.sleep(3600)


if KIND in ("plain", "later"):

    @app.task(name="bench.later", base=base)
    def later(batch: str, sent: int, index: int) -> None:
        note(batch, sent, time.monotonic_ns(), index)

    @app.task(name="bench.retried", base=base, bind=True)
    def retried(self: Any, batch: str, sent: int, index: int) -> None:
        """Retries once, after a second."""
        if not self.request.retries:
            raise self.retry((batch, time.monotonic_ns(), index), countdown=1)
        note(batch, sent, time.monotonic_ns(), index)


def work(index: int) -> None:
    note("began", index, time.monotonic_ns())
    time.sleep(5 * RUN_SECONDS)
    note("ended", index, time.monotonic_ns())


@app.task(name="bench.late", acks_late=True)
def late(index: int) -> None:
    work(index)


if KIND == "killed":
    from celery_orchestration import OrchestratedTask as base  # type: ignore[no-redef]

    @app.task(name="bench.late_job", base=base, on_crash="requeue")
    def late_job(index: int) -> None:
        work(index)


if KIND in ("beside", "exclusive"):
    from celery_orchestration import OrchestratedTask

    @app.task(name="bench.alone", base=OrchestratedTask, max_running=1)
    def alone(batch: str, index: int) -> None:
        run_alone(batch, index)


if KIND == "beside":
    # Jobs of several kinds that are never sent: the measurement shows whether their presence costs anything.
    def other() -> None:
        pass

    for number in range(10):
        app.task(
            name=f"bench.other{number}",
            base=OrchestratedTask,
            max_running=1 + number % 2,
            blocks=[f"bench.other{(number + 1) % 10}"],
            priority=("low", "normal", "high")[number % 3],
        )(other)


if KIND == "recipes":
    import redis

    client = redis.Redis.from_url(BROKER)

    @app.task(name="bench.retrying", bind=True, max_retries=None)
    def retrying(self: Any, batch: str, index: int) -> None:
        """A run that does not get the lock is retried after a second."""
        lock = client.lock("alone", timeout=60)
        if not lock.acquire(blocking=False):
            raise self.retry(countdown=1)
        try:
            run_alone(batch, index)
        finally:
            lock.release()

    @app.task(name="bench.blocking")
    def blocking(batch: str, index: int) -> None:
        """A run that does not get the lock blocks in its slot until it does."""
        with client.lock("alone", timeout=60):
            run_alone(batch, index)


def fired(entry: str) -> None: ...


def add_fired(app: Celery, base: type[Task]) -> None:
    """The task that schedules fire; its argument is the name of the entry."""
    app.task(name=FIRED, base=base, overlap="allow", shared=False)(fired)


def entry_name(every: float, number: int) -> str:
    return f"entry-{every:g}-{number}"


if KIND == "fires":
    from celery_orchestration import OrchestratedTask as base  # type: ignore[no-redef]

add_fired(app, base)
names = [(entry_name(every, number), every) for count, every in SCHEDULE for number in range(count)]
app.conf.beat_schedule = {name: {"task": FIRED, "schedule": every, "args": (name,)} for name, every in names}
if "redbeat" in os.environ.get("BENCH_SCHEDULER", ""):
    app.conf.redbeat_redis_url = BROKER

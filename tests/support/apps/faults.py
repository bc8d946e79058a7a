"""Jobs for the tests of faults and of canvases. Configured by the environment, like ``jobs``.

A run of ``held`` ends when the test releases it, not after a time: see :func:`hold` and the stage's ``release``. The
functions under :func:`both` are a plain task and a job, so that a test can compare what Celery does with each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.signals import before_task_publish

from celery_orchestration import OrchestratedTask
from support import clocks
from support.history import recorded

app = Celery(
    "faults",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
# Without it Celery loses results while its backend is down.
app.conf.result_backend_always_retry = "TEST_RETRY_RESULTS" in os.environ
app.conf.orchestration_lease_seconds = float(os.environ.get("TEST_LEASE", "3"))
app.conf.orchestration_sweep_seconds = float(os.environ.get("TEST_SWEEP", "0.5"))
app.conf.orchestration_allow_eviction = "TEST_ALLOW_EVICTION" in os.environ
app.conf.orchestration_on_crash = os.environ.get("TEST_ON_CRASH")
if "TEST_MAX_RUNNING" in os.environ:
    app.conf.orchestration_max_running = int(os.environ["TEST_MAX_RUNNING"])
if "TEST_VISIBILITY" in os.environ:
    app.conf.broker_transport_options = {"visibility_timeout": float(os.environ["TEST_VISIBILITY"])}

RING = 50


def scratch(name: str) -> Path:
    return Path(os.environ["TEST_SCRATCH"]) / name


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, bind=True, **options)


def work(self: Task, seconds: float, note: Any = None) -> Any:
    with recorded(self, note=note):
        time.sleep(seconds)
    return note


def hold(self: Task, name: str) -> int | None:
    """Until the test made a file of this name, or one that names this process too. Returns the fence."""
    with recorded(self, note=name):
        while not (scratch(name).exists() or scratch(f"{name}.{os.getpid()}").exists()):
            time.sleep(0.01)
    return getattr(self, "fence", None)


@job()
def free(self: Task, seconds: float = 0, note: Any = None) -> Any:
    """A job without any written option."""
    return work(self, seconds, note)


@job(max_running=1)
def exclusive(self: Task, seconds: float = 0, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=2)
def pair(self: Task, seconds: float = 0, note: Any = None) -> Any:
    return work(self, seconds, note)


@job(max_running=1)
def held(self: Task, name: str) -> Any:
    return hold(self, name)


@job(max_running=1, acks_late=True)
def held_late(self: Task, name: str) -> Any:
    return hold(self, name)


@job()
def held_free(self: Task, name: str) -> Any:
    return hold(self, name)


@job()
def noted(self: Task, *args: Any) -> Any:
    """For callbacks: what it was called with is in the history."""
    with recorded(self, note=[arg if isinstance(arg, int | float | str) else repr(arg) for arg in args]):
        pass


@job(max_running=1, max_retries=5)
def flaky(self: Task, failures: int = 1, countdown: float = 0) -> Any:
    with recorded(self, note=self.request.retries):
        if self.request.retries < failures:
            raise self.retry(countdown=countdown)
    return self.request.retries


@job()
def telling(self: Task, note: Any = None) -> Any:
    """Tells how far it is."""
    self.progress(1, 2, "halfway")
    return work(self, 1, note)


@job(depends_on=[f"{__name__}.flaky"])
def after_flaky(self: Task) -> None:
    with recorded(self):
        pass


@job(rate_limit="5/s")
def limited(self: Task, note: Any = None) -> Any:
    return work(self, 0, note)


if "TEST_LOSE_RETRIES" in os.environ:

    @before_task_publish.connect
    def lose_retries(headers: dict[str, Any], **_: Any) -> None:
        """As if the broker lost the message, once: what comes instead is of a task that does nothing."""
        if headers.get("retries"):
            headers["id"] = f"lost-{headers['id']}"
            headers["task"] = "celery.accumulate"


# -- code that ignores the request to end


def cling(self: Task, seconds: float) -> None:
    """Continues for this many seconds after it is asked to end, and records how long it lived."""
    with recorded(self), scratch(self.request.id).open("a") as life:
        told = None
        while told is None or time.monotonic() < told + seconds:
            with contextlib.suppress(SystemExit):
                while told is None or time.monotonic() < told + seconds:
                    life.write(f"{time.monotonic()}\n")
                    life.flush()
                    time.sleep(0.001)
            told = told or time.monotonic()
        raise SystemExit(1)


@job(max_running=1, time_limit=1)
def overlong(self: Task, seconds: float = 30) -> Any:
    if seconds:
        cling(self, seconds)
    return work(self, 0, "in time")


# -- jobs that wait for each other


@job(max_running=1)
def fetch(self: Task, seconds: float = 0.02) -> Any:
    return work(self, seconds, "fetched")


@job(depends_on=[fetch])
def process(self: Task, seconds: float = 0.02) -> Any:
    return work(self, seconds, "processed")


@job(depends_on=[fetch], blocks=[fetch], max_running=1)
def publish(self: Task, seconds: float = 0.02) -> Any:
    """Depends on a job and blocks it."""
    return work(self, seconds, "published")


@job(depends_on=[fetch], priority="critical", max_running=1)
def urgent(self: Task, seconds: float = 0.02) -> Any:
    """Critical, and waits for a normal one."""
    return work(self, seconds, "urgent")


def ring_name(number: int) -> str:
    return f"ring.{number % RING}"


def _ring(number: int) -> Any:
    def member(self: Task, seconds: float = 0.01) -> Any:
        return work(self, seconds, number)

    return job(name=ring_name(number), blocks=[ring_name(number + 1)])(member)


ring = [_ring(number) for number in range(RING)]


# -- the same function as a plain task and as a job


class Kinds(NamedTuple):
    plain: Any
    job: Any


def both(**options: Any) -> Callable[[Callable[..., Any]], Kinds]:
    def register(function: Callable[..., Any]) -> Kinds:
        name = function.__name__
        return Kinds(
            app.task(bind=True, name=f"plain.{name}", **options)(function),
            app.task(bind=True, name=f"job.{name}", base=OrchestratedTask, max_running=1, **options)(function),
        )

    return register


def count(self: Task) -> int:
    """How often this run was executed, this time included."""
    with scratch(f"count-{self.request.id}").open("a") as file:
        file.write("x")
        return file.tell()


@both()
def add(self: Task, *numbers: Any) -> Any:
    with recorded(self):
        return sum(sum(number) if isinstance(number, list) else number for number in numbers)


@both()
def failing(self: Task, *args: Any) -> Any:
    with recorded(self):
        raise ValueError("as asked")


@both(max_retries=5)
def retrying(self: Task, failures: int, countdown: float = 0) -> Any:
    with recorded(self, note=self.request.retries):
        if self.request.retries < failures:
            raise self.retry(countdown=countdown, exc=ValueError("not yet"))
    return self.request.retries


@both(autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0, max_retries=2)
def giving_up(self: Task) -> Any:
    with recorded(self, note=self.request.retries):
        raise ValueError("each time")


@both()
def replacing(self: Task, depth: int) -> Any:
    with recorded(self, note=depth):
        if depth:
            raise self.replace(self.si(depth - 1))
    return "replaced"


@both()
def replacing_by_group(self: Task, size: int) -> Any:
    with recorded(self, note=size):
        if size:
            member = self.app.tasks[self.name.replace("replacing_by_group", "add")]
            raise self.replace(member.s(0, 0) | member.s(size))
    return "never"


@both(acks_late=True)
def rejecting(self: Task, times: int) -> Any:
    """Puts itself back into the queue that often."""
    with recorded(self):
        if count(self) <= times:
            raise Reject("again", requeue=True)
    return "accepted"


@both()
def rejecting_early(self: Task) -> Any:
    """Acknowledged before it runs: Celery cannot put it back."""
    with recorded(self):
        raise Reject("again", requeue=True)


@both(acks_late=True)
def rejected(self: Task) -> Any:
    with recorded(self):
        raise Reject("never", requeue=False)


@both()
def ignoring(self: Task) -> Any:
    with recorded(self):
        raise Ignore


@both(acks_late=True, reject_on_worker_lost=True)
def crashing_late(self: Task, times: int) -> Any:
    """Kills its process that often; the broker is asked to deliver it again."""
    with recorded(self):
        if count(self) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@both()
def crashing(self: Task, times: int) -> Any:
    with recorded(self):
        if count(self) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    return 1


if clocks.VARIABLE in os.environ:
    clocks.follow(os.environ[clocks.VARIABLE])

"""Jobs with time limits, for execution pools that keep them and those that do not; and jobs that tell their progress.

Beside those of ``faults``.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import task_failure

from celery_orchestration import OrchestratedTask
from support.apps.faults import app, free, held, held_free, hold, job, noted, scratch
from support.history import recorded

__all__ = ["app", "free", "held", "held_free", "noted"]


class Telling(OrchestratedTask):
    abstract = True

    def on_failure(self, exc: Any, task_id: str, *_: Any) -> None:
        with scratch(f"hook-{task_id}").open("a") as file:
            file.write(f"{type(exc).__name__}\n")


@task_failure.connect
def note_failure(sender: Any, task_id: str, exception: Any, **_: Any) -> None:
    with scratch(f"failure-{task_id}").open("a") as file:
        file.write(f"{type(exception).__name__}\n")


def limited(**options: Any) -> Any:
    """Calls bring their own limits: a hard one of ours is ten seconds and more."""
    return app.task(base=Telling, bind=True, max_running=1, timeout_seconds=60, **options)


@limited(max_consecutive_failures=2)
def returning(self: Task, name: str) -> Any:
    return hold(self, name)


@limited()
def raising(self: Task, name: str) -> Any:
    raise ValueError(hold(self, name))


@limited(max_retries=3)
def retrying(self: Task, name: str) -> Any:
    hold(self, name)
    raise self.retry(countdown=0)


@limited(autoretry_for=(ValueError,), max_retries=3, default_retry_delay=0)
def retried(self: Task, name: str) -> Any:
    raise ValueError(hold(self, name))


@limited()
def replacing(self: Task, name: str) -> Any:
    hold(self, name)
    raise self.replace(noted.si("replacement"))


@limited(acks_late=True, acks_on_failure_or_timeout=False)
def back_to_the_broker(self: Task, name: str) -> Any:
    return hold(self, name)


@limited()
def hearing(self: Task, name: str) -> Any:
    """Hears its soft limit, where there is one."""
    try:
        return hold(self, name)
    except SoftTimeLimitExceeded:
        scratch(f"soft-{self.request.id}").touch()
        raise


@job(max_running=1, timeout_seconds=60)
def patient(self: Task, name: str) -> Any:
    return hold(self, name)


@job(time_limit=1)
def celerys(self: Task, name: str) -> Any:
    """Has a limit that is not ours."""
    return hold(self, name)


@job()
def unlimited(self: Task, name: str) -> Any:
    """Calls bring limits."""
    return hold(self, name)


@app.task(time_limit=5)
def plain_limited() -> None:
    """No job."""


@job()
def blamed(self: Task, failed: str) -> None:
    """For errbacks."""
    with recorded(self, note=failed):
        pass


# -- progress


@job(max_recoveries=5)
def telling(self: Task, name: str, *steps: Any) -> None:
    """Tells each of its steps, (done, total, note), in one go; then ends when it may."""
    with recorded(self):
        for step in steps:
            self.progress(*step)
        scratch(f"told-{name}").touch()
        while not scratch(name).exists():
            time.sleep(0.01)


@job()
def counting(self: Task, times: int) -> float:
    """Seconds that it took to tell so often."""
    began = time.monotonic()
    for number in range(times):
        self.progress(number, times)
    return time.monotonic() - began


@job(on_crash="requeue")
def silent(self: Task, name: str) -> None:
    """Tells something at its first start only."""
    with recorded(self):
        if not scratch(f"begun-{name}").exists():
            scratch(f"begun-{name}").touch()
            self.progress(9, 10, "of the first start")
        while not scratch(name).exists():
            time.sleep(0.01)


@job()
def nonsense(self: Task) -> str:
    try:
        self.progress(float("nan"), 10)
    except ValueError as exc:
        return str(exc)
    return "accepted"


@job()
def talking(self: Task, name: str) -> float:
    """Says something all the time, and returns the longest that took."""
    longest = 0.0
    with recorded(self):
        number = 0
        while not scratch(name).exists():
            number += 1
            began = time.monotonic()
            self.progress(number)
            longest = max(longest, time.monotonic() - began)
            scratch(f"said-{self.request.id}").write_text(str(number))
            time.sleep(0.01)
    return longest

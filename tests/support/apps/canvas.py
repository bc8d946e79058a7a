"""More functions, each as a plain task and as a job, in addition to those of ``faults``."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

from celery import Task

from support.apps.faults import (
    Kinds,
    add,
    app,
    both,
    count,
    crashing,
    crashing_late,
    failing,
    giving_up,
    held,
    held_free,
    hold,
    ignoring,
    job,
    rejected,
    rejecting,
    rejecting_early,
    replacing,
    replacing_by_group,
    retrying,
)
from support.history import recorded

__all__ = [
    "add",
    "app",
    "crashing",
    "crashing_late",
    "failing",
    "giving_up",
    "held",
    "held_free",
    "ignoring",
    "rejected",
    "rejecting",
    "rejecting_early",
    "replacing",
    "replacing_by_group",
    "retrying",
]


# Plain tasks have workers of their own.
app.conf.task_routes = {"plain.*": {"queue": "plain"}}


@both()
def kept(self: Task, name: str) -> str:
    """Runs until the test releases it."""
    hold(self, name)
    return name


@both()
def gather(self: Task, found: Any) -> Any:
    """The body of a chord."""
    with recorded(self, note=str(found)[:500]):
        return found


@both(reject_on_worker_lost=False)
def dying(self: Task, *args: Any) -> Any:
    """Kills its process. Its options say that this is a failure, as in Celery."""
    with recorded(self):
        os.kill(os.getpid(), signal.SIGKILL)


@both(retry_on_worker_lost=True, max_retries=2, default_retry_delay=0)
def dying_retried(self: Task, times: int) -> Any:
    with recorded(self, note=self.request.retries):
        if count(self) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
    return self.request.retries


@both(time_limit=0.5)
def overtime(self: Task) -> Any:
    with recorded(self):
        time.sleep(60)


@both()
def resending(self: Task, times: int) -> int:
    """Sends itself again under its own id, until it was executed this often."""
    with recorded(self):
        executed = count(self)
        if executed < times:
            self.apply_async((times,), task_id=self.request.id)
    return executed


@both()
def blaming(self: Task, *what: Any) -> None:
    """An errback."""
    with recorded(self):
        pass


@job()
def called(self: Task, *what: Any) -> None:
    """For callbacks."""
    with recorded(self, note=list(what)):
        pass


@job()
def blamed(self: Task, failed: str) -> None:
    """An errback: it gets the id of the task that failed."""
    with recorded(self, note=failed):
        pass


def kind(name: str) -> SimpleNamespace:
    """All of these functions, as plain tasks ("plain") or as jobs ("job")."""
    return SimpleNamespace(
        **{key: getattr(value, name) for key, value in globals().items() if isinstance(value, Kinds)}
    )

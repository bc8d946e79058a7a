"""Jobs whose code continues after it is asked to end, in addition to those of ``faults``. Each records how long it
lived."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Task
from celery.exceptions import SoftTimeLimitExceeded

from support.apps.faults import app, free, held, hold, job, noted, scratch
from support.history import recorded

__all__ = ["app", "free", "held", "noted"]


class Life:
    """When this process was last seen alive, in a file that outlives it."""

    def __init__(self) -> None:
        self._file = os.open(scratch(f"life-{os.getpid()}"), os.O_WRONLY | os.O_CREAT)
        self.goes_on()

    def goes_on(self) -> None:
        os.pwrite(self._file, f"{time.monotonic():020.6f}".encode(), 0)
        time.sleep(0.001)

    def close(self) -> None:
        os.close(self._file)


def lives(directory: Path) -> dict[int, float]:
    """For each process its last sign of life, for the test."""
    return {int(path.name.removeprefix("life-")): float(path.read_text()) for path in directory.glob("life-*")}


@contextmanager
def living() -> Iterator[Life]:
    life = Life()
    try:
        yield life
    finally:
        life.close()


def endure(self: Task, seconds: float) -> str:
    """Runs until it is asked to end, in any way, and then for this many seconds."""
    with living() as life, recorded(self):
        told = None
        while told is None or time.monotonic() < told + seconds:
            try:
                while told is None or time.monotonic() < told + seconds:
                    life.goes_on()
            except BaseException:
                told = told or time.monotonic()
        scratch(f"endured-{self.request.id}").touch()
    return "anyway"


@job(max_running=1)
def enduring(self: Task, seconds: float = 0.5) -> str:
    """Ends some time after revoke(terminate=True)."""
    return endure(self, seconds)


@job(max_running=1, soft_time_limit=0.5, time_limit=1)
def deaf(self: Task, seconds: float = 60) -> str:
    """Ignores both the soft limit and SIGTERM."""
    return endure(self, seconds) if seconds else "in time"


@job(max_running=1, soft_time_limit=0.5, time_limit=1, acks_late=True, acks_on_failure_or_timeout=False)
def deaf_once(self: Task) -> str:
    """Its message goes back to the broker when its time is over."""
    with scratch(f"count-{self.request.id}").open("a") as file:
        file.write("x")
    if scratch(f"count-{self.request.id}").stat().st_size == 1:
        return endure(self, 60)
    with recorded(self):
        return "in time"


@job(max_running=1, interval_seconds=3600, timeout_seconds=0.3)
def tidy(self: Task, seconds: float = 0.5) -> str:
    """A recurring job that needs some time to clean up when its time is over."""
    with living() as life, recorded(self):
        end = time.monotonic() + seconds
        try:
            while seconds:
                life.goes_on()
        except SoftTimeLimitExceeded:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                life.goes_on()
            raise
    return "in time"


# -- how a run ends that has lost its lease


@job(max_running=1)
def returning(self: Task) -> Any:
    return hold(self, "returning")


@job(max_running=1)
def raising(self: Task) -> Any:
    raise ValueError(hold(self, "raising"))


@job(max_running=1)
def retrying(self: Task) -> Any:
    fence = hold(self, "retrying")
    if not self.request.retries:
        raise self.retry(countdown=0)
    return fence


@job(max_running=1)
def replacing(self: Task) -> Any:
    raise self.replace(noted.si("replacement", hold(self, "replacing")))


@job()
def blamed(self: Task, failed: str) -> None:
    """For errbacks."""
    with recorded(self, note=failed):
        pass

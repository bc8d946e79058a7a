"""Jobs for the tests of workers that stop: those of ``faults``, and jobs that record how long they lived."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Task
from celery.exceptions import Reject
from celery.signals import worker_process_init

from support.apps.faults import app, exclusive, free, held, held_free, held_late, hold, job, noted, scratch
from support.history import recorded

__all__ = [
    "app",
    "beating",
    "beating_late",
    "exclusive",
    "free",
    "held",
    "held_free",
    "held_late",
    "limited",
    "noted",
    "plain",
    "plain_late",
]

if "TEST_DRAIN" in os.environ:
    app.conf.orchestration_drain_seconds = float(os.environ["TEST_DRAIN"])
app.conf.worker_soft_shutdown_timeout = float(os.environ.get("TEST_SOFT", "0"))


@worker_process_init.connect
def _slow_start(**_: Any) -> None:
    time.sleep(float(os.environ.get("TEST_SLOW_START", "0")))


def beat(self: Task, name: str, clings: float = 0) -> str:
    """Runs until a file of this name exists, and records regularly that it lives. When it is asked to end, it continues
    for `clings` seconds."""
    with recorded(self, note=name), scratch(f"life-{self.request.id}").open("a", buffering=1) as life:
        told = None
        while not scratch(name).exists() and (told is None or time.monotonic() < told + clings):
            try:
                while not scratch(name).exists() and (told is None or time.monotonic() < told + clings):
                    life.write(f"{os.getpid()} {time.monotonic()}\n")
                    time.sleep(0.002)
            except SystemExit:
                told = told or time.monotonic()
        if told and not scratch(name).exists():
            raise SystemExit(1)
    return name


# A counted crash would end these at once.
@job(max_running=1, max_recoveries=0)
def beating(self: Task, name: str, clings: float = 0) -> Any:
    return beat(self, name, clings)


@job(max_running=1, max_recoveries=0, acks_late=True, priority="high")
def beating_late(self: Task, name: str, clings: float = 0) -> Any:
    return beat(self, name, clings)


@job(max_running=1, rate_limit="10/m")
def limited(self: Task, name: str) -> Any:
    return hold(self, name)


@job(max_running=1, acks_late=True, priority="high")
def rejecting_once(self: Task, name: str) -> Any:
    """Puts its message back into its queue when it is released, the first time."""
    with scratch(f"count-{self.request.id}").open("a") as file:
        file.write("x")
        first = file.tell() == 1
    hold(self, name)
    if first:
        raise Reject("again", requeue=True)
    return "accepted"


@app.task(bind=True)
def plain(self: Task, name: str) -> Any:
    return hold(self, name)


@app.task(bind=True, acks_late=True)
def plain_late(self: Task, name: str) -> Any:
    return hold(self, name)

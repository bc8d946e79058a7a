"""The jobs of ``faults``, and some that cause errors."""

from __future__ import annotations

import time
from typing import Any

from celery import Task

from celery_orchestration import Dependency
from support.apps.faults import app, free, held, held_free, hold, job, work
from support.history import recorded

__all__ = ["app", "free", "held", "held_free"]


@job(max_running=1, on_crash="fail")
def fragile(self: Task, name: str) -> Any:
    return hold(self, name)


@app.task(bind=True)
def blamed(self: Task, id: str) -> str:
    with recorded(self, note=id):
        return id


@job(max_retries=3)
def expiring(self: Task, seconds: float) -> Any:
    with recorded(self, note=self.request.retries):
        time.sleep(seconds)
        raise self.retry(countdown=0)


@job(depends_on=[Dependency("support.apps.trouble.expiring", on="idle")])
def after_expiring(self: Task) -> Any:
    return work(self, 0)


@job(max_running=1, key="{tenant}")
def keyed(self: Task, tenant: str) -> Any:
    return work(self, 0, "keyed")

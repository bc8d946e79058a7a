"""Facts about a whole Celery app: its settings, the owner of its ledger, the time limits of its tasks."""

from __future__ import annotations

import inspect
import os
import threading
from typing import Any

from celery import Celery, Task
from celery.schedules import maybe_schedule

from celery_orchestration.job.limits import Limit
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Ledger, keys

SCHEDULER = "celery_orchestration:OrchestratedScheduler"


def settings_of(app: Celery) -> Settings:
    """The ``orchestration_*`` settings, read once per app and process."""
    found: Settings | None = app.__dict__.get("_orchestration_settings")
    if found is None:
        found = app.__dict__["_orchestration_settings"] = read_settings(app)
    return found


def read_settings(app: Celery) -> Settings:
    conf = {}
    for key in app.conf:
        name = key.lower().removeprefix("celery_")  # config_from_object(..., namespace="CELERY")
        if name.startswith("orchestration_"):
            conf[name] = app.conf[key]
    return Settings.read(conf, os.environ, app.main)


def owner_of(app: Celery) -> str:
    """The owner of the ledger. With the default namespace that is the app, by its main name; a namespace that was
    written belongs to all services that write it."""
    namespace = read_settings(app).namespace
    return namespace if keys.service(app.main, namespace) else app.main or "__main__"


def service_of(app: Celery) -> str:
    """This service among those that share the ledger, as part of keys: see :func:`keys.service`."""
    return keys.service(app.main, settings_of(app).namespace)


def limits_of(app: Celery) -> dict[str, Limit]:
    """Time limits of all tasks that have one, whether they are jobs or not, and wherever it was set."""
    limits = {name: (task.time_limit, task.soft_time_limit) for name, task in app.tasks.items()}
    return {name: limit for name, limit in limits.items() if any(limit) and not name.startswith("celery.")}


def beat_entry(app: Celery, policy: Policy) -> dict[str, Any]:
    every = policy.schedule if policy.schedule is not None else policy.interval_seconds
    return {"task": policy.name, "schedule": maybe_schedule(every, app=app), "args": (), "kwargs": {}}


def signature_of(task: Task) -> inspect.Signature | None:
    """The signature of a job's function. With it, a room key is the same for arguments by position, name or default."""
    try:
        return inspect.signature(task.run)
    except (TypeError, ValueError):
        return None


def signature_of_class(cls: type[Task]) -> inspect.Signature | None:
    """The signature of ``run`` without ``self``, before the task exists."""
    run = inspect.getattr_static(cls, "run")
    try:
        return inspect.signature(run.__get__(object(), cls) if hasattr(run, "__get__") else run)
    except (TypeError, ValueError):
        return None


_local = threading.local()


def ledger_of(app: Celery) -> Ledger:
    """The connection of this thread (in this process) to the ledger."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.ledgers = os.getpid(), {}
    if id(app) not in _local.ledgers:
        _local.ledgers[id(app)] = Ledger.of(app, settings_of(app))
    ledger: Ledger = _local.ledgers[id(app)]
    return ledger

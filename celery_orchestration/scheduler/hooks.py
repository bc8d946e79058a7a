"""Detects code that hooks into the sending of a task: monitors, tracers, a company's base classes.

Such code patches or overrides the methods with which Celery sends, connects to its signals, or has its own router. If
there is none, the messages of an entry differ only by their ids, and are made once. If there is some, each fire is sent
as Celery's beat would send it. Each fire checks this again, because code may be patched late.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from celery import Celery, Task, signals
from celery.app.amqp import AMQP
from celery.app.routes import MapRoute

_BEAT = ("celery.beat", "celery_orchestration.scheduler.beat")
_TASK = ("celery.app.task", "celery_orchestration.job.task")
_SIGNALS = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)


def apply_entry_is_patched(scheduler: Any) -> bool:
    """Whether ``apply_entry``, or a method that it calls, is patched or overridden."""
    return any(not _is_own(getattr(scheduler, name), *_BEAT) for name in ("apply_entry", "apply_async", "send_task"))


def sending_is_patched(app: Celery, task: Task) -> bool:
    """Whether other code may see or change each message of a task."""
    return (
        any(signal.receivers for signal in _SIGNALS)
        or not _is_own(app.send_task, "celery.app.base")
        or not all(_is_own(found, *_TASK) for found in _definitions(task, "apply_async"))
        or type(app.amqp) is not AMQP
        or not _is_own(app.amqp.create_task_message, "celery.app.amqp")
        or not _is_own(app.amqp.send_task_message, "celery.app.amqp")
        or any(not _is_own_route(one) for one in app.amqp.routes)
    )


def _is_own_route(route: Any) -> bool:
    return type(route) is MapRoute or _is_own(route, "celery_orchestration.job.queues")


def _definitions(thing: Any, name: str) -> list[Any]:
    """All definitions of a method, in the classes and on the object: each may call the next one."""
    return [vars(owner)[name] for owner in (thing, *type(thing).__mro__) if name in vars(owner)]


def _is_own(function: Any, *modules: str) -> bool:
    """Whether one of these modules defines it. A wrapper copies a function's name, but not its globals."""
    function = function.__func__ if type(function) is MethodType else function
    return type(function) is FunctionType and function.__globals__.get("__name__") in modules

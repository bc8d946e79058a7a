"""Combines a user's own ``Request`` or ``Strategy`` class, as company base classes have them, with ours.

This works for any order of the bases. Our request comes first, so that the gate decides; it calls the user's class
where it would have called Celery's. The user's strategy gets a consumer that leaves start times to the ledger, and
accepts only requests that ask the gate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Task
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request
from celery.worker.strategy import default

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.task import OrchestratedTask
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.strategy_consumer import StrategyConsumer


def strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    """``Task.Strategy`` of jobs: Celery's or the user's, with requests that ask the gate, and without Celery's timers.
    With these, a message with an ``eta`` would stay unacknowledged in the memory of one worker."""
    task.Request = request_class(task)  # strategies read it
    custom = _strategy_of(task)
    return custom(task, app, StrategyConsumer(consumer) if custom is default else Guarded(consumer), **kwargs)


def check(task: Any) -> None:
    """Raises if the task's own ``Request`` or ``Strategy`` cannot be combined with ours."""
    request_class(task)
    _strategy_of(task)


def is_gated(task: Any) -> bool:
    """Whether :func:`strategy` made its strategy. A ``start_strategy`` of its own may have made another one."""
    return "Request" in vars(task)


def request_class(task: Any) -> type[OrchestratedRequest]:
    custom = _custom(task, "Request")
    if custom is None:
        return OrchestratedRequest
    try:
        return combined(custom)
    except TypeError as exc:
        raise ConfigurationError(f"job {task.name}: its Request cannot be combined with the gate's: {exc}") from None


@cache
def combined(custom: type) -> type[OrchestratedRequest]:
    if not (isinstance(custom, type) and issubclass(custom, Request)):
        raise TypeError(f"{custom!r} is no subclass of celery.worker.request.Request")
    if issubclass(custom, OrchestratedRequest):
        return custom
    if custom is Request:
        return OrchestratedRequest
    names = {name for klass in custom.__mro__ if not issubclass(Request, klass) for name in vars(klass)}
    taken = sorted(name for name in names & _OURS if not name.startswith("__"))
    if taken:
        raise TypeError(f"{custom.__qualname__}.{taken[0]} has the name of something that the gate's request has")
    return type(custom.__name__, (OrchestratedRequest, custom), {"__module__": custom.__module__})


#: Names that our request classes add to Celery's.
_OURS = {name for klass in OrchestratedRequest.__mro__ if not issubclass(Request, klass) for name in vars(klass)}
_OURS -= vars(Request).keys()


def _strategy_of(task: Any) -> Any:
    custom = _custom(task, "Strategy")
    if custom is None or custom is strategy:
        return default
    if not callable(custom):
        raise ConfigurationError(f"job {task.name}: its Strategy {custom!r} cannot be called")
    return custom


def _custom(task: Any, name: str) -> Any:
    """The first attribute of this name in the order of classes that is neither Celery's nor ours; None if there is
    none."""
    for klass in type(task).__mro__:
        if name in vars(klass) and klass not in (OrchestratedTask, Task):
            found = vars(klass)[name]
            # A function in a class is a method of the task, as it is for Celery.
            found = found.__get__(task, type(task)) if hasattr(type(found), "__get__") else found
            try:
                return symbol_by_name(found)
            except (ImportError, AttributeError, ValueError) as exc:
                raise ConfigurationError(f"job {task.name}: its {name} {found!r} cannot be loaded: {exc}") from None
    return None


class Guarded(StrategyConsumer):
    """For a user's strategy. It refuses requests of other classes, which would be executed without asking the gate."""

    def on_task_request(self, request: Any) -> Any:
        return self._consumer.on_task_request(self._checked(request))

    def _limit_task(self, request: Any, *args: Any) -> Any:
        return self._consumer._limit_task(self._checked(request), *args)

    def call_at(self, eta: float, function: Any, args: tuple[Any, ...], **options: Any) -> Any:
        self._checked(args[0])
        return super().call_at(eta, function, args, **options)

    def _checked(self, request: Any) -> Any:
        if not isinstance(request, OrchestratedRequest):
            raise ConfigurationError(
                f"the Strategy of job {request.task.name} has made a {type(request).__name__} that would not ask the "
                "gate: make requests of the class task.Request, as celery.worker.strategy.default does"
            )
        return request

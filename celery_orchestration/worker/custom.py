"""A job whose class brings a ``Request`` or a ``Strategy`` of its own, as company base classes do.

Both are combined with ours, whatever the order of the bases. Our request comes first, so that the gate decides, and
calls theirs where it would have called Celery's. Their strategy is given a consumer that leaves times to the ledger,
and takes only requests that know the gate.
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
    """``Task.Strategy`` of jobs: Celery's own or theirs, on requests that know the gate, and without Celery's timers:
    there a message with an ``eta`` would stay unacknowledged in the memory of one worker."""
    task.Request = request_class(task)  # strategies read it
    theirs = _strategy_of(task)
    return theirs(task, app, StrategyConsumer(consumer) if theirs is default else Guarded(consumer), **kwargs)


def check(task: Any) -> None:
    """Raises if what the class brings cannot be combined with ours."""
    request_class(task)
    _strategy_of(task)


def is_gated(task: Any) -> bool:
    """Whether its strategy was made here: a ``start_strategy`` of its own may have made another."""
    return "Request" in vars(task)


def request_class(task: Any) -> type[OrchestratedRequest]:
    theirs = _written(task, "Request")
    if theirs is None:
        return OrchestratedRequest
    try:
        return combined(theirs)
    except TypeError as exc:
        raise ConfigurationError(f"job {task.name}: its Request cannot be combined with the gate's: {exc}") from None


@cache
def combined(theirs: type) -> type[OrchestratedRequest]:
    if not (isinstance(theirs, type) and issubclass(theirs, Request)):
        raise TypeError(f"{theirs!r} is no subclass of celery.worker.request.Request")
    if issubclass(theirs, OrchestratedRequest):
        return theirs
    if theirs is Request:
        return OrchestratedRequest
    names = {name for klass in theirs.__mro__ if not issubclass(Request, klass) for name in vars(klass)}
    taken = sorted(name for name in names & _OURS if not name.startswith("__"))
    if taken:
        raise TypeError(f"{theirs.__qualname__}.{taken[0]} has the name of something that the gate's request has")
    return type(theirs.__name__, (OrchestratedRequest, theirs), {"__module__": theirs.__module__})


_OURS = {name for klass in OrchestratedRequest.__mro__ if not issubclass(Request, klass) for name in vars(klass)}
_OURS -= vars(Request).keys()


def _strategy_of(task: Any) -> Any:
    theirs = _written(task, "Strategy")
    if theirs is None or theirs is strategy:
        return default
    if not callable(theirs):
        raise ConfigurationError(f"job {task.name}: its Strategy {theirs!r} cannot be called")
    return theirs


def _written(task: Any, name: str) -> Any:
    """The nearest one that is neither Celery's nor ours."""
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
    """For a strategy of their own: a request that does not know the gate would be executed without asking it."""

    def on_task_request(self, request: Any) -> Any:
        return self._consumer.on_task_request(self._known(request))

    def _limit_task(self, request: Any, *args: Any) -> Any:
        return self._consumer._limit_task(self._known(request), *args)

    def call_at(self, eta: float, function: Any, args: tuple[Any, ...], **options: Any) -> Any:
        self._known(args[0])
        return super().call_at(eta, function, args, **options)

    def _known(self, request: Any) -> Any:
        if not isinstance(request, OrchestratedRequest):
            raise ConfigurationError(
                f"the Strategy of job {request.task.name} has made a {type(request).__name__} that would not ask the "
                "gate: make requests of the class task.Request, as celery.worker.strategy.default does"
            )
        return request

"""The consumer that Celery's strategies see: it leaves start times to the ledger, and announces each run once.

Used in the worker's event loop.
"""

from __future__ import annotations

import time
from time import monotonic
from typing import Any

from celery.worker.state import task_reserved


class ReceivedOnce:
    """Wraps Celery's event dispatcher so that it sends ``task-received`` once for each run. A copy of a message says
    that the event was sent."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        #: The task id of the current message, if its run was announced before.
        self.announced: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    def send(self, type: str, **fields: Any) -> Any:
        if type == "task-received" and self.announced is not None and fields.get("uuid") == self.announced:
            self.announced = None
            return None
        return self._dispatcher.send(type, **fields)


class StrategyConsumer:
    """Stands in for Celery's consumer. Where Celery would set a timer, the ledger keeps the run."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.timer = self.qos = self
        self.event_dispatcher = consumer.event_dispatcher and ReceivedOnce(consumer.event_dispatcher)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def increment_eventually(self) -> None:
        """Does nothing: no job's message with a start time stays here, so the prefetch count need not grow."""

    def call_at(self, eta: float, function: Any, args: tuple[Any, ...], **options: Any) -> Any:
        request, *bucket = args
        if request.gate is None:
            self._consumer.qos.increment_eventually()
            return self._consumer.timer.call_at(eta, function, args, **options)
        seconds = eta - monotonic()  # kombu's timers use the monotonic clock
        if not request.grant and seconds > 0:
            request.gate.schedule(request, time.time() + seconds)
        elif bucket:
            self._consumer._limit_task(request, *bucket)
        else:
            task_reserved(request)
            self._consumer.on_task_request(request)
        return None

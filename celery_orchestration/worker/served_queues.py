"""Which queues a worker serves. Built when the worker is set up; any thread may read it.

Only the event loop changes it, when remote control adds or cancels a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celery import Celery

from celery_orchestration.job import queues
from celery_orchestration.worker import internals


class ServedQueues:
    def __init__(self, app: Celery, destinations: Mapping[str, Sequence[str]]) -> None:
        """`destinations`: the queues that jobs are sent to, each with its jobs."""
        self._app = app
        #: Whether the worker was started with -Q.
        self._chosen = internals.consumer.queues_were_chosen(app)
        queues.select(app, self._chosen, destinations)
        #: Queues that remote control cancelled.
        self._cancelled: set[str] = set()

    @property
    def granted(self) -> list[str]:
        """The granted queues that this worker serves."""
        return [name for name in queues.granted_queues(self._app, self._chosen) if name not in self._cancelled]

    @property
    def served(self) -> tuple[str, ...]:
        """All queues that this worker serves."""
        return (*self._app.amqp.queues.consume_from, *self.granted)

    @property
    def to_come(self) -> list[str]:
        """Queues that this worker will serve as soon as they are in use."""
        return [name for name in queues.may_come(self._app, self._chosen) if name not in self._cancelled]

    def add(self, name: str) -> None:
        self._cancelled.discard(name)

    def cancel(self, name: str) -> None:
        self._cancelled.add(name)

"""How many messages a worker can use now. That depends on the messages that it has, and on how long its tasks took.

Used in the worker's event loop, except :meth:`Demand.typical`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.worker import state

from celery_orchestration.worker import internals
from celery_orchestration.worker.fetch.amount import amount
from celery_orchestration.worker.fetch.durations import Durations


class Demand:
    def __init__(self, read_ahead: float, slots: Callable[[], int]) -> None:
        """`slots()`: the number of slots that the execution pool has or may get."""
        #: Whether the ledger knows this worker, or does not answer. Before that no store is opened, and jobs that have
        #: come count as waiting for a slot.
        self.registered = False
        #: Whether a request is kept here without waiting for a slot.
        self.is_set_aside: Callable[[Any], bool] = lambda request: False
        self._read_ahead = read_ahead
        self._slots = slots
        self._durations = Durations(read_ahead)
        #: Requests whose durations are recorded when they have ended.
        self._watched: list[Any] = []
        #: Messages that were asked for and have not become requests yet.
        self.coming = 0

    def received(self, request: Any) -> None:
        """Celery made a request of a message."""
        self._durations.came(request.type)
        self._watched.append(request)

    def requests(self) -> list[Any]:
        """The requests that were received and may not be over."""
        return list(self._watched)

    def typical(self, task: str) -> float | None:
        """From any thread: how long a task takes here, in seconds; None: it has not run here yet."""
        return self._durations.known(task)

    def wanted(self, room: int | None, *, by_halves: bool = True) -> int:
        """How many more messages to fetch. `room`, `by_halves`: see :func:`~.amount.amount`."""
        self._record_ended()
        now = time.time()
        running, waiting = [], []
        for request in internals.consumer.requests_here():
            typical = self._durations.typical(request.type)
            if request.time_start is not None and request in state.active_requests:
                ran = now - request.time_start
                # A run that takes longer than usual may go on for as long again.
                running.append(typical - ran if ran < typical else ran)
            elif not (self.registered and self.is_set_aside(request)):
                waiting.append(typical)
        return amount(
            room=room,
            slots=self._slots(),
            running=running,
            waiting=waiting + [self._durations.mixed] * self.coming,
            typical=self._durations.mixed,
            read_ahead=self._read_ahead,
            by_halves=by_halves,
        )

    def _record_ended(self) -> None:
        now, watched, here = time.time(), [], internals.consumer.requests_here()
        for request in self._watched:
            if request in here:
                watched.append(request)
            elif request.time_start is not None:
                self._durations.ran(request.type, max(0.0, now - request.time_start))
        self._watched = watched

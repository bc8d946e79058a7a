"""How many messages a worker can use just now: by the messages it has, and by how long its tasks took.

In the worker's event loop, but for :meth:`Demand.typical`.
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
        """`slots`: how many the execution pool has or may get."""
        #: Whether the ledger knows this worker, or does not answer. Before that no store is opened, and jobs that are
        #: here will start soon.
        self.registered = False
        #: Whether a request is kept here without waiting for a slot.
        self.is_set_aside: Callable[[Any], bool] = lambda request: False
        self._read_ahead = read_ahead
        self._slots = slots
        self._durations = Durations(read_ahead)
        self._watched: list[Any] = []
        #: Messages that were asked for and have not become requests yet.
        self.coming = 0

    def received(self, request: Any) -> None:
        """Celery made a request of a message."""
        self._durations.came(request.type)
        self._watched.append(request)

    def requests(self) -> list[Any]:
        """Those that were received and may not be over."""
        return list(self._watched)

    def typical(self, task: str) -> float | None:
        """From any thread: how long a task takes here, in seconds; None: it has not run here yet."""
        return self._durations.known(task)

    def wanted(self, room: int | None, *, by_halves: bool = True) -> int:
        """`room`: what the prefetch count leaves. `by_halves`: see :func:`~.amount.amount`."""
        self._look_at_ended()
        now = time.time()
        running, waiting = [], []
        for request in internals.consumer.requests_here():
            typical = self._durations.typical(request.type)
            if request.time_start is not None and request in state.active_requests:
                ran = now - request.time_start
                running.append(typical - ran if ran < typical else ran)  # it is late already: perhaps as long again
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

    def _look_at_ended(self) -> None:
        now, watched, here = time.time(), [], internals.consumer.requests_here()
        for request in self._watched:
            if request in here:
                watched.append(request)
            elif request.time_start is not None:
                self._durations.ran(request.type, max(0.0, now - request.time_start))
        self._watched = watched

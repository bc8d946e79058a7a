"""Watches the time of runs where the execution pool does not: see :mod:`celery_orchestration.limits`."""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import TYPE_CHECKING

from celery_orchestration.limits import clocks

if TYPE_CHECKING:
    from celery_orchestration.worker.loop import Loop
    from celery_orchestration.worker.request import OrchestratedRequest
    from celery_orchestration.worker.side import WorkerSide


class Limits:
    def __init__(self, side: WorkerSide, loop: Loop) -> None:
        self._side = side
        self._loop = loop
        self._lock = threading.Lock()
        #: When we look next.
        self._due = math.inf

    def begun(self, request: OrchestratedRequest) -> None:
        """Its code begins. From any thread. Limits that are not ours are Celery's matter, which ignores them here."""
        limit = request.time_limits[0] or request.task.time_limit
        if not limit or request.task.orchestration.timeout_seconds is None:
            return
        with self._lock:
            sooner = clocks.start(request.run, limit, request.time_is_over) < self._due
        if sooner:
            self._side.in_loop(self._look)

    def _look(self) -> None:
        for clock in clocks.ring(monotonic()):
            clock.tell(clock.limit)
        with self._lock:
            due = clocks.next_end()
            if due is None:
                self._due = math.inf
            elif due != self._due:
                self._due = due
                self._loop.later(max(0.0, due - monotonic()), lambda: self._timed(due))

    def _timed(self, due: float) -> None:
        if due == self._due:  # else an earlier one has taken its place
            self._due = math.inf
            self._look()

"""Watches the time of runs where the execution pool does not: see :mod:`celery_orchestration.job.limits`."""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.job.limits import clocks

if TYPE_CHECKING:
    from celery_orchestration.worker.loop import InLoop, Loop
    from celery_orchestration.worker.request import OrchestratedRequest

logger = get_logger(__name__)


class Limits:
    def __init__(self, loop: Loop, in_loop: InLoop) -> None:
        self._loop = loop
        self._in_loop = in_loop
        self._lock = threading.Lock()
        #: When the next look is, by the monotonic clock.
        self._next_look = math.inf
        #: Jobs for which it was already logged that a soft limit has no effect.
        self._warned: set[str] = set()

    def begun(self, request: OrchestratedRequest) -> None:
        """Its code begins. From any thread."""
        hard, soft = request.time_limits
        if soft and not request.task.soft_time_limit and request.task.name not in self._warned:
            # Limits that a task declares are logged when the worker starts.
            self._warned.add(request.task.name)
            logger.warning(
                "A call of job %s has a soft time limit (%g s), which has no effect: the execution pool cannot "
                "interrupt a run. A hard limit works",
                *(request.task.name, soft),
            )
        limit = hard or request.task.time_limit
        if not limit:
            return
        with self._lock:
            sooner = clocks.start(request.run, limit, request.time_is_over) < self._next_look
        if sooner:
            self._in_loop(self._look)

    def over(self, request: OrchestratedRequest) -> None:
        """The run has ended and its code has returned. From any thread."""
        clocks.forget(request.run)

    def _look(self) -> None:
        for clock in clocks.ring(monotonic()):
            clock.on_timeout(clock.limit)
        with self._lock:
            due = clocks.next_end()
            if due is None:
                self._next_look = math.inf
            elif due != self._next_look:
                self._next_look = due
                self._loop.later(max(0.0, due - monotonic()), lambda: self._timed(due))

    def _timed(self, due: float) -> None:
        if due == self._next_look:  # else an earlier look has taken its place
            self._next_look = math.inf
            self._look()

"""Watches the time of runs where the execution pool does not: see :mod:`celery_orchestration.job.limits`."""

from __future__ import annotations

import math
import threading
from time import monotonic
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.job.limits import clocks

if TYPE_CHECKING:
    from celery_orchestration.worker.loop import Loop
    from celery_orchestration.worker.request import OrchestratedRequest
    from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)


class Limits:
    def __init__(self, runtime: WorkerRuntime, loop: Loop) -> None:
        self._runtime = runtime
        self._loop = loop
        self._lock = threading.Lock()
        #: When we look next.
        self._due = math.inf
        #: Jobs of which the log says that a soft limit has no effect.
        self._said: set[str] = set()

    def begun(self, request: OrchestratedRequest) -> None:
        """Its code begins. From any thread."""
        hard, soft = request.time_limits
        if soft and not request.task.soft_time_limit and request.task.name not in self._said:
            # That of a task is said at start.
            self._said.add(request.task.name)
            logger.warning(
                "A call of job %s has a soft time limit (%g s): the execution pool cannot interrupt a run, so it has "
                "no effect. A hard time limit has",
                *(request.task.name, soft),
            )
        limit = hard or request.task.time_limit
        if not limit:
            return
        with self._lock:
            sooner = clocks.start(request.run, limit, request.time_is_over) < self._due
        if sooner:
            self._runtime.in_loop(self._look)

    def _look(self) -> None:
        for clock in clocks.ring(monotonic()):
            clock.on_timeout(clock.limit)
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

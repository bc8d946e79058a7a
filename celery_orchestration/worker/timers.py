"""Wakes the worker when a run in the ledger is due: a call with an ETA, a retry with a countdown, a cool-down.

The ledger says in how many seconds the next run is due. The worker that sent this run to the ledger asks for it at
exactly that time. The other workers ask a moment later, in case that worker is gone, and each at a different time.

Everything here happens in the worker's event loop.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable

from celery_orchestration.worker.loop import Loop
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.state import GateState

#: At most this many due times of runs that it sent to the ledger are remembered by a worker.
MOST_OWN_TIMES = 20_000
#: Seconds after a due time at which other workers ask, at the earliest.
GRACE = 0.1


class DueTimes:
    def __init__(self, state: GateState, loop: Loop, look: Callable[[], None]) -> None:
        """`look()` asks the ledger for runs that are due."""
        self._state = state
        self._loop = loop
        self._look = look
        #: When to ask next, and the due times of runs that this worker sent to the ledger; by the monotonic clock.
        self._next_look = math.inf
        self._own: list[float] = []

    def due_in(self, seconds: float | None) -> None:
        """The ledger says in how many seconds the next run is due; None: no run has a due time."""
        if seconds is not None:
            self._look_at(time.monotonic() + seconds + GRACE * random.uniform(1, 3))

    def remember(self, request: OrchestratedRequest) -> None:
        """The ledger keeps this run, which this worker sent there, until the run is due."""
        if request.not_before is not None and len(self._own) < MOST_OWN_TIMES:
            # A millisecond later, because the ledger counts whole milliseconds.
            heapq.heappush(self._own, time.monotonic() + request.not_before - time.time() + 0.001)
            self._look_at(self._own[0])

    def _look_at(self, at: float) -> None:
        if at < self._next_look and not self._state.stopping:
            self._next_look = at
            self._loop.later(max(0.0, at - time.monotonic()), lambda: self._timed(at))

    def _timed(self, at: float) -> None:
        if self._next_look != at:
            return  # an earlier look has taken its place
        self._next_look = math.inf
        while self._own and self._own[0] <= time.monotonic():
            heapq.heappop(self._own)
        if self._own:
            self._look_at(self._own[0])
        if not self._state.closed:
            self._look()

"""Slots of the execution pool, as the gate sees them.

On prefork, Celery takes a slot of the worker's semaphore before it calls ``execute_using_pool``, and the pool gives the
slot back when the child is done. With the other pools Celery calls it at once, even if the pool is busy. There the gate
itself counts slots, so that no run is admitted long before it can begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from celery_orchestration.worker import internals


class Slots(Protocol):
    def came_with_request(self) -> None:
        """Celery wants a request executed: on prefork that brings a slot."""

    def take(self) -> bool:
        """Takes a slot for the next request, if there is one."""

    def put_back(self) -> None:
        """A slot that was taken is not needed."""

    def not_used(self) -> None:
        """A run was admitted into a slot, but the execution pool did not take it. :meth:`run_ended` follows."""

    def release_spare(self) -> None:
        """No request here needs the slots in hand: they go back to Celery."""

    def take_idle(self) -> bool:
        """Takes an idle slot, for a run that may be handed over, if there is one."""

    def run_ended(self) -> None:
        """The run in a slot is over."""

    def free(self) -> int:
        """The number of idle slots, for people."""


class SemaphoreSlots:
    def __init__(self, controller: Any) -> None:
        self._controller = controller
        #: Slots that came with requests and are not used yet.
        self._in_hand = 0
        self._releasing = False

    def came_with_request(self) -> None:
        self._in_hand += 1

    def take(self) -> bool:
        if self._in_hand <= 0:
            return False
        self._in_hand -= 1
        return True

    def put_back(self) -> None:
        self._in_hand += 1

    not_used = put_back

    def release_spare(self) -> None:
        if self._releasing:
            return  # releasing a slot may call execute_using_pool of the next request, and that comes here again
        self._releasing = True
        try:
            while self._in_hand > 0:
                self._in_hand -= 1
                self._controller._quick_release()
        finally:
            self._releasing = False

    def take_idle(self) -> bool:
        return internals.pool.take_free_slot(self._controller.semaphore)

    def run_ended(self) -> None:
        pass

    def free(self) -> int:
        return int(self._controller.semaphore.value)


class CountedSlots:
    """Plain tasks use the same threads or greenlets, uncounted: the pool queues those that it cannot begin."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """`limit()`: the number of slots. It may change: people may grow and shrink the execution pool."""
        self._limit = limit
        self._used = 0

    def came_with_request(self) -> None:
        pass

    def take(self) -> bool:
        if self._used >= self._limit():
            return False
        self._used += 1
        return True

    def put_back(self) -> None:
        self._used -= 1

    def not_used(self) -> None:
        pass

    def release_spare(self) -> None:
        pass

    def free(self) -> int:
        return max(0, self._limit() - self._used)

    take_idle = take
    run_ended = put_back

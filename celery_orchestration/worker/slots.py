"""Slots of the execution pool, as the gate sees them.

Prefork calls ``execute_using_pool`` with a slot of the worker's semaphore in hand, and the pool gives it back when the
child is done. The other pools call it at once, however busy they are: for them the gate counts by itself, so that a run
is not admitted long before it can begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from celery_orchestration.worker import internals


class Slots(Protocol):
    def arrived(self) -> None:
        """A request was told to execute."""

    def take(self) -> bool:
        """A slot for the next request, if there is one."""

    def back(self) -> None:
        """A slot that was taken is not needed."""

    def unused(self) -> None:
        """A run was admitted into a slot, but the pool did not take it; that it is over is told all the same."""

    def rest(self) -> None:
        """Nothing left to do with slots in hand."""

    def offer(self) -> bool:
        """Takes a slot that is idle, for a run that may be handed over."""

    def ended(self) -> None:
        """The run in a slot is over."""

    def free(self) -> int:
        """How many are idle, for people."""


class SemaphoreSlots:
    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._in_hand = 0
        self._resting = False

    def arrived(self) -> None:
        self._in_hand += 1

    def take(self) -> bool:
        if self._in_hand <= 0:
            return False
        self._in_hand -= 1
        return True

    def back(self) -> None:
        self._in_hand += 1

    unused = back

    def rest(self) -> None:
        if self._resting:
            return  # releasing a slot may call execute_using_pool of the next request, and that comes here again
        self._resting = True
        try:
            while self._in_hand > 0:
                self._in_hand -= 1
                self._controller._quick_release()
        finally:
            self._resting = False

    def offer(self) -> bool:
        return internals.pool.take_free_slot(self._controller.semaphore)

    def ended(self) -> None:
        pass

    def free(self) -> int:
        return int(self._controller.semaphore.value)


class CountedSlots:
    """Plain tasks use the same threads or greenlets uncounted: the pool queues what it cannot begin."""

    def __init__(self, limit: Callable[[], int]) -> None:
        """`limit`: how many there are; people may grow and shrink the execution pool."""
        self._limit = limit
        self._used = 0

    def arrived(self) -> None:
        pass

    def take(self) -> bool:
        if self._used >= self._limit():
            return False
        self._used += 1
        return True

    def back(self) -> None:
        self._used -= 1

    def unused(self) -> None:
        pass

    def rest(self) -> None:
        pass

    def free(self) -> int:
        return max(0, self._limit() - self._used)

    offer = take
    ended = back

"""What the channels of one worker share: whose stores they open, and how much is to be fetched."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_orchestration import queues
from celery_orchestration.worker.fetch.amount import amount
from celery_orchestration.worker.fetch.durations import Durations
from celery_orchestration.worker.fetch.stores import Names

logger = get_logger(__name__)


class Fetcher:
    def __init__(self, worker: str, name: str, names: Names, read_ahead: float, slots: Callable[[], int]) -> None:
        """`worker`, `name`: of the ledger. `slots`: how many the execution pool has or may get."""
        self.worker = worker
        self.name = name
        self.names = names
        #: Whether the ledger knows this worker, or does not answer: before, no store is opened.
        self.registered = False
        #: The stores that this process has open.
        self.open: set[str] = set()
        #: What was acknowledged in stores that could not be ended: they are ended later, without these messages.
        self.acknowledged: dict[str, list[str]] = {}
        #: Whether a request is kept here without waiting for a slot.
        self.is_set_aside: Callable[[Any], bool] = lambda request: False
        self._read_ahead = read_ahead
        self._slots = slots
        self._durations = Durations(read_ahead)
        self._watched: list[Any] = []
        #: Messages that were asked for and have not become requests yet.
        self.coming = 0
        #: Those that wait for messages, in the event loop or in a thread of their own.
        self.pollers: set[Any] = set()
        #: When a store of ours was last seen to be open, by the monotonic clock.
        self.confirmed_at = 0.0
        #: Why Redis does not tell us when messages come; '' if it does.
        self.refusal = ""

    def cannot_track(self, why: str) -> None:
        if not self.refusal:
            logger.warning(
                "Redis does not tell this worker when messages come (%s): it asks ten times a second instead. Allow "
                "it HELLO 3 and CLIENT TRACKING, or connect without a proxy that lacks them",
                why,
            )
        self.refusal = why

    def served_first(self, queue: str) -> bool:
        """Runs that were handed over do not stand behind a backlog."""
        return queues.is_granted(queue)

    def wake(self) -> None:
        """From any thread: there may be room for more messages."""
        for poller in list(self.pollers):
            poller.wake()

    def received(self, request: Any) -> None:
        """Celery made a request of a message."""
        self._durations.came(request.type)
        self._watched.append(request)

    def requests(self) -> list[Any]:
        """Those that were received and may not be over."""
        return list(self._watched)

    def wanted(self, room: int | None) -> int:
        """`room`: what the prefetch count leaves."""
        self._look_at_ended()
        now = time.time()
        running, waiting = [], []
        for request in list(state.reserved_requests):
            typical = self._durations.typical(request.type)
            if request.time_start is not None and request in state.active_requests:
                left = typical - (now - request.time_start)
                running.append(left if left > 0 else self._read_ahead)  # late already: nobody knows
            elif not self.is_set_aside(request):
                waiting.append(typical)
        return amount(
            room=room,
            slots=self._slots(),
            running=running,
            waiting=waiting + [self._durations.mixed] * self.coming,
            typical=self._durations.mixed,
            read_ahead=self._read_ahead,
        )

    def _look_at_ended(self) -> None:
        now, watched = time.time(), []
        for request in self._watched:
            if request in state.reserved_requests:
                watched.append(request)
            elif request.time_start is not None:
                self._durations.ran(request.type, max(0.0, now - request.time_start))
        self._watched = watched

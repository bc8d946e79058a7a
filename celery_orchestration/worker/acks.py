"""Acknowledging several messages at once where that is dear.

On kombu's Redis transport an acknowledgement is a transaction of its own and takes a quarter of the main
process's time. A job's message may be acknowledged a moment late: should the worker die before, the ledger
knows the run, and a copy that comes again is dropped. So the messages of jobs are acknowledged together;
plain tasks' are not touched.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.worker import internals
from celery_orchestration.worker.loop import Loop

logger = get_logger(__name__)

#: How many are acknowledged together, and how many seconds the first of them waits at most.
MOST, LONGEST = 16, 0.02


class Acks:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._messages: list[Any] = []
        self._timer_runs = False

    def take(self, message: Any) -> bool:
        """Whether it was taken; if not, it is acknowledged as ever. In the loop only."""
        if not internals.can_ack_late(message):
            return False
        internals.ack_here(message)
        self._messages.append(message)
        if len(self._messages) >= MOST:
            self.flush()
        elif not self._timer_runs:
            self._timer_runs = True
            self._loop.later(LONGEST, self._timed)
        return True

    def _timed(self) -> None:
        self._timer_runs = False
        self.flush()

    def flush(self) -> None:
        messages, self._messages = self._messages, []
        if not messages:
            return
        try:
            internals.ack_there(messages)
        except Exception as exc:
            # The connection is gone: they come again, and are dropped.
            logger.warning("%d messages could not be acknowledged: %r", len(messages), exc)

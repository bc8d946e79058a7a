"""Acknowledges several messages together on kombu's own Redis transport (`orchestration_fetch="celery"`).

There each acknowledgement is a transaction. One by one they take a quarter of the main process's time. A job's message
may be acknowledged a moment late: if the worker dies before that, the ledger knows the run, and drops the copy that the
broker delivers again. So the messages of jobs are acknowledged together. Plain tasks' messages are left to Celery. With
reliable fetch this declines, and ``fetch/message.py`` and ``fetch/store_channel.py`` acknowledge.

Everything happens in the worker's event loop. :meth:`Acks.acknowledge` may be called from other threads, but returns
False there.
"""

from __future__ import annotations

from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.worker import internals
from celery_orchestration.worker.loop import Loop
from celery_orchestration.worker.state import GateState

logger = get_logger(__name__)

#: How many are acknowledged together, and how many seconds the first of them waits at most.
MOST, LONGEST = 16, 0.02


class Acks:
    def __init__(self, state: GateState, loop: Loop, consumer: Any) -> None:
        """`consumer`: Celery's consumer."""
        self._state = state
        self._loop = loop
        self._consumer = consumer
        self._messages: list[Any] = []
        self._timer_runs = False

    def acknowledge(self, request: Any) -> bool:
        """Acknowledges its message together with others. False if that is not possible here: then Celery does it.
        From any thread."""
        # While this is False, Celery counts acknowledgements, so it has to make them itself.
        restored = getattr(self._consumer, "_maximum_prefetch_restored", True)
        if self._state.stopping or not restored or not self._loop.inside() or not self._take(request.message):
            return False
        request.acknowledged = True
        return True

    def _take(self, message: Any) -> bool:
        if not internals.redis.can_ack_late(message):
            return False
        internals.redis.count_as_acknowledged(message)
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
            internals.redis.delete_acknowledged(messages)
        except Exception as exc:
            logger.warning(
                "%d messages could not be acknowledged: the broker will deliver them again, and the gate drop them: %r",
                len(messages),
                exc,
            )

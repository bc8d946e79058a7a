"""The line to the ledger: carries turns, one at a time.

A thread of its own, so that the worker's event loop never waits for Redis. When the ledger does not answer it closes the
gate, says so loudly, and makes the same call again until there is an answer: a turn that was made already gives the
same answer again.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.ledger import Turn, UnknownWorker

if TYPE_CHECKING:
    from celery_orchestration.worker.gate import Batch
    from celery_orchestration.worker.side import WorkerSide

logger = get_logger(__name__)

#: Seconds: how long to wait before asking again, and how often to say that there is no answer.
FIRST_WAIT, LONGEST_WAIT, SAY_EVERY = 0.05, 2.0, 30.0


class Patience:
    """Waits longer each time, not in step with others; says now and then that it is still waiting."""

    def __init__(self, wait: Callable[[float], object]) -> None:
        self._wait = wait
        self.since: float | None = None
        self._said = 0.0
        self._next = FIRST_WAIT

    def trouble(self, say: Callable[[float], None]) -> None:
        """`say` gets the seconds since it began."""
        now = monotonic()
        if self.since is None:
            self.since = now
        if now - self._said >= SAY_EVERY:
            self._said = now
            say(now - self.since)
        self._wait(self._next * random.uniform(0.5, 1.0))
        self._next = min(self._next * 2, LONGEST_WAIT)

    def over(self) -> float | None:
        """Back to normal; returns how long it took, if there was trouble."""
        since, self.since, self._said, self._next = self.since, None, 0.0, FIRST_WAIT
        return None if since is None else monotonic() - since


class Line(threading.Thread):
    def __init__(self, side: WorkerSide) -> None:
        super().__init__(name="orchestration-line", daemon=True)
        self._side = side
        self._ledger = side.ledger.line()
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._patience = Patience(self._stopped.wait)
        self._number = 0
        #: Whether the last call got no answer: then outcomes may be untold.
        self.down = False

    def carry(self, batch: Batch) -> None:
        self._batches.put(batch)

    def stop(self) -> None:
        self._stopped.set()
        self._batches.put(None)

    def run(self) -> None:
        while (batch := self._batches.get()) is not None:
            self._number += 1
            turn = self._turn(batch)
            if turn is None:
                return
            self._side.in_loop(lambda batch=batch, turn=turn: self._side.gate.answered(batch, turn))  # type: ignore[misc]
        self._ledger.close()

    def _turn(self, batch: Batch) -> Turn | None:
        """Asks until there is an answer; None if the worker stops before that."""
        side = self._side
        while True:
            try:
                turn = self._ledger.turn(
                    side.worker, self._number, side.settings.mode, batch.offered, batch.outcomes, batch.arrivals
                )
            except UnknownWorker:
                side.keeper.register_soon()
                self._stopped.wait(0.05)
            except LedgerError as exc:
                self._trouble(exc)
            else:
                if (took := self._patience.over()) is not None:
                    self.down = False
                    logger.warning("The ledger at %s answers again after %.1f s", side.ledger.address, took)
                    side.in_loop(side.gate.open)
                return turn
            if self._stopped.is_set():
                return None

    def _trouble(self, exc: LedgerError) -> None:
        if not self.down:
            self.down = True
            self._side.in_loop(self._side.gate.close)
        what = "does not answer" if isinstance(exc, LedgerUnavailable) else "answers with an error"
        self._patience.trouble(
            lambda seconds: logger.error(
                "The ledger at %s %s (%s, for %.0f s): the gate is closed, jobs stay in their queues, "
                "what runs goes on and its outcome is kept",
                self._side.ledger.address,
                what,
                exc,
                seconds,
            )
        )

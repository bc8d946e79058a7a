"""Carries turns to the ledger, one at a time.

Normally the event loop itself sends a turn, and reads the answer when it is on the socket. It does not wait for the
answer, except for a millisecond when a slot is idle until the answer comes. At the first error the turn goes to a
thread, which repeats the same call until there is an answer; meanwhile the gate is closed, and the thread logs that.
The ledger gives the same answer to a turn that it has taken already. If the loop cannot listen to a socket (gevent), or
the socket is encrypted (TLS), the thread carries every turn.

:meth:`TurnCarrier.carry` is called in the event loop, or from any thread once the loop is down. Answers are given to
the gate in the event loop. The thread runs from the first connection to the broker until the worker has stopped.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.ledger import Ledger, NewEpoch, NotRegistered, Turn
from celery_orchestration.ledger.connect import SOCKET_TIMEOUT
from celery_orchestration.node.backoff import Backoff
from celery_orchestration.worker.loop import InLoop, Loop
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.turns import Batch

logger = get_logger(__name__)

#: After this many errors in a row the error counts as the ledger's answer to the turn.
MOST_REFUSALS = 4
#: Seconds that the event loop waits for an answer while a slot is idle: twice the duration of a turn. To get the answer
#: through the loop takes a quarter of a turn longer.
IDLE_WAIT = 0.001


class Claims(Protocol):
    """What the carrier needs of :class:`~.epoch.Epoch`."""

    def can_claim(self, epoch: str) -> bool: ...

    def claim(self, ledger: Ledger) -> None: ...


class TakesAnswers(Protocol):
    """What the carrier needs of :class:`~.turns.Turns`."""

    def answered(self, batch: Batch, turn: Turn) -> None: ...

    def refused(self, batch: Batch, exc: Exception) -> None: ...


class TurnCarrier(threading.Thread):
    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        mode: str,
        state: GateState,
        loop: Loop,
        in_loop: InLoop,
        epoch: Claims,
        turns: TakesAnswers,
        *,
        open_gate: Callable[[], None],
        close_gate: Callable[[], None],
        register_again: Callable[[], None],
    ) -> None:
        """`worker`: its id. `register_again()` is called if the ledger does not know this worker any more."""
        super().__init__(name="orchestration-turns", daemon=True)
        self._ledger = ledger.new_connection()
        self._address = ledger.address
        self._worker = worker
        self._mode = mode
        self._state = state
        self._loop = loop
        self._in_loop = in_loop
        self._epoch = epoch
        self._turns = turns
        self._open_gate = open_gate
        self._close_gate = close_gate
        self._register_again = register_again
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait)
        self._number = 0
        #: The turn whose answer the loop expects, and when it was sent.
        self._sent: tuple[Batch, float] | None = None
        self._is_watched = False
        self._listening_to: Any = None
        #: Whether the last call got no answer: then outcomes may be unreported.
        self.down = False

    def carry(self, batch: Batch) -> None:
        """Carries one turn. Call it again only when that turn was answered."""
        self._number += 1
        if not (self._loop.inside() and self._send(batch)):
            self._by_thread(batch)
        elif batch.offered and not batch.arrivals and self._ledger.has_answer(IDLE_WAIT):
            self._readable()

    def stop(self) -> None:
        self._stopped.set()
        self._batches.put(None)

    def _arguments(self, batch: Batch) -> tuple[Any, ...]:
        return self._worker, self._number, self._mode, batch.offered, batch.outcomes, batch.arrivals

    # -- in the event loop ------------------------------------------------------------------------

    def _send(self, batch: Batch) -> bool:
        socket = self._ledger.socket
        if self.down or socket is None or self._state.stopping or isinstance(socket, ssl.SSLSocket):
            return False  # the thread connects
        if socket is not self._listening_to:
            if not self._loop.listen(socket, self._readable):
                return False
            self._listening_to = socket
        try:
            self._ledger.send_turn(*self._arguments(batch))
        except Exception:
            return False  # the thread calls again, and handles the error
        self._sent = (batch, monotonic())
        self._watch()
        return True

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            self._loop.later(SOCKET_TIMEOUT, self._check_for_answer)

    def _readable(self) -> None:
        sent, self._sent = self._sent, None
        turn = self._ledger.receive_turn() if sent is not None else None
        if sent is None:
            self._hang_up()  # no turn was sent, so Redis has closed the connection
        elif turn is None:
            self._by_thread(sent[0])
        else:
            self._turns.answered(sent[0], turn)

    def _check_for_answer(self) -> None:
        """A Redis that hangs sends nothing, so listening alone would not notice it."""
        self._is_watched = False
        if self._sent is None:
            return
        batch, since = self._sent
        if monotonic() - since < SOCKET_TIMEOUT:
            self._watch()
        else:
            self._sent = None
            self._hang_up()
            self._by_thread(batch)

    def _hang_up(self) -> None:
        self._stop_listening()
        self._ledger.close()

    def _stop_listening(self) -> None:
        if self._listening_to is not None:
            self._listening_to = None
            self._loop.unlisten()

    def give_to_thread(self) -> None:
        """The event loop is down for good."""
        self._stop_listening()
        sent, self._sent = self._sent, None
        if sent is not None:
            self._ledger.close()  # with its unread reply: the thread makes the same call again
            self._by_thread(sent[0])

    # -- in the thread ------------------------------------------------------------------------------

    def _by_thread(self, batch: Batch) -> None:
        if self._loop.inside():
            self._stop_listening()
        self._batches.put(batch)

    def run(self) -> None:
        while (batch := self._batches.get()) is not None:
            turn = self._turn(batch)
            if turn is None:
                return
            if isinstance(turn, Turn):
                self._give(lambda batch=batch, turn=turn: self._turns.answered(batch, turn))  # type: ignore[misc]
            else:
                self._give(lambda batch=batch, exc=turn: self._turns.refused(batch, exc))  # type: ignore[misc]
        self._ledger.close()

    def _give(self, answer: Callable[[], None]) -> None:
        try:
            self._in_loop(answer)
        except Exception:
            logger.exception("An answer of the ledger could not be processed; the next turn follows")

    def _turn(self, batch: Batch) -> Turn | LedgerError | None:
        """Asks until there is an answer; None if the worker stops before that. An error that repeats is an answer,
        too."""
        refusals, claiming = 0, False
        while True:
            try:
                if claiming:
                    self._epoch.claim(self._ledger)
                    # Not again if the turn's reply is lost: the claim would lack the runs that this turn has started.
                    claiming = False
                turn = self._ledger.turn(*self._arguments(batch))
            except NotRegistered:
                self._register_again()
                self._stopped.wait(0.05)
            except NewEpoch as exc:
                claiming = self._epoch.can_claim(exc.epoch)
                if not claiming:
                    self._register_again()
                    self._stopped.wait(0.05)
            except LedgerError as exc:
                refusals = 0 if isinstance(exc, LedgerUnavailable) else refusals + 1
                if refusals >= MOST_REFUSALS:
                    self._recovered()
                    return exc
                self._failed(exc)
            except Exception as exc:
                logger.exception("A turn cannot be sent to the ledger; its parts are tried one by one")
                return LedgerError(repr(exc))
            else:
                self._recovered()
                return turn
            if self._stopped.is_set():
                return None

    def _recovered(self) -> None:
        took = self._backoff.succeeded()
        if took is not None:
            self.down = False
            logger.warning("The ledger at %s answers again after %.1f s: the gate opens", self._address, took)
            self._in_loop(self._open_gate)

    def _failed(self, exc: LedgerError) -> None:
        if not self.down:
            self.down = True
            self._in_loop(self._close_gate)
        what = "does not answer" if isinstance(exc, LedgerUnavailable) else "answers with an error"
        self._backoff.failed(
            lambda seconds: logger.error(
                "The ledger at %s %s (%s, for %.0f s): the gate is closed, jobs stay in their queues, "
                "running ones go on and their outcomes are kept",
                self._address,
                what,
                exc,
                seconds,
            )
        )

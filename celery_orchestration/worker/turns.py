"""Turns: one round trip to the ledger reports outcomes, asks for arrivals and offers idle slots.

:class:`Turns` collects the contents of the next turn, gives them to the carrier (``carrier.py``) and passes the answers
on: about outcomes to the settlement, about arrivals and handed-over runs to the admission. One turn is under way at a
time.

Everything here happens in the worker's event loop while that runs. When it is down, any thread may call
:meth:`Turns.request`, :meth:`Turns.answered` and :meth:`Turns.flush`; the lock is for that time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from celery.utils.log import get_logger

from celery_orchestration.ledger import Arrival, Disabled, Ending, Grant, Outcome, Turn
from celery_orchestration.worker.admission import ASK_AGAIN_SECONDS, Admission, Asking, Starting
from celery_orchestration.worker.execution import Execution
from celery_orchestration.worker.loop import Loop
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.settlement import OnAnswer, Settlement
from celery_orchestration.worker.slots import Slots
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.timers import DueTimes

logger = get_logger(__name__)

#: Most slots offered to the ledger in one turn.
MOST_OFFERED = 4


@dataclass(slots=True)
class Batch:
    """One turn: the outcomes that it reports, the arrivals that it asks about, and the requests of these arrivals."""

    outcomes: list[Outcome] = field(default_factory=list)
    #: For each outcome, the function that gets the ledger's answer.
    callbacks: list[OnAnswer] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    requests: list[OrchestratedRequest] = field(default_factory=list)
    #: How many idle slots it offers.
    offered: int = 0
    #: Its slots were given back, because the ledger does not answer.
    slots_given_back: bool = False
    #: How many of the requests have a start time, and so no slot.
    scheduled: int = 0
    #: When it was made, by the monotonic clock: the ledger's answers are not older.
    asked: float = field(default_factory=time.monotonic)

    @property
    def slots(self) -> int:
        """The number of slots that are idle until it is answered."""
        return 0 if self.slots_given_back else self.offered + len(self.requests) - self.scheduled

    def add(self, asking: Sequence[Asking]) -> None:
        for request, arrival in asking:
            self.arrivals.append(arrival)
            self.requests.append(request)

    def parts(self) -> list[Batch]:
        """One part for each outcome and for each arrival, and one for the slots that were only offered."""
        ends = [Batch([o], [then]) for o, then in zip(self.outcomes, self.callbacks, strict=True)]
        asks = [
            Batch([], [], [a], [r], 0, self.slots_given_back, int(a.eta_ms is not None))
            for a, r in zip(self.arrivals, self.requests, strict=True)
        ]
        offers = [Batch(offered=self.offered, slots_given_back=self.slots_given_back)] if self.offered else []
        return [*ends, *asks, *offers]


class Publishes(Protocol):
    def publish(self, grants: Sequence[Grant]) -> None: ...

    def end(self, endings: Sequence[Ending]) -> None: ...


class Turns:
    def __init__(
        self,
        state: GateState,
        loop: Loop,
        slots: Slots,
        admission: Admission,
        execution: Execution,
        settlement: Settlement,
        due_times: DueTimes,
        publisher: Publishes,
        *,
        carry: Callable[[Batch], None],
        jobs_disabled: Callable[[Sequence[Disabled]], None],
    ) -> None:
        """`carry(batch)` makes a turn; then :meth:`answered` or :meth:`refused` is called."""
        self._state = state
        self._loop = loop
        self._slots = slots
        self._admission = admission
        self._execution = execution
        self._settlement = settlement
        self._due_times = due_times
        self._publisher = publisher
        self._carry = carry
        self._jobs_disabled = jobs_disabled
        self._lock = threading.RLock()  # contended only while the worker stops
        self._under_way: Batch | None = None
        #: Parts of a turn that the ledger answered with an error, to be tried one by one.
        self._suspects: deque[Batch] = deque()
        self._flush_is_due = False
        #: The next turn is made even if it reports and asks nothing.
        self._even_if_empty = False
        #: How many runs wait in the ledger, as of the last turn.
        self.waiting = 0

    # -- a turn is made -----------------------------------------------------------------------------

    def request(self) -> None:
        """Makes a turn after the current events: the pool frees a slot before it reports the outcome of the run in it,
        and both belong in one turn."""
        if self._state.stopping:
            self.flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.soon(self.flush)

    def request_even_if_empty(self) -> None:
        self._even_if_empty = True
        self.request()

    def request_with_offer(self) -> None:
        """Makes a turn even if there is nothing to report or to ask. It offers idle slots, because a run may wait."""
        self.waiting = max(self.waiting, 1)
        self.request_even_if_empty()

    def flush(self) -> None:
        with self._lock:
            self._send()

    def _send(self) -> None:
        self._flush_is_due = False
        if self._under_way is None and self._has_work():
            self._under_way = self._suspects.popleft() if self._suspects else self._next_batch()
            self._carry(self._under_way)

    def _has_work(self) -> bool:
        asks = self._admission.has_questions and not self._state.draining
        return bool(self._suspects or self._settlement.has_unsent or self._even_if_empty or asks)

    def _next_batch(self) -> Batch:
        batch = Batch()
        for outcome, then in self._settlement.take_unsent():
            batch.outcomes.append(outcome)
            batch.callbacks.append(then)
        if not self._state.draining:
            batch.add(self._admission.take_asking())
            scheduled = self._admission.take_scheduled()
            batch.add(scheduled)
            batch.scheduled = len(scheduled)
            while self.waiting and batch.offered < MOST_OFFERED and self._slots.take_idle():
                batch.offered += 1
        self._even_if_empty = False
        return batch

    # -- a turn is answered -------------------------------------------------------------------------

    def answered(self, batch: Batch, turn: Turn) -> None:
        with self._lock:
            starting, slots = self._pass_on(batch, turn)
        # Without the lock: under gevent this may wait for a greenlet whose end wants the lock.
        self._admission.start(starting, slots, batch.asked)
        if self._has_work():
            self.request()

    def _pass_on(self, batch: Batch, turn: Turn) -> tuple[list[Starting], int]:
        """Returns the runs that start, and the number of slots for them."""
        self._under_way = None
        self.waiting = turn.waiting
        self._even_if_empty = turn.more
        self._settlement.answered(batch.outcomes, batch.callbacks, turn.settled)
        slots = batch.slots
        starting = self._admission.answered(batch.requests, turn.answers)
        for start in turn.starts:
            handed_over = self._execution.request_of(start)
            if handed_over is not None:
                starting.append((handed_over, start.id, start.fence))
        for request, run_id, _ in starting if turn.traces else ():
            request.waits = turn.traces.get(run_id, "")
        self._publisher.publish(turn.grants)
        self._publisher.end(turn.endings)
        self._due_times.due_in(turn.due)
        if turn.disabled:
            self._jobs_disabled(turn.disabled)
        return starting, slots

    def refused(self, batch: Batch, exc: Exception) -> None:
        """The ledger repeatedly answers this turn with an error. Each of its parts is tried alone. The part that causes
        the error is tried again later, so that the others do not wait for it."""
        parts = batch.parts()
        with self._lock:
            self._under_way = None
            if len(parts) > 1:
                self._suspects.extend(parts)
            else:
                self._try_later(batch, exc)
        if len(parts) == 1:
            self._admission.start([], batch.slots, batch.asked)
        self.request()

    def _try_later(self, batch: Batch, exc: Exception) -> None:
        for outcome, then in zip(batch.outcomes, batch.callbacks, strict=True):
            logger.error(
                "The ledger refuses to record that run %s %s (it is reported again in %.0f s): %s",
                outcome.id,
                outcome.outcome,
                ASK_AGAIN_SECONDS,
                exc,
            )
            if not self._state.stopping:
                again = (outcome, then)
                self._loop.later(ASK_AGAIN_SECONDS, lambda again=again: self._settlement.send_again(*again))  # type: ignore[misc]
        for request in batch.requests:
            logger.error(
                "The ledger refuses to decide on run %s of job %s (it is asked again in %.0f s): %s",
                request.id,
                request.task.name,
                ASK_AGAIN_SECONDS,
                exc,
            )
            self._admission.ask_again(request)

    # -- the ledger or the worker goes away ---------------------------------------------------------

    def give_slots_back(self) -> None:
        """The ledger does not answer the turn that is under way: until it does, others may use the turn's slots."""
        batch = self._under_way
        if batch is not None and not batch.slots_given_back:
            for _ in range(batch.slots):
                self._slots.put_back()
            batch.slots_given_back = True

    def wait_until_reported(self, deadline: float) -> bool:
        """Waits until the ledger has taken every outcome. From any thread, once the event loop is down."""
        while True:
            with self._lock:  # its holder may be telling Celery what the ledger has answered
                if not (self._settlement.has_unsent or self._suspects or self._under_way is not None):
                    return True
            if time.monotonic() > deadline:
                return False
            self._loop.drain()  # an answer may have come just after the loop went down
            self.flush()
            time.sleep(0.01)

"""The gate in the worker: every job's request comes here before it is executed.

A run's path through the worker, in the order of these files:

1. ``request.py``: Celery's request for a job. Celery tells it to execute (``_through_the_gate``), and how its code
   ended (``_settling``, ``on_failure``).
2. ``admission.py``: requests get slots in the order of their rank, and ask (``arrivals.py``) whether they may start.
3. ``turns.py``: one round trip takes outcomes and questions to the ledger; ``carrier.py`` makes it.
4. ``execution.py``: runs that may start go to the execution pool.
5. ``settlement.py``: runs end, and their outcomes are kept until the ledger has taken them.

The question goes from request through admission, turns and carrier to the ledger. The answer comes back through turns
and admission to execution. The end of the run goes through request and settlement to turns. ``slots.py`` counts free
slots.

Beside it: ``timers.py`` (runs with a start time), ``sharing.py`` (handed-over runs that wait for a slot here),
``acks.py`` (acknowledges messages together, without reliable fetch), ``limits.py`` (time limits where the pool does not
enforce them).

This file connects the parts, and opens, closes and stops the gate. While the ledger cannot be reached the gate is
closed: requests stay here, unacknowledged, and their slots are given back; runs go on, and their outcomes are kept.
Requests see only :attr:`Gate.for_requests`.

:meth:`Gate.begin_drain` may be called in a signal handler or from any thread; the other methods are called in the
worker's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from celery import Celery
from celery.utils.functional import noop

from celery_orchestration.ledger import Disabled
from celery_orchestration.worker.acks import Acks
from celery_orchestration.worker.admission import Admission
from celery_orchestration.worker.arrivals import Arrivals, Jobs
from celery_orchestration.worker.deadline import Deadline
from celery_orchestration.worker.execution import Execution
from celery_orchestration.worker.job_request import RequestGate
from celery_orchestration.worker.limits import Limits
from celery_orchestration.worker.loop import InLoop, Loop
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.settlement import Settlement
from celery_orchestration.worker.sharing import Copies, GrantedQueues, Sharing
from celery_orchestration.worker.slots import Slots
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.timers import DueTimes
from celery_orchestration.worker.turns import Batch, Publishes, Turns


class PublishesAndCopies(Publishes, Copies, Protocol): ...


class Gate:
    def __init__(
        self,
        *,
        state: GateState,
        loop: Loop,
        in_loop: InLoop,
        slots: Slots,
        consumer: Any,
        app: Celery,
        accept: Any,
        jobs: Jobs,
        strict_priority: bool,
        granted_queues: GrantedQueues,
        publisher: PublishesAndCopies,
        notices: Notices,
        deadline: Deadline | None,
        limits: Limits | None,
        ledger_address: object,
        carry: Callable[[Batch], None],
        register_again: Callable[[], None],
        jobs_disabled: Callable[[Sequence[Disabled]], None],
        begin_drain: Callable[[], None],
        hurry_drain: Callable[[], None],
    ) -> None:
        """`deadline`: for runs that stop when the worker's lease is lost; None if no job asks for that. `limits`:
        watches time limits; None if the execution pool does that."""
        self.state = state
        self._limits = limits
        self._begin_drain = begin_drain
        self._loop = loop
        self._slots = slots

        # Admission and turns are built below; parts that are built before them call them through these functions.
        def request_turn() -> None:
            self.turns.request()

        def run_ended() -> None:
            self.admission.run_ended()

        def look_for_due_runs() -> None:
            self.turns.request_with_offer()

        self.acks = Acks(state, loop, consumer)
        self.due_times = DueTimes(state, loop, look_for_due_runs)
        self._sharing = Sharing(state, granted_queues, publisher)
        arrivals = Arrivals(jobs, consumer.pool, lambda: granted_queues.consumers, strict_priority)
        self.settlement = Settlement(consumer.pool, arrivals, notices, in_loop, request_turn, run_ended)
        self.execution = Execution(state, loop, slots, consumer, app, accept, jobs, notices, deadline)
        self.admission = Admission(
            state,
            loop,
            slots,
            consumer,
            arrivals,
            self.execution,
            self.settlement,
            self.due_times,
            self._sharing,
            ledger_address=ledger_address,
            request_turn=request_turn,
            register_again=register_again,
        )
        self.turns = Turns(
            state,
            loop,
            slots,
            self.admission,
            self.execution,
            self.settlement,
            self.due_times,
            publisher,
            carry=carry,
            jobs_disabled=jobs_disabled,
        )
        #: What requests call.
        self.for_requests = RequestGate(
            is_closed=lambda: state.closed,
            is_draining=lambda: state.draining,
            slot_given=self.admission.slot_given,
            schedule=self.admission.schedule,
            ended_before_start=self.settlement.ended_before_start,
            begun=limits.begun if limits is not None else noop,
            timed_out=self.settlement.timed_out,
            settle=self._settle,
            acknowledge=self.acks.acknowledge,
            process_of=self.execution.process_of,
            when_gone=self.execution.when_gone,
            ended_by_deadline=deadline.has_passed_since if deadline is not None else lambda _: False,
            hurry_drain=hurry_drain,
        )

    # -- requests -----------------------------------------------------------------------------------

    def message_received(self, request: Any) -> None:
        """Celery made a request of a message, perhaps that of a plain task."""
        if isinstance(request, OrchestratedRequest) and request.gate is self.for_requests:
            self.admission.message_received(request)

    def _settle(self, request: OrchestratedRequest, outcome: str, then: Callable[[str], None] | None) -> None:
        """From any thread."""
        if self._limits is not None:
            self._limits.over(request)
        self.settlement.settle(request, outcome, then)

    # -- the ledger comes and goes ------------------------------------------------------------------

    def close(self) -> None:
        """The ledger does not answer: slots are given back, requests stay."""
        self.state.closed = True
        self.turns.give_slots_back()
        self.admission.give_slots_back()
        self._slots.release_spare()

    def open(self) -> None:
        if self.state.closed:
            self.state.closed = False
            self.admission.ask_for_slots()
            self.admission.serve()
            # How many runs wait is not known yet: the slots of a new worker are offered at once.
            self.turns.request_with_offer()

    # -- the broker comes and goes ------------------------------------------------------------------

    def connection_lost(self) -> None:
        self.admission.connection_lost()

    def pool_flushed(self, lost: Iterable[OrchestratedRequest]) -> None:
        """The connection was lost, and the execution pool has dropped these runs."""
        self.connection_lost()
        self.settlement.return_runs(lost)

    def reconnected(self) -> None:
        self._sharing.reconnected()
        self.settlement.return_runs(self.execution.reconnected())
        if not self.state.closed:
            self.admission.ask_for_slots()

    # -- the worker stops ---------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """The worker was asked to stop."""
        self.state.draining = True
        self._begin_drain()

    def stop(self) -> None:
        """The event loop is down. Runs that have not begun go back, also those that the ledger still hands over."""
        self.state.stopping = True
        self._loop.drain()
        self.acks.flush()
        admitted = self.admission.stop()
        self.settlement.return_runs([*admitted, *self.execution.take_rate_limited()])
        self.settlement.take_back_from_pool()
        self.turns.flush()

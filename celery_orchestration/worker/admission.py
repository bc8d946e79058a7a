"""Requests come in, get slots in the order of their rank, and are started or dropped as the ledger answers.

Celery makes a request of each message and calls :meth:`Admission.message_received`. When it wants the request executed
it calls :meth:`Admission.slot_given`: that slot goes to the first request in rank, which asks the ledger in the next
turn (``turns.py``). A run that may start goes to the execution pool (``execution.py``). If a run must wait, the ledger
has stored it: its message is acknowledged, and its slot goes to the next request.

While the gate is closed, requests stay here unacknowledged, without a slot.

Everything here happens in the worker's event loop. When the worker stops, :meth:`Admission.run_ended` and
:meth:`Admission.start` may be called from any thread.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery.app.task import Context
from celery.utils.log import get_logger
from celery.worker.request import task_ready

from celery_orchestration.ledger import Answer, Arrival
from celery_orchestration.worker import internals
from celery_orchestration.worker.arrivals import HANDED_OVER, Arrivals
from celery_orchestration.worker.execution import Execution
from celery_orchestration.worker.loop import Loop, guarded
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.settlement import Settlement
from celery_orchestration.worker.sharing import SHARE_AFTER, Sharing
from celery_orchestration.worker.slots import Slots
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.timers import DueTimes

logger = get_logger(__name__)

#: A request whose run starts, the id of the run and its fence.
Starting = tuple[OrchestratedRequest, str, str]
#: A request, and the question that the ledger is asked for it.
Asking = tuple[OrchestratedRequest, Arrival]

#: Seconds until a request asks again if the ledger did not take its run in because of an error or a full Redis.
ASK_AGAIN_SECONDS = 5.0
#: The same if the ledger does not know the job yet, or keeps this worker free for another run.
ASK_SOON_SECONDS = 1.0
#: Most requests with a start time that one turn takes to the ledger.
MOST_SCHEDULED = 32
#: Seconds between log lines about a full Redis.
LOG_FULL_EVERY = 30.0


@dataclass(order=True, slots=True)
class Reserved:
    """A request that waits for a slot; the lowest gets the next one."""

    rank: int
    number: int
    request: OrchestratedRequest = field(compare=False)


class Admission:
    def __init__(
        self,
        state: GateState,
        loop: Loop,
        slots: Slots,
        consumer: Any,
        arrivals: Arrivals,
        execution: Execution,
        settlement: Settlement,
        due_times: DueTimes,
        sharing: Sharing,
        *,
        ledger_address: object,
        request_turn: Callable[[], None],
        register_again: Callable[[], None],
    ) -> None:
        """`consumer`: Celery's consumer. `register_again()` is called if the ledger lacks a job of this worker."""
        self._state = state
        self._loop = loop
        self._slots = slots
        self._consumer = consumer
        self._arrivals = arrivals
        self._execution = execution
        self._settlement = settlement
        self._due_times = due_times
        self._sharing = sharing
        self._ledger_address = ledger_address
        self._request_turn = request_turn
        self._register_again = register_again
        #: A heap.
        self._reserved: list[Reserved] = []
        self._numbers = 0
        #: Requests that have a slot, and ask the ledger in the next turn.
        self._asking: list[OrchestratedRequest] = []
        #: Requests with a start time: they wait in the ledger, and need no slot to ask it.
        self._scheduled: list[OrchestratedRequest] = []
        #: Reserved requests for which Celery is asked for a slot again when the gate opens.
        self._stalled: list[OrchestratedRequest] = []
        #: Requests that had not asked when the worker stopped.
        self._unbegun: list[OrchestratedRequest] = []
        self._logged_full = -LOG_FULL_EVERY

    # -- requests come in ---------------------------------------------------------------------------

    def message_received(self, request: OrchestratedRequest) -> None:
        """Celery made a request of a message. It is reserved this early so that it goes before lower-ranked ones."""
        if request.stage is None:
            self._reserve(request)
            if request.grant:
                self._loop.later(SHARE_AFTER, lambda: self._sharing.share(request))

    def _reserve(self, request: OrchestratedRequest) -> None:
        request.stage = "reserved"
        self._numbers += 1
        heapq.heappush(self._reserved, Reserved(self._arrivals.rank_of(request), self._numbers, request))

    def slot_given(self, request: OrchestratedRequest) -> None:
        """Celery wants a request executed: its slot goes to the first in rank, which need not be this one."""
        if request.stage is None:
            self._reserve(request)
        if self._state.stopping:
            return  # a timer of Celery's was still due
        self._slots.came_with_request()
        if self._state.closed:
            self._stalled.append(request)
        self.serve()

    def schedule(self, request: OrchestratedRequest, eta: float) -> None:
        """A request that is not to start before a time waits in the ledger, not here."""
        request.stage, request.not_before = "asked", eta
        self._scheduled.append(request)
        self._request_turn()

    def serve(self) -> None:
        """Gives slots to the requests that are first in rank, and returns unneeded slots to Celery."""
        state = self._state
        while self._reserved and not state.closed and not state.draining and self._slots.take():
            request = heapq.heappop(self._reserved).request
            request.stage = "asked"
            if request.fence is not None:
                self._execution.execute(request)
            else:
                self._asking.append(request)
        if self._asking:
            self._request_turn()
        self._slots.release_spare()
        if self._sharing.active and not (self._reserved and self._reserved[0].rank == HANDED_OVER):
            self._sharing.end()

    def ask_for_slots(self) -> None:
        """Has Celery find slots for the requests that wait without one."""
        stalled, self._stalled = self._stalled, []
        for request in stalled:
            self._consumer.on_task_request(request)

    # -- the ledger is asked ------------------------------------------------------------------------

    @property
    def has_questions(self) -> bool:
        return bool(self._asking or (self._scheduled and not self._state.closed))

    def take_asking(self) -> list[Asking]:
        """For a turn: requests with a slot."""
        asking, self._asking = self._asking, []
        questions = []
        for request in asking:
            arrival = self._arrival(request)
            if arrival is None:
                self._slots.put_back()
            else:
                questions.append((request, arrival))
        return questions

    def take_scheduled(self) -> list[Asking]:
        """For a turn: requests with a start time, and without a slot."""
        most = 0 if self._state.closed else MOST_SCHEDULED
        scheduled, self._scheduled = self._scheduled[:most], self._scheduled[most:]
        asking = [(request, self._arrival(request)) for request in scheduled]
        return [(request, arrival) for request, arrival in asking if arrival is not None]

    def _arrival(self, request: OrchestratedRequest) -> Arrival | None:
        try:
            return self._arrivals.of(request)
        except Exception as exc:
            logger.error("Run %r of job %s fails: the gate cannot be asked: %s", request.id, request.task.name, exc)
            guarded(self._fail, request, exc)
            return None

    @staticmethod
    def _fail(request: OrchestratedRequest, exc: Exception) -> None:
        task_ready(request)
        try:
            request.task.backend.mark_as_failure(
                request.id, exc, request=Context(request.request_dict), store_result=request.store_errors
            )
        finally:
            request.acknowledge()

    # -- the ledger answers -------------------------------------------------------------------------

    def answered(self, requests: Sequence[OrchestratedRequest], answers: Sequence[Answer]) -> list[Starting]:
        """Returns the runs that may start."""
        starting = []
        for request, answer in zip(requests, answers, strict=True):
            if answer.what == "start":
                if answer.detail:
                    logger.info(
                        "Run %s of job %s would have waited: %s", answer.run, request.task.name, " ".join(answer.detail)
                    )
                starting.append((request, answer.run, answer.fence))
            elif answer.what in ("unknown", "full", "kept"):
                self._not_taken_in(request, answer.what)
            else:
                self._due_times.remember(request)
                guarded(self._drop_message, request, answer.what, answer.detail)
        return starting

    def _not_taken_in(self, request: OrchestratedRequest, why: str) -> None:
        """The ledger cannot take the run in now: the request stays here, unacknowledged, and asks again."""
        if why == "full":
            self._log_full()
            return self.ask_again(request)
        if why == "unknown":
            self._register_again()
        return self.ask_again(request, ASK_SOON_SECONDS)

    def _log_full(self) -> None:
        now = time.monotonic()
        if now - self._logged_full >= LOG_FULL_EVERY:
            self._logged_full = now
            logger.error(
                "The Redis at %s is full: no new run is accepted, messages stay in their queues; waiting and running "
                "runs continue. Give it more memory (maxmemory)",
                self._ledger_address,
            )

    def ask_again(self, request: OrchestratedRequest, seconds: float = ASK_AGAIN_SECONDS) -> None:
        request.stage = None
        eta = request.not_before
        if eta is not None:
            self._loop.later(seconds, lambda: self.schedule(request, eta))
        else:
            self._loop.later(seconds, lambda: self._consumer.on_task_request(request))

    @staticmethod
    def _drop_message(request: OrchestratedRequest, what: str, detail: Iterable[str]) -> None:
        """The ledger or another worker has the run: the broker's copy is not needed any more."""
        if what == "drop" and not request.grant:
            logger.warning(
                "A copy of a message of job %s was dropped: the ledger knows this call of task id %s already (%s)",
                request.task.name,
                request.id,
                " ".join(detail),
            )
        task_ready(request)
        request.acknowledge()

    def start(self, starting: Iterable[Starting], slots: int, admitted: float) -> None:
        """Executes runs that may start, in these slots; those without a slot wait for one. `admitted`: the ledger's
        answer is not older than this, by the monotonic clock."""
        starting = list(starting)
        for request, run_id, fence in starting:
            # All of them first: under gevent it may take a while to execute one, and a new epoch may begin meanwhile.
            self._settlement.started(request, run_id, fence, admitted)
        for request, _, _ in starting:
            if request.settled:  # meanwhile the worker has stopped
                continue
            if self._state.draining:
                request.settle("returned")
            elif self._execution.waits_for_rate_limit(request):
                continue
            elif slots > 0:
                slots -= 1
                self._execution.execute(request)
            else:
                self._reserve(request)
                self._stalled.append(request)
        for _ in range(slots):
            self._slots.put_back()
        if not self._state.closed and self._stalled:
            self.ask_for_slots()
        self.serve()

    def run_ended(self) -> None:
        """A run is over: its outcome and the next question go in one turn."""
        if not self._state.stopping:
            self._slots.run_ended()
        self._request_turn()
        if self._reserved and not self._state.stopping:
            self.serve()

    # -- what others ask ----------------------------------------------------------------------------

    def rate_limited(self) -> Iterator[OrchestratedRequest]:
        """Runs that Celery's rate limit holds back here, in the order in which it lets them go."""
        held_back = internals.consumer.rate_limited(self._consumer)
        return (request for request in held_back if isinstance(request, OrchestratedRequest))

    def fetched(self) -> Iterator[OrchestratedRequest]:
        """Fetched runs that wait for a slot: the ledger has not been asked about them."""
        return (entry.request for entry in sorted(self._reserved) if entry.request.fence is None)

    def has_set_aside(self, request: Any) -> bool:
        """Whether a request is kept here without waiting for a slot, because the ledger cannot take it in now."""
        if not isinstance(request, OrchestratedRequest) or request.fence is not None:
            return False
        return self._state.closed or request.stage is None

    def free_slots(self) -> int:
        return self._slots.free()

    # -- the ledger, the broker or the worker goes away ---------------------------------------------

    def give_slots_back(self) -> None:
        """The gate closes: requests that were about to ask the ledger wait for a slot again."""
        for request in self._asking:
            request.stage = None
            self._reserve(request)
            self._stalled.append(request)
            self._slots.put_back()
        self._asking = []

    def connection_lost(self) -> None:
        """The broker connection is lost, and with it all claims to slots. Requests that were not admitted are dropped:
        the broker delivers their messages again. Admitted requests ask for a slot again."""
        for entry in self._reserved:
            if entry.request.fence is None:
                entry.request.stage = "dropped"
        self._reserved = [entry for entry in self._reserved if entry.request.stage != "dropped"]
        heapq.heapify(self._reserved)
        self._stalled = [entry.request for entry in self._reserved]
        self._scheduled.clear()

    def stop(self) -> list[OrchestratedRequest]:
        """No request here starts any more. Returns the runs that were admitted and waited for a slot."""
        reserved = [entry.request for entry in self._reserved]
        admitted = [request for request in reserved if request.fence is not None]
        not_asked = [request for request in reserved if request.fence is None]
        self._unbegun = [*not_asked, *self._asking, *self._scheduled]
        self._reserved.clear()
        self._asking.clear()
        self._scheduled.clear()
        self._stalled.clear()
        return admitted

    def hand_back(self) -> None:
        """Fetching has stopped: messages that were not begun go back to their queues now. Otherwise they would go back
        only when the runs here have ended."""
        unbegun, self._unbegun = self._unbegun, []
        for request in reversed(unbegun):  # on Redis, each goes to the front of its queue
            if not request.acknowledged and request.message.channel is not None:
                task_ready(request)
                guarded(request.message.requeue)
                request.acknowledged = True

"""Runs end: the last part of a run's path through the worker.

:class:`Settlement` knows the runs that started here. When a run is over and its code gone, the next turn reports its
outcome, which is kept until the ledger has taken it. Three functions named `settle` follow each other: that of the
request (``request.py``) makes sure that it happens once, the one here keeps the outcome, and the one in
``lua/transitions.lua`` records it if the fence is the latest. The last outcomes that the ledger took are kept as well:
in a new epoch (see ``epoch.py``) it may have forgotten them. Runs whose outcomes it has not taken are claimed then.

:meth:`Settlement.settle`, :meth:`Settlement.report` and :meth:`Settlement.claims` may be called from any thread, and
:attr:`Settlement.runs` may be read from any; the rest happens in the worker's event loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.job.envelope import HEADER
from celery_orchestration.job.limits import Run
from celery_orchestration.ledger import Claim, Discarded, Outcome, TimedOut, keys
from celery_orchestration.worker import internals
from celery_orchestration.worker.arrivals import Arrivals
from celery_orchestration.worker.loop import InLoop, guarded
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.publications import publication_of
from celery_orchestration.worker.request import OrchestratedRequest

logger = get_logger(__name__)

#: A function that gets the ledger's answer to an outcome: ok, refused, dead ...
OnAnswer = Callable[[str], None] | None

#: How many outcomes are kept after the ledger took them.
MOST_REPORTED = 1000


class Settlement:
    def __init__(
        self,
        pool: Any,
        arrivals: Arrivals,
        notices: Notices,
        in_loop: InLoop,
        request_turn: Callable[[], None],
        run_ended: Callable[[], None],
    ) -> None:
        """`pool`: the execution pool. `run_ended()` is called in the event loop when a run has freed its slot."""
        self._pool = pool
        self._arrivals = arrivals
        self._notices = notices
        self._in_loop = in_loop
        self._request_turn = request_turn
        self._run_ended = run_ended
        #: The runs of this worker that started and are not over, by id.
        self.runs: dict[str, OrchestratedRequest] = {}
        #: The highest fence of a run that started here.
        self.highest_fence = ""
        #: Outcomes that the next turn reports.
        self._unsent: deque[tuple[Outcome, OnAnswer]] = deque()
        #: Runs that are over, by fence, whose outcome the ledger has not taken yet.
        self._unreported: dict[str, OrchestratedRequest] = {}
        #: Outcomes that the ledger took, the latest last.
        self.reported: deque[Outcome] = deque(maxlen=MOST_REPORTED)

    # -- a run starts -------------------------------------------------------------------------------

    def started(self, request: OrchestratedRequest, run_id: str, fence: str, admitted: float) -> None:
        """The ledger says that the run starts here, and decided that at `admitted` or later (monotonic clock)."""
        request.start(run_id, fence, admitted)
        before = self.runs.get(run_id)
        if before is not None:
            self.lease_lost([before.run])  # an earlier start of this run on this worker is void
        # The starts of one turn come in no order.
        self.highest_fence = max(self.highest_fence, fence, key=lambda number: (len(number), number))
        self.runs[run_id] = request

    # -- a run is over ------------------------------------------------------------------------------

    def settle(self, request: OrchestratedRequest, outcome: str, then: OnAnswer = None) -> None:
        """A run is over and its code gone. From any thread."""
        # This comes first: another thread that claims runs must find it in one of the two.
        self._unreported[request.fence or ""] = request
        if self.runs.get(request.run_id) is request:
            del self.runs[request.run_id]
        trace = request.traceback if outcome in ("failed", "crashed") else ""
        now = time.monotonic()
        record = Outcome(request.run_id, request.fence or "", outcome, request.note, trace, request.ran_ms(now), now)
        self._unsent.append((record, then))
        self._in_loop(self._run_ended if request.in_slot else self._request_turn)

    def report(self, outcome: Outcome) -> None:
        """The outcome of a run that was never in a slot. From any thread."""
        self._unsent.append((outcome, None))
        self._in_loop(self._request_turn)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def take_unsent(self) -> list[tuple[Outcome, OnAnswer]]:
        """Returns the outcomes that the next turn reports."""
        taken = []
        while self._unsent:
            taken.append(self._unsent.popleft())
        return taken

    def send_again(self, outcome: Outcome, then: OnAnswer) -> None:
        self._unsent.append((outcome, then))
        self._request_turn()

    def answered(self, outcomes: Sequence[Outcome], callbacks: Sequence[OnAnswer], answers: Sequence[str]) -> None:
        """The ledger took these outcomes, or refused them."""
        for outcome, then, answer in zip(outcomes, callbacks, answers, strict=True):
            self._unreported.pop(outcome.fence, None)
            self.reported.append(outcome)
            if answer == "refused":
                logger.warning(
                    "Run %s %s, but the ledger refuses that outcome: its lease was lost, another start of it counts",
                    outcome.id,
                    outcome.outcome,
                )
            if then is not None:
                guarded(then, answer)

    def return_runs(self, requests: Iterable[OrchestratedRequest]) -> None:
        """No code of these runs was called, or it has ended: they wait again in the ledger."""
        for request in requests:
            request.settle("returned")

    def timed_out(self, request: OrchestratedRequest) -> None:
        """Its time limit has passed, and Celery knows that it failed. Its code goes on, and it keeps its room."""
        over = TimedOut(request.run_id, request.fence or "", request.note, request.afterwards is None)
        self._notices.time_out(over)

    # -- runs that end before they start ------------------------------------------------------------

    def ended_before_start(self, request: OrchestratedRequest) -> None:
        """Celery found a message revoked or expired, and has announced that: the ledger must not keep its run."""
        self._notices.discard(Discarded(request.id, request.attempt, request.publication, request.anonymous))

    def message_refused(self, message: Any) -> None:
        """Celery refused a message unread. If the message was handed over, or is a retry, the ledger must not keep its
        run."""
        headers = message.headers or {}
        if HEADER in headers and headers.get("id"):
            attempt = keys.attempt(headers.get("replaced_task_nesting") or 0, headers.get("retries") or 0)
            self._notices.discard(Discarded(headers["id"], attempt, *publication_of(message, headers[HEADER])))

    # -- runs that are not ours any more ------------------------------------------------------------

    def lease_lost(self, runs: Iterable[Run]) -> None:
        """The ledger will refuse the outcomes of these starts. The execution pool stops them if it can. If a run has
        started here again meanwhile, it has another fence: that start goes on."""
        for id, fence in runs:
            request = self.runs.get(id)
            if request is None or request.void or request.fence != fence:
                continue
            request.void = True
            logger.error(
                "Run %s of job %s lost its lease: another worker may start it, and its outcome here will be refused",
                id,
                request.task.name,
            )
            try:
                if request.time_start:
                    self._pool.terminate_job(request.worker_pid)
            except NotImplementedError:
                pass

    def revoked(self, ids: list[str], terminate: bool, signal: Any) -> None:
        """`ids`: of tasks, or of runs that have an id of their own. Celery knows only one request for each task id, and
        has terminated that one. This terminates the others."""
        self._notices.revoke(ids)
        for request in list(self.runs.values()) if terminate else ():
            if not {request.id, request.run_id}.isdisjoint(ids) and not request._already_revoked:
                guarded(request.terminate, self._pool, signal)

    # -- a new epoch --------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """The runs that this worker runs or has not reported, for a ledger that may have forgotten them. From any
        thread."""
        claims = []
        # In this order: a run that ends goes from the first to the second, and is in both for a moment.
        requests = (*self.runs.copy().values(), *self._unreported.copy().values())
        for request in dict.fromkeys(requests):
            try:
                if not request.void:
                    claims.append(Claim(self._arrivals.of(request), request.fence or "", request.run_id))
            except Exception:
                logger.exception(
                    "Run %s of job %s cannot be claimed in the new epoch: the ledger may start it again",
                    request.run_id,
                    request.task.name,
                )
        return claims

    # -- the worker stops ---------------------------------------------------------------------------

    def in_pool(self) -> list[OrchestratedRequest]:
        """Runs that were given to the execution pool."""
        return [request for request in self.runs.values() if request.stage != "reserved"]

    def take_back_from_pool(self) -> None:
        for request in self.in_pool():
            internals.pool.take_back(request.pool_result)

    def code_is_gone(self) -> bool:
        """Whether no code of our runs is executed any more. A pool that Celery has stopped may still execute some."""
        alive = any(not internals.pool.is_gone(child) for child in internals.pool.children(self._pool))
        return not alive and all(internals.pool.is_over(run.pool_result) for run in list(self.runs.values()))

    def interrupt_all(self) -> None:
        """The execution pool is down: no code of our runs is executed any more. Runs that had not begun went back
        earlier."""
        for request in list(self.runs.values()):
            request.interrupted()

"""Runs end: the last part of a run's path through the worker.

:class:`Settlement` knows the runs that started here. When a run is over and its code gone, its outcome is kept until
the ledger took it; the next turn reports it. Outcomes that the ledger took are kept for a while as well: in a new epoch
(see ``epoch.py``) the ledger may have forgotten them, and runs that were not reported are claimed.

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
from celery_orchestration.ledger import Claim, Discarded, Outcome, TimedOut, keys
from celery_orchestration.worker import internals
from celery_orchestration.worker.arrivals import Arrivals
from celery_orchestration.worker.loop import InLoop, guarded
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.publications import publication_of
from celery_orchestration.worker.request import OrchestratedRequest

logger = get_logger(__name__)

#: Gets the ledger's answer to an outcome: ok, refused, dead ...
OnAnswer = Callable[[str], None] | None

#: How many outcomes are kept that the ledger took.
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
        """`pool`: the execution pool. `run_ended()` is called in the event loop: a slot is free."""
        self._pool = pool
        self._arrivals = arrivals
        self._notices = notices
        self._in_loop = in_loop
        self._request_turn = request_turn
        self._run_ended = run_ended
        #: The runs of this worker that started and are not over, by id.
        self.runs: dict[str, OrchestratedRequest] = {}
        #: The fence of the run that started last. Fences rise.
        self.highest_fence = ""
        #: Outcomes that the next turn reports.
        self._unsent: deque[tuple[Outcome, OnAnswer]] = deque()
        #: Runs that are over, by fence, whose outcome the ledger has not taken yet.
        self._unreported: dict[str, OrchestratedRequest] = {}
        #: Outcomes that the ledger took, the latest last.
        self.reported: deque[Outcome] = deque(maxlen=MOST_REPORTED)

    # -- a run starts -------------------------------------------------------------------------------

    def started(self, request: OrchestratedRequest, run_id: str, fence: str, admitted: float) -> None:
        """The ledger says that it starts here. `admitted`: not before this, by the monotonic clock."""
        request.start(run_id, fence, admitted)
        self.lease_lost([run_id])  # of an earlier start of this run, if that was here
        self.highest_fence = fence
        self.runs[run_id] = request

    # -- a run is over ------------------------------------------------------------------------------

    def settle(self, request: OrchestratedRequest, outcome: str, then: OnAnswer = None) -> None:
        """A run is over and its code gone. From any thread."""
        if self.runs.get(request.run_id) is request:
            del self.runs[request.run_id]
        self._unreported[request.fence or ""] = request
        trace = request.traceback if outcome in ("failed", "crashed") else ""
        now = time.monotonic()
        made = Outcome(request.run_id, request.fence or "", outcome, request.note, trace, request.ran_ms(now), now)
        self._unsent.append((made, then))
        self._in_loop(self._run_ended)

    def report(self, outcome: Outcome) -> None:
        """The outcome of a run that was never in a slot. From any thread."""
        self._unsent.append((outcome, None))
        self._in_loop(self._request_turn)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def take_unsent(self) -> list[tuple[Outcome, OnAnswer]]:
        """For a turn."""
        taken = []
        while self._unsent:
            taken.append(self._unsent.popleft())
        return taken

    def send_again(self, outcome: Outcome, then: OnAnswer) -> None:
        self._unsent.append((outcome, then))
        self._request_turn()

    def answered(self, outcomes: Sequence[Outcome], thens: Sequence[OnAnswer], answers: Sequence[str]) -> None:
        """The ledger took these outcomes, or refused them."""
        for outcome, then, answer in zip(outcomes, thens, answers, strict=True):
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
        """No code of these runs was called, or none is running any more: they go back to their queues."""
        for request in requests:
            request.settle("returned")

    def timed_out(self, request: OrchestratedRequest) -> None:
        """Its time limit has passed, and Celery was told; its code goes on, and it keeps its room."""
        over = TimedOut(request.run_id, request.fence or "", request.note, request.afterwards is None)
        self._notices.time_out(over)

    # -- runs that end before they start ------------------------------------------------------------

    def ended_before_start(self, request: OrchestratedRequest) -> None:
        """Celery found a message revoked or expired, and told everybody: the ledger must not keep its run."""
        self._notices.discard(Discarded(request.id, request.attempt, request.publication, request.anonymous))

    def message_refused(self, message: Any) -> None:
        """Celery refused a message unread. If it was handed over, or is a retry, the ledger must not keep its run."""
        headers = message.headers or {}
        if HEADER in headers and headers.get("id"):
            attempt = keys.attempt(headers.get("replaced_task_nesting") or 0, headers.get("retries") or 0)
            self._notices.discard(Discarded(headers["id"], attempt, *publication_of(message, headers[HEADER])))

    # -- runs that are not ours any more ------------------------------------------------------------

    def lease_lost(self, ids: Iterable[str]) -> None:
        """Their outcomes will be refused. Where the execution pool can stop them, it does."""
        for id in ids:
            request = self.runs.get(id)
            if request is None or request.void:
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
        """`ids`: of tasks, or of runs that have an id of their own. Celery knows one request for each task id, and has
        terminated that one."""
        self._notices.revoke(ids)
        for request in list(self.runs.values()) if terminate else ():
            if not {request.id, request.run_id}.isdisjoint(ids) and not request._already_revoked:
                guarded(request.terminate, self._pool, signal)

    # -- a new epoch --------------------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """What this worker runs or has not reported, for a ledger that may have forgotten it. From any thread."""
        found = []
        for request in (*self.runs.copy().values(), *self._unreported.copy().values()):
            try:
                if not request.void:
                    found.append(Claim(self._arrivals.of(request), request.fence or "", request.run_id))
            except Exception:
                logger.exception(
                    "Run %s of job %s cannot be claimed in the new epoch: the ledger may start it again",
                    request.run_id,
                    request.task.name,
                )
        return found

    # -- the worker stops ---------------------------------------------------------------------------

    def in_pool(self) -> list[OrchestratedRequest]:
        """Runs that were given to the execution pool."""
        return [request for request in self.runs.values() if request.stage != "reserved"]

    def take_back_from_pool(self) -> None:
        for request in self.in_pool():
            internals.pool.take_back(request.pool_result)

    def code_is_gone(self) -> bool:
        """Whether no code of our runs is executed any more: the pool is down, and not only abandoned."""
        alive = any(not internals.pool.is_gone(child) for child in internals.pool.children(self._pool))
        return not alive and all(internals.pool.is_over(run.pool_result) for run in list(self.runs.values()))

    def interrupt_all(self) -> None:
        """The execution pool is down: no code of ours runs any more. Runs that had not begun went back before."""
        for request in list(self.runs.values()):
            request.interrupted()

"""A request of a job: which run it is, and what its message says.

:class:`JobRequest` only holds the facts about a run; ``request.py`` adds how it goes through the gate and how it ends.
:class:`RequestGate` has the functions of the gate that a request may call. Celery makes requests in the worker's event
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.worker.request import Request

from celery_orchestration.job.envelope import (
    ADMITTED,
    FENCE,
    HEADER,
    PUBLICATION,
    RECEIVED,
    RUN,
    WAITS,
    Envelope,
    sent_ms,
)
from celery_orchestration.job.limits import Run
from celery_orchestration.ledger import keys
from celery_orchestration.worker import deadline
from celery_orchestration.worker.publications import header_of, publication_of
from celery_orchestration.worker.strategy_consumer import ReceivedOnce

if TYPE_CHECKING:
    from celery_orchestration.worker.gate import Gate
    from celery_orchestration.worker.request import OrchestratedRequest

#: The gates of this process, by worker name. There is one; only tests run several workers in a process.
gates: dict[str, Gate] = {}


@dataclass(frozen=True, slots=True)
class RequestGate:
    """The functions of its worker's gate that a request calls. The gate builds it from its parts."""

    #: Whether the gate is closed: the ledger does not answer.
    is_closed: Callable[[], bool]
    #: Whether the worker was asked to stop.
    is_draining: Callable[[], bool]
    #: Celery wants the request executed.
    slot_given: Callable[[OrchestratedRequest], None]
    #: The run is not to start before this time (seconds since the epoch): the ledger keeps it until then.
    schedule: Callable[[OrchestratedRequest, float], None]
    #: Celery found the message revoked or expired: its run does not start.
    ended_before_start: Callable[[OrchestratedRequest], None]
    #: The code of the run begins. From any thread.
    begun: Callable[[OrchestratedRequest], None]
    #: The time limit of the run has passed, while its code goes on.
    timed_out: Callable[[OrchestratedRequest], None]
    #: The run is over with this outcome, and its code gone. The function, if any, gets the ledger's answer. From any
    #: thread.
    settle: Callable[[OrchestratedRequest, str, Callable[[str], None] | None], None]
    #: Acknowledges the message together with others. False if Celery has to do it. From any thread.
    acknowledge: Callable[[OrchestratedRequest], bool]
    #: The process that executes the run; None if there is none.
    process_of: Callable[[OrchestratedRequest], Any]
    #: Calls the function when that process is gone, or at once if it is None.
    when_gone: Callable[[Any, Callable[[], None]], None]
    #: Whether the deadline of the worker's lease has ended a run that started at this time, by the clock of deadlines.
    ended_by_deadline: Callable[[float], bool]
    #: Ends the runs that still run, in a cold shutdown. In a signal handler, or from any thread.
    hurry_drain: Callable[[], None]


class JobRequest(Request):  # type: ignore[misc]
    #: None in mode "off": then this is a plain request.
    gate: RequestGate | None = None
    #: Given by the ledger when the run may start.
    fence: str | None = None
    #: The run's id: the task's id, or another one if the task id was published again.
    run_id = ""
    #: When it started, by the clock of deadlines.
    started_at = 0.0
    #: The id of the call that it comes from; and whether its message is a redelivery whose call is unknown.
    publication = ""
    anonymous = False
    #: How the run ends, if that was decided before its code was gone.
    verdict: str | None = None
    #: What failed, for people.
    note = ""
    traceback = ""
    #: Whether its code is gone: the function returned, or its process died.
    returned = False
    #: Whether it was given a slot of the execution pool, which its end frees.
    in_slot = False
    #: Whether the end of the run was reported to the settlement, which happens once.
    settled = False
    #: Its lease was lost, or it has started anew since: the ledger will refuse its outcome.
    void = False
    #: Its time limit has passed, and its code cannot be interrupted: Celery counts it as failed, it keeps its room.
    timed_out = False
    #: Called with the ledger's answer to its outcome.
    afterwards: Callable[[str], None] | None = None
    #: The drain has killed its process: the run waits again.
    drained = False
    #: When the execution pool began it, by the monotonic clock.
    began: float | None = None
    #: How many seconds its code ran; None if the execution pool did not say.
    runtime: float | None = None
    #: The result that the execution pool's apply_async returned for it, on threads and gevent.
    pool_result: Any = None
    #: Why its code cannot be executed: the run fails as soon as it starts.
    problem: Exception | None = None
    #: Whether a worker has received its run before: then ``task-received`` was sent.
    received = False
    #: The reasons for which the run has waited, as JSON, for a tracer.
    waits = ""
    #: Grant number of a handed-over message.
    grant = ""
    #: Where a handed-over message was sent at first.
    origin: dict[str, Any] | None = None
    #: It is not to start before this time (seconds since the epoch).
    not_before: float | None = None
    #: None: the gate does not have it yet. "reserved": it waits for a slot. "asked": it has a slot, or needs none; the
    #: ledger is asked about it, or has said that it starts. "dropped": the broker connection was lost before that.
    stage: str | None = None

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        gate = gates.get(self._hostname)  # Celery makes the request, so the gate cannot be an argument
        self.gate = None if gate is None else gate.for_requests
        self.received = bool(self._request_dict.pop(RECEIVED, False))
        if self.received and isinstance(self._eventer, ReceivedOnce):
            self._eventer.announced = self.id
        self.run_id = self.id
        ours = header_of(self._request_dict.pop(HEADER, None))
        self.publication, self.anonymous = publication_of(message, ours)
        if ours.get("grant"):
            self.grant = ours["grant"]
            self.origin = {k: ours.get(k) for k in ("exchange", "routing_key")}
            self._delivery_info.update(self.origin)

    @property
    def attempt(self) -> int:
        return keys.attempt(self.replaced_task_nesting or 0, self._request_dict.get("retries") or 0)

    @property
    def run(self) -> Run:
        return self.run_id, self.fence or ""

    def envelope(self) -> Envelope:
        return Envelope.of(self._message, self.origin, self.publication).received()

    def send_received(self) -> None:
        """As Celery's strategy does for a message that arrives."""
        self.send_event(
            "task-received",
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=self._request_dict.get("retries", 0),
            eta=self.eta and self.eta.isoformat(),
            expires=self.expires and self.expires.isoformat(),
        )

    def start(self, run_id: str, fence: str, admitted: float) -> None:
        """The ledger says that the run starts. It decided that at `admitted` or later, by the monotonic clock; this
        process may have been suspended since then."""
        self.run_id, self.fence = run_id, fence
        self.started_at = deadline.now()
        ours = {RUN: run_id, FENCE: fence, ADMITTED: admitted, PUBLICATION: self.publication}
        if self.waits:
            ours[WAITS] = self.waits
        self._request_dict["properties"] = {**(self._request_dict.get("properties") or {}), **ours}

    def queued_ms(self) -> int | None:
        """How long its message was in its queue, as far as the clocks of sender and worker agree. None: unknown,
        because the message was handed over or delivered again."""
        if self.grant or self.received or (self._message.delivery_info or {}).get("redelivered"):
            return None
        sent = sent_ms(self._message.properties.get("message_id"))
        return None if sent is None else max(0, int(time.time() * 1000) - sent)

    def ran_ms(self, now: float) -> int | None:
        """How long its code ran; None if it did not run."""
        seconds = self.runtime if self.began is None or self.runtime is not None else now - self.began
        return None if seconds is None else max(0, round(seconds * 1000))

"""A job's request: where Celery's worker and the gate meet.

Celery makes a subclass of ``Task.Request`` for every task and overrides ``execute_using_pool`` and
``on_success`` in it; :meth:`OrchestratedRequest.__init_subclass__` wraps those two on the class that Celery
makes. The rest is ordinary overriding. Every path on which the main process hears that a run is over ends in
exactly one :meth:`~celery_orchestration.worker.gate.Gate.settle`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from time import monotonic
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionInfo, ExceptionWithTraceback
from celery import states
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils import uuid
from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.worker.request import Request, task_ready
from celery.worker.state import task_reserved

from celery_orchestration.job.current_run import default_limit, lost_lease
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
from celery_orchestration.job.limits import Run, clocks
from celery_orchestration.ledger import keys
from celery_orchestration.worker import deadline
from celery_orchestration.worker.internals import can_kill

if TYPE_CHECKING:
    from celery_orchestration.worker.gate import Gate

logger = get_logger(__name__)

#: Characters of an error that are kept.
LONGEST_NOTE = 300
#: Characters of its traceback, the last ones.
LONGEST_TRACEBACK = 8000

#: The gates of this process, by worker name. There is one, but for tests that run workers in threads.
gates: dict[str, Gate] = {}


def publication_of(message: Any, ours: Any) -> tuple[str, bool]:
    """Which call a message comes from, and whether it was delivered before and nobody knows.

    Messages of ours and retries say it (`ours`: the header). Others have the id that the sender gave them, or that
    kombu's virtual transports (Redis) give each message; RabbitMQ gives them none.
    """
    if isinstance(ours, dict) and keys.is_publication(ours.get("publication")):
        return ours["publication"], False
    properties = message.properties or {}
    identity = properties.get("message_id") or properties.get("delivery_tag")
    if identity:
        return keys.publication(str(identity)), False
    return keys.publication(uuid()), bool((message.delivery_info or {}).get("redelivered"))


class Events:
    """A dispatcher of events that sends ``task-received`` once for each run: copies of a message know that it was."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        #: The task id that was received before: that of the message that is being dealt with.
        self.silent: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    def send(self, type: str, **fields: Any) -> Any:
        if type == "task-received" and self.silent is not None and fields.get("uuid") == self.silent:
            self.silent = None
            return None
        return self._dispatcher.send(type, **fields)


class Timeless:
    """A consumer as Celery's strategy sees it, whose timer is the ledger."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.timer = self.qos = self
        self.event_dispatcher = consumer.event_dispatcher and Events(consumer.event_dispatcher)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def increment_eventually(self) -> None:
        """No message is kept, so no more have to be fetched."""

    def call_at(self, eta: float, function: Any, args: tuple[Any, ...], **options: Any) -> Any:
        request, *bucket = args
        if request.gate is None:
            self._consumer.qos.increment_eventually()
            return self._consumer.timer.call_at(eta, function, args, **options)
        seconds = eta - monotonic()  # kombu's timers go by the monotonic clock
        if not request.grant and seconds > 0:
            request.gate.put_off(request, time.time() + seconds)
        elif bucket:
            self._consumer._limit_task(request, *bucket)
        else:
            task_reserved(request)
            self._consumer.on_task_request(request)
        return None


class OrchestratedRequest(Request):  # type: ignore[misc]
    #: None in mode "off": then this is a plain request.
    gate: Gate | None = None
    #: Given by the gate when the run may start, and when that was, by the clock of deadlines. The run's id: that of the
    #: task, or one of its own if that was published again.
    fence: str | None = None
    run_id = ""
    started_at = 0.0
    #: Which call it comes from, and whether nobody knows.
    publication = ""
    anonymous = False
    #: How the run ends, if that was decided before its code was gone.
    verdict: str | None = None
    #: What failed, for people.
    note = ""
    traceback = ""
    #: Whether its code is gone: the function returned, or its process died.
    returned = False
    #: Whether the gate was told that the run is over; it is told once.
    settled = False
    #: Another run of it has started since: whatever this one says is refused.
    void = False
    #: Its time limit has passed where its code cannot be interrupted: Celery was told, the room is kept.
    over = False
    #: What is done when the ledger knows that it is over.
    afterwards: Callable[[str], None] | None = None
    #: Its process was killed by the drain: it goes back.
    drained = False
    #: When the execution pool began it, by the monotonic clock; how long its code ran, in seconds, if that told.
    began: float | None = None
    runtime: float | None = None
    #: What the execution pool gave for it, on threads and gevent.
    pool_result: Any = None
    #: Why its code cannot be executed: the run fails as soon as it starts.
    problem: Exception | None = None
    #: Whether a worker has received its run before: then that was told.
    received = False
    #: What the run has waited for, for a tracer: JSON.
    waits = ""
    #: Grant number of a handed-over message.
    grant = ""
    origin: dict[str, Any] | None = None
    #: It is not to start before this time (seconds since the epoch).
    not_before: float | None = None
    #: Whether the gate knows it: "reserved", then "asked"; "dropped" if its connection was lost before.
    stage: str | None = None

    #: execute_using_pool as Celery made it: gives the request to the execution pool.
    execute_now: Callable[..., Any]

    def __init__(self, message: Any, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.gate = gates.get(self._hostname)
        self.received = bool(self._request_dict.pop(RECEIVED, False))
        if self.received and isinstance(self._eventer, Events):
            self._eventer.silent = self.id
        self.run_id = self.id
        ours = _handed_over(self._request_dict.pop(HEADER, None))
        self.publication, self.anonymous = publication_of(message, ours)
        if ours.get("grant"):
            self.grant = ours["grant"]
            self.origin = {k: ours.get(k) for k in ("exchange", "routing_key")}
            self._delivery_info.update(self.origin)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        made = cls.__dict__
        if "execute_using_pool" in made:
            cls.execute_now = made["execute_using_pool"]
            cls.execute_using_pool = _through_the_gate(made["execute_using_pool"])
        if "on_success" in made:
            cls.on_success = _settling(made["on_success"])

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
        """`admitted`: not after this, by the monotonic clock. This process may have stood still since."""
        self.run_id, self.fence = run_id, fence
        self.started_at = deadline.now()
        ours = {RUN: run_id, FENCE: fence, ADMITTED: admitted, PUBLICATION: self.publication}
        if self.waits:
            ours[WAITS] = self.waits
        self._request_dict["properties"] = {**(self._request_dict.get("properties") or {}), **ours}

    def queued_ms(self) -> int | None:
        """How long its message was in its queue, as far as the clocks of sender and worker agree. One that was handed
        over or delivered again does not say."""
        if self.grant or self.received or (self._message.delivery_info or {}).get("redelivered"):
            return None
        sent = sent_ms(self._message.properties.get("message_id"))
        return None if sent is None else max(0, int(time.time() * 1000) - sent)

    def fail(self, exc: Exception) -> None:
        """It has started, but is not given to the execution pool: a failed run like any other."""
        try:
            self.on_failure(_raised(exc))
        finally:
            self.acknowledge()

    def ran_ms(self, now: float) -> int | None:
        """How long its code ran; None if it did not."""
        seconds = self.runtime if self.began is None or self.runtime is not None else now - self.began
        return None if seconds is None else max(0, round(seconds * 1000))

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.began = time_accepted
        super().on_accepted(pid, time_accepted)
        if self.gate is not None and self.gate.limits is not None and self.fence is not None:
            self.gate.limits.begun(self)

    # -- the run is over ----------------------------------------------------------------------------

    def settle(self, outcome: str, then: Callable[[str], None] | None = None) -> None:
        """Tells the gate, once, that the run is over and its code gone. `then` gets the ledger's answer."""
        if self.gate is not None and self.fence is not None and not self.settled:
            self.settled = True
            if self.gate.limits is not None:
                clocks.forget(self.run)
            self.gate.settle(self, self.verdict or outcome, then or self.afterwards)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if self.gate is None or self.fence is None:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        exc = exc_info.exception
        exc = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
        if self.void or self.over:
            return self._leave_quietly()
        self.note = self._note_of(exc)
        self.traceback = keys.text(str(getattr(exc_info, "traceback", None) or ""))[-LONGEST_TRACEBACK:]

        def as_celery_does() -> None:
            super(OrchestratedRequest, self).on_failure(exc_info, send_failed_event, return_ok)

        if isinstance(exc, TimeLimitExceeded):
            return self._leave_quietly() if self._lost_lease() else self._on_hard_limit(as_celery_does)
        self.returned = True
        if isinstance(exc, WorkerLostError | SystemExit | KeyboardInterrupt):
            return self._on_process_lost(as_celery_does)
        outcome = _outcome_of(exc)
        if isinstance(exc, Terminated) and self._already_cancelled and not self._already_revoked:
            return self.interrupted(as_celery_does)  # by Celery itself: lost connection, cold shutdown
        return self._settle_after(as_celery_does, outcome)

    def _note_of(self, exc: BaseException) -> str:
        """For the history. Of a soft limit the task has said whose it is."""
        found = default_limit(self.task, self.time_limits) if isinstance(exc, TimeLimitExceeded) else ""
        if not found:
            return _note_of(exc)
        logger.error("Run %s of job %s was over its time limit: %s", self.id, self.name, found)
        return f"{_note_of(exc)}: {found}"

    def _lost_lease(self) -> bool:
        """A worker that stood still may see that a run's time is over before it hears that its lease is lost."""
        if not self.void and self.gate is not None and not self.gate.closed and self.fence is not None:
            self.void = lost_lease(self.app, self.run, self._request_dict.get("properties") or {})
        return self.void

    def _settle_after(self, step: Callable[[], None], outcome: str) -> None:
        """The run is over even if Celery cannot store how it ended."""
        try:
            step()
        finally:
            self.settle(outcome)

    def _on_hard_limit(self, as_celery_does: Callable[[], None]) -> None:
        """Announced before the child is killed: its room is free when the process is gone."""
        gate: Any = self.gate
        self.verdict = "failed"
        process = gate.process_of(self)
        try:
            as_celery_does()
        finally:
            gate.when_gone(process, lambda: self.settle("failed"))

    def _on_process_lost(self, as_celery_does: Callable[[], None]) -> None:
        """The child died. Celery would store a failure, fire errbacks and count a chord: we decide first."""
        if self.drained or self._ended_by_deadline():
            return self.interrupted(self._leave_quietly)
        if self._already_revoked:
            return self._settle_after(as_celery_does, "revoked")
        if self._already_cancelled:
            return self.interrupted(as_celery_does)
        if self.task.orchestration.celery.keys() & {"reject_on_worker_lost", "retry_on_worker_lost"}:
            # A requeue settles in reject(), a retry in _retry_worker_lost().
            return self._settle_after(as_celery_does, "failed")
        if getattr(self, "_success_was_stored", bool)():
            return self._settle_after(as_celery_does, "succeeded")

        def decided(answer: str) -> None:
            if answer == "dead":
                as_celery_does()
            else:
                self._leave_quietly()

        task_ready(self)
        return self.settle("crashed", decided)

    def stops_with_lease(self) -> bool:
        return bool(self.task.orchestration.on_lease_lost == "stop")

    def _ended_by_deadline(self) -> bool:
        """Then its process has not crashed: see deadline.py."""
        found = self.gate.deadline if self.gate is not None and self.stops_with_lease() else None
        if found is None or not found.has_passed_since(self.started_at):
            return False
        logger.error(
            "Run %s of job %s was stopped: no heartbeat of this worker reached the ledger in time, and another "
            "worker may start the run (on_lease_lost='stop')",
            *(self.id, self.name),
        )
        return True

    def interrupted(self, requeued: Callable[[], None] = noop) -> None:
        """Its code was stopped, by no fault of its own. It goes back to its queue unless `on_crash` is "fail"."""

        def decided(answer: str) -> None:
            if answer == "dead":
                lost = WorkerLostError(f"The worker of run {self.id} stopped before the run ended")
                super(OrchestratedRequest, self).on_failure(_raised(lost))
            else:
                requeued()

        task_ready(self)
        self.settle("interrupted", decided)

    def _retry_worker_lost(self, *args: Any) -> Any:
        retried = super()._retry_worker_lost(*args)
        if retried:
            self.verdict = "retry"
        return retried

    def time_is_over(self, limit: float) -> None:
        """In the event loop, where the execution pool cannot interrupt it: it has failed. Its room is free when its
        code has returned, and what that says then is refused."""
        if self.settled or self._lost_lease():
            return
        self.over, self.verdict = True, "failed"
        logger.error(
            "Hard time limit (%ss) exceeded for %s[%s]: it has failed; its code cannot be interrupted, its room is "
            "free when that returns",
            *(limit, self.name, self.id),
        )
        exc = TimeLimitExceeded(limit)
        self.note, info = self._note_of(exc), _raised(exc)
        try:
            super().on_failure(info)
            if self.afterwards is None:
                # As Celery does since 5.7 where it can kill the run.
                self.task.on_failure(exc, self.id, self.args, self.kwargs, info)
                self.task.after_return(states.FAILURE, exc, self.id, self.args, self.kwargs, info)
        except Exception:
            logger.exception("Celery could not be told that run %s is over its time limit", self.id)
        self.gate.over(self)  # type: ignore[union-attr]

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        if self.gate is None or self.fence is None or not self.gate.draining or can_kill(pool):
            super().cancel(pool, *args, **kwargs)
        else:
            # A cold shutdown, where code cannot be killed but with the whole process. Celery would raise an error into
            # whatever the main thread is doing (on solo into the task), or take a killed greenlet for a success.
            self.gate.hurry_drain()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and (self.void or (self.verdict is None and self._lost_lease())):
            return self._leave_quietly()
        if not soft and self.verdict is None:
            self.returned = True  # gevent: the function was left by an exception; prefork calls on_failure before this
            self.note = self._note_of(TimeLimitExceeded(timeout))
        super().on_timeout(soft, timeout)
        if self.returned:
            self.settle("failed")
        return None

    def acknowledge(self) -> None:
        if self.gate is None or self.acknowledged or not self.gate.acknowledge(self):
            super().acknowledge()

    def reject(self, requeue: bool = False) -> None:
        if not requeue or self.acknowledged or self.gate is None or self.fence is None or self.settled:
            super().reject(requeue)
            return
        # The broker may deliver it again at once: the ledger must have let go of it before. But of a run that was
        # handed over it has the only copy: that stays, and waits. So does that of one on a worker that stops: the
        # broker may have delivered the message to somebody else already, who dropped it because the run was running.
        theirs = self._message.channel is not None and not self.gate.draining
        self.verdict = "requeued" if theirs else "returned"
        self.afterwards = lambda _: super(OrchestratedRequest, self).reject(requeue)
        if not self.over:  # else its code goes on
            self.gate.when_gone(None if self.returned else self.gate.process_of(self), lambda: self.settle("requeued"))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)
        if self.gate is None:
            return
        if self.fence is None:
            self.gate.ended_unstarted(self)
        else:
            self.verdict = "revoked"
            if not terminated:
                self.settle("revoked")  # found revoked before it was given to the execution pool

    def _leave_quietly(self) -> None:
        """Neither result nor callbacks nor events: somebody else has this run, or Celery knows how it ended."""
        task_ready(self)
        if self.afterwards is None:
            self.acknowledge()
        self.settle("returned")


def _handed_over(header: Any) -> dict[str, str]:
    """What our header says, as far as it is what we would have written: anybody can send messages."""
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return {}
    return header if header.get("grant", "0").isdecimal() and header.get("routing_key") != "" else {}


def _raised(exc: Exception) -> ExceptionInfo:
    try:
        raise exc  # noqa: TRY301  (for its traceback)
    except Exception:
        return ExceptionInfo()


def _note_of(exc: BaseException) -> str:
    """Whatever a user's exception makes of itself."""
    try:
        text = f"{type(exc).__name__}: {exc}"
    except Exception:
        text = type(exc).__name__
    return keys.text(text[:LONGEST_NOTE])


def _outcome_of(exc: BaseException) -> str:
    if isinstance(exc, Retry):
        return "retry"
    if isinstance(exc, Reject):
        return "rejected"
    if isinstance(exc, Ignore):
        return "ignored"
    return "revoked" if isinstance(exc, Terminated) else "failed"


def _through_the_gate(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    def execute_using_pool(self: OrchestratedRequest, pool: Any, **kwargs: Any) -> Any:
        # Always through the gate, even if it was admitted meanwhile: a slot serves whoever is first in rank, and only
        # the gate knows whether this one was served already.
        return execute(self, pool, **kwargs) if self.gate is None else self.gate.slot(self)

    return execute_using_pool


def _settling(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def settling(self: OrchestratedRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if self.gate is None or self.fence is None:
            return on_success(self, failed__retval__runtime, **kwargs)
        self.returned = True
        if self.void or self.over:
            return self._leave_quietly()
        if not isinstance(failed__retval__runtime, tuple):
            return self.on_failure(failed__retval__runtime)  # threads: SystemExit in a task, as an ExceptionInfo
        self.runtime = failed__retval__runtime[2]
        try:
            return on_success(self, failed__retval__runtime, **kwargs)  # of a failure it calls on_failure
        finally:
            self.settle("failed" if failed__retval__runtime[0] else "succeeded")

    return settling

"""A job's request: where Celery's worker and the gate meet.

Celery makes a subclass of ``Task.Request`` for every task, and overrides ``execute_using_pool`` and ``on_success`` in
it. :meth:`OrchestratedRequest.__init_subclass__` wraps these two methods. The other methods are overridden as usual.
However the main process learns that a run is over, it calls
:meth:`~celery_orchestration.worker.settlement.Settlement.settle` exactly once.

Celery calls a request in the worker's event loop. Pools of threads and greenlets may report its end from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery import states
from celery.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.worker.request import task_ready

from celery_orchestration.job.current_run import default_limit, lost_lease
from celery_orchestration.ledger import keys
from celery_orchestration.worker.endings import note_of, outcome_of, raised
from celery_orchestration.worker.internals.pool import can_kill
from celery_orchestration.worker.job_request import JobRequest, RequestGate

logger = get_logger(__name__)

#: How many characters of a traceback are kept: the last ones.
LONGEST_TRACEBACK = 8000


class OrchestratedRequest(JobRequest):
    #: Celery's execute_using_pool: gives the request to the execution pool.
    execute_now: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        defined = cls.__dict__
        if "execute_using_pool" in defined:
            cls.execute_now = defined["execute_using_pool"]
            cls.execute_using_pool = _through_the_gate(defined["execute_using_pool"])
        if "on_success" in defined:
            cls.on_success = _settling(defined["on_success"])

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.began = time_accepted
        super().on_accepted(pid, time_accepted)
        if self.gate is not None and self.fence is not None:
            self.gate.begun(self)

    def fail(self, exc: Exception) -> None:
        """The run has started, but is not given to the execution pool: it fails as if its code had raised `exc`."""
        try:
            self.on_failure(raised(exc))
        finally:
            self.acknowledge()

    # -- the run is over ----------------------------------------------------------------------------

    def settle(self, outcome: str, then: Callable[[str], None] | None = None) -> None:
        """Reports, once, that the run is over and its code gone. `then` gets the ledger's answer."""
        if self.gate is not None and self.fence is not None and not self.settled:
            self.settled = True
            self.gate.settle(self, self.verdict or outcome, then or self.afterwards)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if self.gate is None or self.fence is None:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        exc = exc_info.exception
        exc = exc.exc if isinstance(exc, ExceptionWithTraceback) else exc
        if self.void or self.timed_out:
            return self._leave_quietly()
        self.note = self._note_of(exc)
        self.traceback = keys.text(str(getattr(exc_info, "traceback", None) or ""))[-LONGEST_TRACEBACK:]

        def as_celery_does() -> None:
            super(OrchestratedRequest, self).on_failure(exc_info, send_failed_event, return_ok)

        if isinstance(exc, TimeLimitExceeded):
            return self._leave_quietly() if self._lost_lease() else self._on_hard_limit(self.gate, as_celery_does)
        self.returned = True
        if isinstance(exc, WorkerLostError | SystemExit | KeyboardInterrupt):
            return self._on_process_lost(as_celery_does)
        outcome = outcome_of(exc)
        if isinstance(exc, Terminated) and self._already_cancelled and not self._already_revoked:
            # Celery itself has stopped it: the connection was lost, or a cold shutdown has begun.
            return self.interrupted(as_celery_does)
        return self._settle_after(as_celery_does, outcome)

    def _note_of(self, exc: BaseException) -> str:
        """For the history. It says where a hard limit comes from; for a soft limit the task itself says that."""
        origin = default_limit(self.task, self.time_limits) if isinstance(exc, TimeLimitExceeded) else ""
        if not origin:
            return note_of(exc)
        logger.error("Run %s of job %s exceeded its time limit: %s", self.id, self.name, origin)
        return f"{note_of(exc)}: {origin}"

    def _lost_lease(self) -> bool:
        """A worker that was suspended may see that a run's time is over before it learns that its lease is lost. So
        this asks the ledger."""
        if not self.void and self.gate is not None and not self.gate.is_closed() and self.fence is not None:
            self.void = lost_lease(self.app, self.run, self._request_dict.get("properties") or {})
        return self.void

    def _settle_after(self, step: Callable[[], None], outcome: str) -> None:
        """The run is over even if Celery cannot store how it ended."""
        try:
            step()
        finally:
            self.settle(outcome)

    def _on_hard_limit(self, gate: RequestGate, as_celery_does: Callable[[], None]) -> None:
        """Celery announces the limit before it kills the child: the room is freed when the process is gone."""
        self.verdict = "failed"
        process = gate.process_of(self)
        try:
            as_celery_does()
        finally:
            gate.when_gone(process, lambda: self.settle("failed"))

    def _on_process_lost(self, as_celery_does: Callable[[], None]) -> None:
        """The child died. Celery would store a failure, call errbacks and count it for a chord. The ledger decides
        first whether the run goes again."""
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
        """Whether the deadline of the lease has ended its process: then it did not crash (see deadline.py)."""
        if self.gate is None or not self.stops_with_lease() or not self.gate.ended_by_deadline(self.started_at):
            return False
        logger.error(
            "Run %s of job %s was stopped: no heartbeat of this worker reached the ledger in time, and another "
            "worker may start the run (on_lease_lost='stop')",
            *(self.id, self.name),
        )
        return True

    def interrupted(self, requeued: Callable[[], None] = noop) -> None:
        """Its code was stopped for a reason outside the run. The run waits again unless `on_crash` is "fail"."""

        def decided(answer: str) -> None:
            if answer == "dead":
                lost = WorkerLostError(f"The worker of run {self.id} stopped before the run ended")
                super(OrchestratedRequest, self).on_failure(raised(lost))
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
        """The run has failed, and the execution pool cannot interrupt it. Its room is freed when its code returns; the
        result is ignored. In the event loop."""
        if self.gate is None or self.settled or self._lost_lease():
            return
        self.timed_out, self.verdict = True, "failed"
        logger.error(
            "Hard time limit (%ss) exceeded for %s[%s]: the run failed. Its code cannot be interrupted, and keeps "
            "its room until it ends",
            *(limit, self.name, self.id),
        )
        exc = TimeLimitExceeded(limit)
        self.note, info = self._note_of(exc), raised(exc)
        try:
            super().on_failure(info)
            if self.afterwards is None:
                # As Celery does since 5.7 where it can kill the run.
                self.task.on_failure(exc, self.id, self.args, self.kwargs, info)
                self.task.after_return(states.FAILURE, exc, self.id, self.args, self.kwargs, info)
        except Exception:
            logger.exception(
                "Run %s exceeded its time limit, but Celery could not handle that: its result may be missing", self.id
            )
        self.gate.timed_out(self)

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        if self.gate is None or self.fence is None or not self.gate.is_draining() or can_kill(pool):
            super().cancel(pool, *args, **kwargs)
        else:
            # A cold shutdown, and code can only be killed with the whole process. Celery would raise an error in the
            # main thread, whatever that executes (on solo the task), or take a killed greenlet for a success.
            self.gate.hurry_drain()

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft and (self.void or (self.verdict is None and self._lost_lease())):
            return self._leave_quietly()
        if not soft and self.verdict is None:
            self.returned = True  # on gevent an exception ended the function; prefork calls on_failure before this
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
        # The broker may deliver the message again at once, so the ledger has to drop its copy first. There are two
        # exceptions. If the run was handed over, the ledger has the only copy. If this worker is stopping, the broker
        # may have delivered the message to another worker already, which dropped it because the run was running. In
        # both cases the ledger keeps its copy, and the run waits.
        broker_has_it = self._message.channel is not None and not self.gate.is_draining()
        self.verdict = "requeued" if broker_has_it else "returned"
        self.afterwards = lambda _: super(OrchestratedRequest, self).reject(requeue)
        if not self.timed_out:  # a run that has timed out is settled when its code returns
            process = None if self.returned else self.gate.process_of(self)
            self.gate.when_gone(process, lambda: self.settle("requeued"))

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)
        if self.gate is None:
            return
        if self.fence is None:
            self.gate.ended_before_start(self)
        else:
            self.verdict = "revoked"
            if not terminated:
                self.settle("revoked")  # found revoked before it was given to the execution pool

    def _leave_quietly(self) -> None:
        """No result, no callbacks, no events: another worker has this run, or Celery knows how it ended."""
        task_ready(self)
        if self.afterwards is None:
            self.acknowledge()
        self.settle("returned")


def _through_the_gate(execute: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(execute)
    def execute_using_pool(self: OrchestratedRequest, pool: Any, **kwargs: Any) -> Any:
        # Always through the gate, even if the run was admitted meanwhile: a slot goes to the request that is first in
        # rank, and only the gate knows whether this one had its slot already.
        return execute(self, pool, **kwargs) if self.gate is None else self.gate.slot_given(self)

    return execute_using_pool


def _settling(on_success: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(on_success)
    def settling(self: OrchestratedRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        if self.gate is None or self.fence is None:
            return on_success(self, failed__retval__runtime, **kwargs)
        self.returned = True
        if self.void or self.timed_out:
            return self._leave_quietly()
        if not isinstance(failed__retval__runtime, tuple):
            return self.on_failure(failed__retval__runtime)  # on threads, SystemExit in a task comes as ExceptionInfo
        self.runtime = failed__retval__runtime[2]
        try:
            return on_success(self, failed__retval__runtime, **kwargs)  # if the run failed, it calls on_failure
        finally:
            self.settle("failed" if failed__retval__runtime[0] else "succeeded")

    return settling

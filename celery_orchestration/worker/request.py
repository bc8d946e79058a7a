"""A job's request: where Celery's worker and the gate meet.

Celery makes a subclass of ``Task.Request`` for every task and overrides ``execute_using_pool`` and
``on_success`` in it; :meth:`OrchestratedRequest.__init_subclass__` wraps those two on the class that Celery
makes. The rest is ordinary overriding. Every path on which the main process hears that a run is over ends in
exactly one :meth:`~celery_orchestration.worker.settlement.Settlement.settle`.

Celery calls a request in the worker's event loop; pools of threads and greenlets may tell how it ended from any thread.
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

#: Characters of a traceback that are kept: the last ones.
LONGEST_TRACEBACK = 8000


class OrchestratedRequest(JobRequest):
    #: execute_using_pool as Celery made it: gives the request to the execution pool.
    execute_now: Callable[..., Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        made = cls.__dict__
        if "execute_using_pool" in made:
            cls.execute_now = made["execute_using_pool"]
            cls.execute_using_pool = _through_the_gate(made["execute_using_pool"])
        if "on_success" in made:
            cls.on_success = _settling(made["on_success"])

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        self.began = time_accepted
        super().on_accepted(pid, time_accepted)
        if self.gate is not None and self.fence is not None:
            self.gate.begun(self)

    def fail(self, exc: Exception) -> None:
        """It has started, but is not given to the execution pool: a failed run like any other."""
        try:
            self.on_failure(raised(exc))
        finally:
            self.acknowledge()

    # -- the run is over ----------------------------------------------------------------------------

    def settle(self, outcome: str, then: Callable[[str], None] | None = None) -> None:
        """The run is over and its code gone: reports that, once. `then` gets the ledger's answer."""
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
            return self.interrupted(as_celery_does)  # by Celery itself: lost connection, cold shutdown
        return self._settle_after(as_celery_does, outcome)

    def _note_of(self, exc: BaseException) -> str:
        """For the history. A task that is over its soft limit says itself where the limit comes from."""
        found = default_limit(self.task, self.time_limits) if isinstance(exc, TimeLimitExceeded) else ""
        if not found:
            return note_of(exc)
        logger.error("Run %s of job %s exceeded its time limit: %s", self.id, self.name, found)
        return f"{note_of(exc)}: {found}"

    def _lost_lease(self) -> bool:
        """A worker that stood still may see that a run's time is over before it hears that its lease is lost."""
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
        """Announced before the child is killed: its room is free when the process is gone."""
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
        if self.gate is None or not self.stops_with_lease() or not self.gate.ended_by_deadline(self.started_at):
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
        """In the event loop, where the execution pool cannot interrupt it: it has failed. Its room is free when its
        code has returned, whatever the code returns then."""
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
                "Run %s exceeded its time limit, but Celery could not be told: its result may be missing", self.id
            )
        self.gate.timed_out(self)

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        if self.gate is None or self.fence is None or not self.gate.is_draining() or can_kill(pool):
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
        # broker may have delivered the message to another worker already, which dropped it because the run was running.
        theirs = self._message.channel is not None and not self.gate.is_draining()
        self.verdict = "requeued" if theirs else "returned"
        self.afterwards = lambda _: super(OrchestratedRequest, self).reject(requeue)
        if not self.timed_out:  # else its code goes on
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
        # Always through the gate, even if it was admitted meanwhile: a slot goes to the first in rank, and only the
        # gate knows whether this one had its slot already.
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
            return self.on_failure(failed__retval__runtime)  # threads: SystemExit in a task, as an ExceptionInfo
        self.runtime = failed__retval__runtime[2]
        try:
            return on_success(self, failed__retval__runtime, **kwargs)  # of a failure it calls on_failure
        finally:
            self.settle("failed" if failed__retval__runtime[0] else "succeeded")

    return settling

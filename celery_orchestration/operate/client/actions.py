"""The changes that an operator can make to jobs, runs and workers. Each is written into the audit."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery.result import denied_join_result
from kombu.exceptions import EncodeError, OperationalError

from celery_orchestration import commands
from celery_orchestration.errors import (
    BadCall,
    BrokerUnavailable,
    LedgerUnavailable,
    UnknownJob,
    UnknownRun,
    UnknownWorker,
)
from celery_orchestration.job import queues
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import BEAT, keys
from celery_orchestration.operate import app_jobs
from celery_orchestration.operate.acting_user import current_user
from celery_orchestration.operate.client.connection import PART, UNREACHABLE
from celery_orchestration.operate.client.queries import Queries
from celery_orchestration.operate.models import (
    Cancelled,
    CancelledRuns,
    JobStatus,
    Released,
    Status,
    Triggered,
)

#: How many workers are asked to sweep, as one of them may be busy.
MOST_ASKED = 3


class Actions(Queries):
    """Starts, stops and cancels."""

    def trigger(
        self, job: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, force: bool = False
    ) -> Triggered:
        """Sends a run of the job. `force`: it starts even if the job is disabled or everything is paused, and before
        other runs. All other rules of the gate still hold."""
        jobs = app_jobs.jobs(self._app)
        if job not in jobs:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs)}")
        task = self._app.tasks[job]
        self._ask(lambda: None)  # fail fast: Celery would retry for a long time if Redis is down
        headers = {queues.FORCE_HEADER: True} if force else {}
        try:
            with denied_join_result():  # the result is not read here, so the result backend is not asked
                result = task.apply_async(args, dict(kwargs or {}), headers=headers)
        except (TypeError, EncodeError) as exc:
            raise BadCall(f"job {show(job)} cannot be called like that: {exc}") from exc
        except (OperationalError, OSError) as exc:
            raise BrokerUnavailable(f"{self._broker()} did not accept the call: {exc}") from exc
        try:
            why = "forced" if force else ""
            self._ask(lambda: self._ledger.record_audit(current_user(), "trigger", keys.encode_job(job), why))
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"run {result.id} was sent, but is not in the audit: {exc}") from exc
        return Triggered(run_id=result.id, job=job, forced=force)

    def enable(self, job: str) -> JobStatus:
        """Lets the job run again: forgets its failures, and hands over the runs that were held, in rank order."""
        return self._set_enabled(job, True, "")

    def disable(self, job: str, reason: str = "") -> JobStatus:
        """Starts no more runs of the job until it is enabled again. Running runs continue."""
        return self._set_enabled(job, False, reason)

    def _set_enabled(self, job: str, on: bool, why: str) -> JobStatus:
        grants = self._ask_about(lambda: self._ledger.enable_or_disable(job, on, current_user(), why))
        if grants is None:
            raise self._unknown_job(job)
        self._hand_over(grants)
        return next(one for one in self.status(depths=False).jobs if one.name == job)

    def pause(self, reason: str = "") -> Status:
        """Starts no more runs of any job until :meth:`resume`. Running runs continue."""
        self._ask(lambda: self._ledger.pause_or_resume(True, current_user(), reason))
        return self.status(depths=False)

    def resume(self, reason: str = "") -> Status:
        self._hand_over(self._ask(lambda: self._ledger.pause_or_resume(False, current_user(), reason)))
        return self.status(depths=False)

    def cancel(self, run_id: str, terminate: bool = False) -> Cancelled:
        """Cancels a run that has not started: it ends as revoked. Ends a running one only if `terminate`.

        A worker reports the end to Celery: at once, or with its next sweep if it is busy.
        """
        state, grants = self._ask(lambda: self._ledger.cancel_by_hand(current_user(), run_id))
        self._hand_over(grants)
        if not state and run_id in self._fetched():
            self._revoke(run_id, "", terminate=False)
            return Cancelled(run_id=run_id, cancelled=True, terminated=False, state="fetched")
        if not state:
            raise UnknownRun(f"there is no run {show(run_id)}, or it has ended")
        cancelled = state in ("waiting", "later", "granted", "queued")
        if cancelled:
            self._ask_for_sweep()
        terminated = terminate and not cancelled
        if terminated:
            self._revoke(run_id, "terminated", terminate=True)
        return Cancelled(run_id=run_id, cancelled=cancelled, terminated=terminated, state=state)

    def _revoke(self, run_id: str, note: str, terminate: bool) -> None:
        self._ask(lambda: self._ledger.record_audit(current_user(), "cancel", run_id, note))
        try:
            self._app.control.revoke(run_id, terminate=terminate)
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} did not accept it, so the run continues: {exc}") from exc

    def cancel_all(self, job: str, state: str | None = None) -> CancelledRuns:
        """Cancels the runs of a job that have not started; `state` as in :meth:`unstarted`. They end as revoked.
        Running runs continue."""
        return self.cancel_runs(job, self.unstarted(job, state))

    def cancel_runs(self, job: str, run_ids: Sequence[str]) -> CancelledRuns:
        """Cancels those of these runs that have not started in the meantime."""
        count = 0
        for i in range(0, len(run_ids), PART):
            done, grants = self._ask(partial(self._ledger.cancel_all_by_hand, current_user(), run_ids[i : i + PART]))
            self._hand_over(grants)
            count += done
        if count:
            self._ask_for_sweep()
        return CancelledRuns(job=job, count=count)

    def _ask_for_sweep(self) -> None:
        """Asks some workers to sweep now, which finishes what the ledger has queued. Otherwise a regular sweep does."""
        workers = [one.name for one in self._ask(self._ledger.list_nodes).nodes if one.kind != BEAT]
        if workers:
            asked = random.sample(workers, min(len(workers), MOST_ASKED))
            with suppress(*UNREACHABLE):
                self._app.control.broadcast(commands.SWEEP, destination=asked)

    def drain(self, worker: str) -> None:
        """Tells a worker to take no more runs, and to stop when its runs have ended. Until then it is draining."""
        known = [one.name for one in self._ask(self._ledger.list_nodes).nodes if one.kind != BEAT]
        if worker not in known:
            raise UnknownWorker(f"there is no worker {show(worker)}{suggest(worker, known)}")
        self._ask(lambda: self._ledger.record_audit(current_user(), "drain", keys.encode_job(worker), ""))
        try:
            self._app.control.shutdown(destination=[worker])
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} did not accept it, so the worker continues: {exc}") from exc

    def release_all(self) -> Released:
        """Publishes all waiting runs without asking the gate. Messages that workers have fetched from a Redis broker
        and not acknowledged go back to their queues. For removing orchestration, when the workers run without it.

        Never call it twice at the same time: a run may be published twice.
        """
        count, which = 0, ""
        while True:
            which, part = self._ask(lambda which=which: self._ledger.release_waiting(current_user(), PART, which))  # type: ignore[misc]
            if not part:
                return Released(count=count, given_back=self._give_back_fetched())
            try:
                self._publish([(queue, Envelope.unpack(message), "") for _, queue, message in part])
            except UNREACHABLE as exc:
                raise BrokerUnavailable(
                    f"{self._broker()} did not accept them: {exc}; {count} runs were published, the others still wait"
                ) from exc
            count += self._ask(lambda part=part: self._ledger.confirm_released([id for id, _, _ in part]))  # type: ignore[misc]

    def _give_back_fetched(self) -> int:
        from celery_orchestration.operate import broker  # noqa: PLC0415

        try:
            return broker.give_back_all(self._app, self._store_names())
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not answer: {exc}") from exc

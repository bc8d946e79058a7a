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
from celery_orchestration.job.policy import show, suggest
from celery_orchestration.ledger import BEAT, keys
from celery_orchestration.operate import app_jobs
from celery_orchestration.operate.client.connection import PART, UNREACHABLE
from celery_orchestration.operate.client.queries import Queries
from celery_orchestration.operate.hints import me
from celery_orchestration.operate.models import (
    Cancelled,
    CancelledRuns,
    JobStatus,
    Released,
    Status,
    Triggered,
)

#: How many workers are asked to sweep: one may be busy.
MOST_ASKED = 3


class Actions(Queries):
    """Starts, stops and cancels."""

    def trigger(
        self, job: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, force: bool = False
    ) -> Triggered:
        """Asks for a run. `force`: it starts even if the job is disabled or everything paused, and before others; the
        other rules hold for it, too."""
        jobs = app_jobs.jobs(self._app)
        if job not in jobs:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs)}")
        task = self._app.tasks[job]
        self._ask(lambda: None)  # or else Celery tries for long to reach a Redis that is not there
        headers = {queues.FORCE_HEADER: True} if force else {}
        try:
            with denied_join_result():  # nobody waits for the result here: its store is not asked for it
                result = task.apply_async(args, dict(kwargs or {}), headers=headers)
        except (TypeError, EncodeError) as exc:
            raise BadCall(f"job {show(job)} cannot be called like that: {exc}") from exc
        except (OperationalError, OSError) as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take the call: {exc}") from exc
        try:
            self._ask(lambda: self._ledger.note(me(), "trigger", keys.encode_job(job), "forced" if force else ""))
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"run {result.id} was sent, but is not in the audit: {exc}") from exc
        return Triggered(run_id=result.id, job=job, forced=force)

    def enable(self, job: str) -> JobStatus:
        """The job runs again: its failures are forgotten, and the runs that were held go, in rank order."""
        return self._set_enabled(job, True, "")

    def disable(self, job: str, reason: str = "") -> JobStatus:
        """No run of the job starts until somebody enables it. What runs goes on."""
        return self._set_enabled(job, False, reason)

    def _set_enabled(self, job: str, on: bool, why: str) -> JobStatus:
        grants = self._ask_about(lambda: self._ledger.switch(job, on, me(), why))
        if grants is None:
            raise self._unknown_job(job)
        self._hand_over(grants)
        return next(one for one in self.status(depths=False).jobs if one.name == job)

    def pause(self, reason: str = "") -> Status:
        """No run of any job starts until somebody resumes. What runs goes on."""
        self._ask(lambda: self._ledger.pause(True, me(), reason))
        return self.status(depths=False)

    def resume(self, reason: str = "") -> Status:
        self._hand_over(self._ask(lambda: self._ledger.pause(False, me(), reason)))
        return self.status(depths=False)

    def cancel(self, run_id: str, terminate: bool = False) -> Cancelled:
        """Calls a run off that has not started: it ends as revoked. A running one only if `terminate`.

        How it ended is told to Celery by a worker: at once, or with its next sweep if it is busy.
        """
        state, grants = self._ask(lambda: self._ledger.cancel_by_hand(me(), run_id))
        self._hand_over(grants)
        if not state and run_id in self._fetched():
            self._revoke(run_id, "", terminate=False)
            return Cancelled(run_id=run_id, called_off=True, terminated=False, state="fetched")
        if not state:
            raise UnknownRun(f"there is no run {show(run_id)}, or it is over")
        called_off = state in ("waiting", "later", "granted", "queued")
        if called_off:
            self._ask_for_sweep()
        terminated = terminate and not called_off
        if terminated:
            self._revoke(run_id, "terminated", terminate=True)
        return Cancelled(run_id=run_id, called_off=called_off, terminated=terminated, state=state)

    def _revoke(self, run_id: str, note: str, terminate: bool) -> None:
        self._ask(lambda: self._ledger.note(me(), "cancel", run_id, note))
        try:
            self._app.control.revoke(run_id, terminate=terminate)
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take it, the run goes on: {exc}") from exc

    def cancel_all(self, job: str, state: str | None = None) -> CancelledRuns:
        """Calls off the runs of a job that have not started; `state` as in :meth:`unstarted`. They end as revoked. What
        runs goes on."""
        return self.cancel_runs(job, self.unstarted(job, state))

    def cancel_runs(self, job: str, run_ids: Sequence[str]) -> CancelledRuns:
        """Those of these runs that have not started meanwhile."""
        count = 0
        for i in range(0, len(run_ids), PART):
            done, grants = self._ask(partial(self._ledger.cancel_all_by_hand, me(), run_ids[i : i + PART]))
            self._hand_over(grants)
            count += done
        if count:
            self._ask_for_sweep()
        return CancelledRuns(job=job, count=count)

    def _ask_for_sweep(self) -> None:
        """A worker carries out what was left in the ledger. If none hears of it, one does so with its next sweep."""
        workers = [one.name for one in self._ask(self._ledger.members).members if one.kind != BEAT]
        if workers:
            asked = random.sample(workers, min(len(workers), MOST_ASKED))
            with suppress(*UNREACHABLE):
                self._app.control.broadcast(commands.SWEEP, destination=asked)

    def drain(self, worker: str) -> None:
        """Has a worker stop when its runs have ended: it takes no more, and shows as draining until it is gone."""
        known = [one.name for one in self._ask(self._ledger.members).members if one.kind != BEAT]
        if worker not in known:
            raise UnknownWorker(f"there is no worker {show(worker)}{suggest(worker, known)}")
        self._ask(lambda: self._ledger.note(me(), "drain", keys.encode_job(worker), ""))
        try:
            self._app.control.shutdown(destination=[worker])
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not take it, the worker goes on: {exc}") from exc

    def release_all(self) -> Released:
        """Publishes everything that waits now, past the gate, and gives back what workers have fetched from a Redis
        broker and not acknowledged: the way out, once the workers run without orchestration.

        One at a time: two that do it together may publish a run twice.
        """
        count, which = 0, ""
        while True:
            which, part = self._ask(lambda which=which: self._ledger.release(me(), PART, which))  # type: ignore[misc]
            if not part:
                return Released(count=count, given_back=self._give_back_fetched())
            try:
                self._publish([(queue, Envelope.unpack(message), "") for _, queue, message in part])
            except UNREACHABLE as exc:
                raise BrokerUnavailable(
                    f"{self._broker()} does not take them: {exc}; {count} runs were published, the others wait on"
                ) from exc
            count += self._ask(lambda part=part: self._ledger.released([id for id, _, _ in part]))  # type: ignore[misc]

    def _give_back_fetched(self) -> int:
        from celery_orchestration.operate import broker  # noqa: PLC0415

        try:
            return broker.give_back_all(self._app, self._store_names())
        except UNREACHABLE as exc:
            raise BrokerUnavailable(f"{self._broker()} does not answer: {exc}") from exc

"""Orchestration: the ledger from Python, for operators and their scripts."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from celery import Celery

from celery_orchestration import queues
from celery_orchestration.envelope import Envelope
from celery_orchestration.errors import LedgerUnavailable, UnknownJob, UnknownRun
from celery_orchestration.ledger import Grant, Ledger, keys
from celery_orchestration.operate import reading
from celery_orchestration.operate.models import (
    Cancelled,
    Change,
    DeadLetter,
    Ended,
    JobStatus,
    Letter,
    Purged,
    Released,
    Requeued,
    Status,
    Triggered,
)
from celery_orchestration.policy import show, suggest
from celery_orchestration.task import jobs_of, owner_of, read_settings

T = TypeVar("T")

#: How many runs a status lists at most.
MOST_RUNNING, MOST_WAITING = 1000, 100
#: How many runs or letters are dealt with at a time.
PART = 100

_NOT_REQUEUED = {
    "none": "it is no dead letter any more",
    "unknown": "no worker has its job",
    "exists": "a run of that id has not ended",
}


class Orchestration:
    """The jobs of an app, seen and steered from outside. Needs no worker to answer."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._settings = read_settings(app)
        self._ledger = Ledger.of(app, self._settings)

    def close(self) -> None:
        self._ledger.close()

    def status(self) -> Status:
        """Jobs, runs, workers and queues, as one script saw them."""
        document = self._ask(lambda: self._ledger.status(MOST_RUNNING, MOST_WAITING))
        sent = queues.destinations(self._app, jobs_of(self._app))
        return reading.status(self._settings.namespace, json.loads(document), sent)

    def history(self, job: str, count: int = 100) -> list[Ended]:
        """How the last runs of a job ended, the latest first."""
        found = self._ask(lambda: self._ledger.history(job, count))
        if found is None:
            raise self._unknown(job)
        return [reading.ended(job, one) for one in found]

    def audit(self, count: int = 100) -> list[Change]:
        """Who changed what, the latest first."""
        return [reading.change(one) for one in self._ask(lambda: self._ledger.audit(count))]

    # -- what people change: each is written into the audit -----------------------------------------

    def trigger(
        self, job: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, force: bool = False
    ) -> Triggered:
        """Asks for a run. `force`: it starts even if the job is disabled or everything paused, and before others; the
        other rules hold for it, too."""
        task = self._app.tasks.get(job) if job in jobs_of(self._app) else None
        if task is None:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs_of(self._app))}")
        self._ask(lambda: self._ledger.note(_me(), "trigger", keys.encode_job(job), "forced" if force else ""))
        headers = {queues.FORCE_HEADER: True} if force else {}
        result = task.apply_async(args, dict(kwargs or {}), headers=headers)
        return Triggered(run_id=result.id, job=job, forced=force)

    def enable(self, job: str) -> JobStatus:
        """The job runs again: its failures are forgotten, and the runs that were held go, in rank order."""
        return self._switch(job, True, "")

    def disable(self, job: str, reason: str = "") -> JobStatus:
        """No run of the job starts until somebody enables it. What runs goes on."""
        return self._switch(job, False, reason)

    def pause(self, reason: str = "") -> Status:
        """No run of any job starts until somebody resumes. What runs goes on."""
        self._ask(lambda: self._ledger.pause(True, _me(), reason))
        return self.status()

    def resume(self, reason: str = "") -> Status:
        self._hand_over(self._ask(lambda: self._ledger.pause(False, _me(), reason)))
        return self.status()

    def cancel(self, run_id: str, terminate: bool = False) -> Cancelled:
        """Calls a run off that has not started: it ends as revoked. A running one only if `terminate`.

        How it ended is told to Celery by a worker, within seconds.
        """
        endings, grants = self._ask(lambda: self._ledger.cancel_by_hand(_me(), run_id))
        self._hand_over(grants)
        if not endings and terminate:
            self._app.control.revoke(run_id, terminate=True)
        return Cancelled(run_id=run_id, had_not_started=bool(endings))

    def release_all(self) -> Released:
        """Publishes everything that waits, past the gate: the way out, once the workers run without orchestration."""
        count = 0
        while part := self._ask(lambda: self._ledger.release(_me(), PART)):
            with self._app.producer_or_acquire() as producer:
                for _, queue, message in part:
                    Envelope.unpack(message).publish(producer, queues.declared(self._app, queue), "")
            count += self._ask(lambda part=part: self._ledger.released([id for id, _, _ in part]))  # type: ignore[misc]
        return Released(count=count)

    # -- dead letters -------------------------------------------------------------------------------

    def dead_letters(self, job: str | None = None, count: int = 100, skip: int = 0) -> list[DeadLetter]:
        """Runs that failed for good, the latest first."""
        found = self._ask(lambda: self._ledger.letters(job or "", skip, count))
        return [reading.dead_letter(*one) for one in found]

    def dead_letter(self, run_id: str) -> Letter:
        found = self._ask(lambda: self._ledger.letter(run_id))
        if found is None:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return reading.letter(*found)

    def requeue(
        self, run_id: str | None = None, *, job: str | None = None, each: Callable[[str], None] | None = None
    ) -> Requeued:
        """One dead letter, those of a job, or all become runs again, from the beginning: without their retries so far,
        their `expires` and `eta`. They keep their ids, but for those that were revoked.

        `each` is called with every id, when it is done.
        """
        runs, left = {}, {}
        for id in [run_id] if run_id is not None else self._letters(job):
            what, new = self._requeue(id)
            if what == "ok":
                runs[id] = new
            elif run_id is not None and what == "none":
                raise UnknownRun(f"there is no dead letter {show(run_id)}")
            else:
                left[id] = _NOT_REQUEUED[what]
            if each is not None:
                each(id)
        return Requeued(runs=runs, left=left)

    def purge(self, run_id: str | None = None, *, job: str | None = None) -> Purged:
        """One dead letter, those of a job, or all go."""
        ids = [run_id] if run_id is not None else list(self._letters(job))
        parts = [ids[i : i + PART] for i in range(0, len(ids), PART)]
        return Purged(count=sum(self._ask(lambda part=part: self._ledger.purge(_me(), part)) for part in parts))  # type: ignore[misc]

    def _letters(self, job: str | None) -> Iterator[str]:
        """The ids of all that there are now, the oldest first."""
        found: list[str] = []
        while part := self.dead_letters(job, PART, len(found)):
            found += [letter.id for letter in part]
        return iter(list(dict.fromkeys(reversed(found))))

    def _requeue(self, id: str) -> tuple[str, str]:
        found = self._ask(lambda: self._ledger.letter(id))
        if found is None:
            return "none", id
        _, revoked, message = found
        new = str(uuid4()) if revoked else id
        envelope = Envelope.unpack(message).again(new)
        attempt = keys.attempt(envelope.headers.get("replaced_task_nesting") or 0, 0)
        what, grants = self._ask(lambda: self._ledger.requeue(_me(), id, new, attempt, envelope.pack()))
        self._hand_over(grants)
        return what, new

    # -- inside -------------------------------------------------------------------------------------

    def _switch(self, job: str, on: bool, why: str) -> JobStatus:
        grants = self._ask(lambda: self._ledger.switch(job, on, _me(), why))
        if grants is None:
            raise self._unknown(job)
        self._hand_over(grants)
        return next(one for one in self.status().jobs if one.name == job)

    def _unknown(self, job: str) -> UnknownJob:
        known = [one.name for one in self.status().jobs]
        return UnknownJob(f"no worker has brought a job {show(job)} yet{suggest(job, known)}")

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            self._ledger.check(owner_of(self._app))
            return call()
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"the ledger at {self._ledger.address} does not answer: {exc}") from exc

    def _hand_over(self, grants: Sequence[Grant]) -> None:
        """Publishes them. What does not get published is, by the next sweep."""
        if not grants:
            return
        with self._app.producer_or_acquire() as producer:
            for grant in grants:
                found = self._ledger.granted(grant)
                if found is not None:
                    queue, message = found
                    Envelope.unpack(message).publish(producer, queues.declared(self._app, queue), grant.number)
        self._ledger.published(grants)


def _me() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a user id without a name
        return f"{os.getuid()}@{socket.gethostname()}"

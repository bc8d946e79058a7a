"""Dead letters: the runs that failed for good, listed, made runs again, or deleted."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from celery_orchestration.errors import (
    BadCall,
    UnknownJob,
    UnknownRun,
)
from celery_orchestration.job import queues
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import keys
from celery_orchestration.operate import app_jobs
from celery_orchestration.operate.acting_user import current_user
from celery_orchestration.operate.client.connection import PART
from celery_orchestration.operate.client.queries import Queries
from celery_orchestration.operate.history.records import read_dead_letter, read_letter
from celery_orchestration.operate.models import (
    DeadLetter,
    Letter,
    Purged,
    Requeued,
)

_NOT_REQUEUED = {
    "none": "it is no longer a dead letter",
    "unknown": "no worker has its job",
    "exists": "a run of that id has not ended",
    "protocol": "its message is of Celery's protocol 1",
}


class DeadLetters(Queries):
    """Lists, requeues and purges dead letters."""

    def dead_letters(self, job: str | None = None, count: int = 100, skip: int = 0) -> list[DeadLetter]:
        """Runs that failed for good, the latest first."""
        found = self._ask_about(lambda: self._ledger.list_dead_letters(job, max(0, skip), count))
        if found is None:
            raise self._unknown_job(job or "")
        return [read_dead_letter(*one) for one in found]

    def dead_letter(self, run_id: str) -> Letter:
        found = self._ask(lambda: self._ledger.read_dead_letter(run_id))
        if found is None:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return read_letter(*found)

    def requeue(
        self,
        run_id: str | None = None,
        *,
        job: str | None = None,
        everything: bool = False,
        as_job: str | None = None,
    ) -> Requeued:
        """Makes one dead letter, those of a job, or all of them runs again. They begin anew: without their retries so
        far, `expires` and `eta`. They keep their ids, unless these were revoked.

        `as_job`: they become runs of this other job. Then waiting runs can be named, too: for a job that was renamed
        or removed."""
        ids = self._chosen(run_id, job, everything)
        if as_job is not None and job is not None:
            ids += self._unstarted(job, "waiting")
        found = self.requeue_letters(ids, as_job)
        if run_id is not None and found.left.get(run_id) == _NOT_REQUEUED["none"]:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return found

    def requeue_letters(self, run_ids: Sequence[str], as_job: str | None = None) -> Requeued:
        """Makes these dead letters runs again, in this order. Those that no longer exist are reported as left."""
        queue = None if as_job is None else self._queue_of(as_job)
        runs, left = {}, {}
        for id in run_ids:
            what, new = self._requeue(id) if as_job is None else self._requeue_as(id, as_job, queue or "")
            if what == "ok":
                runs[id] = new
            else:
                left[id] = _NOT_REQUEUED[what]
        return Requeued(runs=runs, left=left)

    def purge(self, run_id: str | None = None, *, job: str | None = None, everything: bool = False) -> Purged:
        """Removes one dead letter, those of a job, or all of them."""
        found = self.purge_letters(self._chosen(run_id, job, everything))
        if run_id is not None and not found.count:
            raise UnknownRun(f"there is no dead letter {show(run_id)}")
        return found

    def purge_letters(self, run_ids: Sequence[str]) -> Purged:
        """Removes those of these dead letters that still exist."""
        parts = [run_ids[i : i + PART] for i in range(0, len(run_ids), PART)]
        who = current_user()
        count = sum(self._ask(lambda part=part: self._ledger.purge_dead_letters(who, part)) for part in parts)  # type: ignore[misc]
        return Purged(count=count)

    def _chosen(self, run_id: str | None, job: str | None, everything: bool) -> list[str]:
        """The ids of the chosen dead letters, the oldest first."""
        if sum((run_id is not None, job is not None, everything)) != 1:
            raise BadCall("give one of: a run, a job, everything")
        if run_id is not None:
            return [run_id]
        found: list[str] = []
        while part := self.dead_letters(job, PART, len(found)):
            found += [letter.id for letter in part]
        return list(dict.fromkeys(reversed(found)))

    def _requeue(self, id: str) -> tuple[str, str]:
        found = self._ask(lambda: self._ledger.read_dead_letter(id))
        if found is None:
            return "none", id
        _, revoked, message = found
        new = str(uuid4()) if revoked else id
        envelope = Envelope.unpack(message)
        envelope = envelope.again(new if revoked else envelope.headers.get("id") or id)
        attempt = keys.attempt(envelope.headers.get("replaced_task_nesting") or 0, 0)
        what, grants = self._ask(lambda: self._ledger.requeue(current_user(), id, new, attempt, envelope.pack()))
        self._hand_over(grants)
        return what, new

    def _requeue_as(self, id: str, job: str, queue: str) -> tuple[str, str]:
        found = self._ask(lambda: self._ledger.read_dead_letter(id, or_run=True))
        if found is None:
            return "none", id
        info, revoked, message = found
        new, envelope = str(uuid4()) if revoked else id, Envelope.unpack(message)
        if info != "{}":  # a dead letter begins anew
            envelope = envelope.again(new if revoked else envelope.headers.get("id") or id)
        try:
            envelope = envelope.renamed(job, queue)
        except ValueError:
            return "protocol", id
        headers = envelope.headers
        attempt = keys.attempt(headers.get("replaced_task_nesting") or 0, headers.get("retries") or 0)
        other = job, queue, queues.granted_queue_for(queue, self._app.conf.task_default_queue)
        what, grants = self._ask(lambda: self._ledger.requeue(current_user(), id, new, attempt, envelope.pack(), other))
        self._hand_over(grants)
        return what, new

    def _queue_of(self, job: str) -> str:
        jobs = app_jobs.jobs(self._app)
        if job not in jobs:
            raise UnknownJob(f"there is no job {show(job)} in this app{suggest(job, jobs)}")
        found = queues.destinations(self._app, [job])
        if not found:
            raise BadCall(f"job {show(job)} has no queue of a fixed name")
        return next(iter(found))

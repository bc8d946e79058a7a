"""Orchestration: the ledger from Python, for operators and their scripts."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from celery import Celery

from celery_orchestration import queues
from celery_orchestration.envelope import Envelope
from celery_orchestration.errors import LedgerUnavailable, UnknownJob
from celery_orchestration.ledger import Grant, Ledger
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate import reasons
from celery_orchestration.operate.models import (
    Change,
    Disabled,
    JobStatus,
    QueueStatus,
    RunStatus,
    Status,
    WorkerStatus,
)
from celery_orchestration.policy import Priority, show, suggest
from celery_orchestration.task import jobs_of, owner_of, read_settings

T = TypeVar("T")

#: How many runs a status lists at most.
MOST_RUNNING, MOST_WAITING = 1000, 100


class Orchestration:
    """The jobs of an app, seen from outside. Needs no worker to answer."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._settings = read_settings(app)
        self._ledger = Ledger.of(app, self._settings)

    def status(self) -> Status:
        """Jobs, runs, workers and queues, as one script saw them."""
        document = self._ask(lambda: self._ledger.status(MOST_RUNNING, MOST_WAITING))
        sent = queues.destinations(self._app, jobs_of(self._app))
        return read(self._settings.namespace, json.loads(document), sent)

    # -- what people change: each is written into the audit -----------------------------------------

    def enable(self, job: str) -> None:
        """The job runs again: its failures are forgotten, and the runs that were held go, in rank order."""
        self._switch(job, True, "")

    def disable(self, job: str, reason: str = "") -> None:
        """No run of the job starts until somebody enables it. What runs goes on."""
        self._switch(job, False, reason)

    def pause(self, reason: str = "") -> None:
        """No run of any job starts until somebody resumes. What runs goes on."""
        self._ask(lambda: self._ledger.pause(True, _me(), reason))

    def resume(self, reason: str = "") -> None:
        self._hand_over(self._ask(lambda: self._ledger.pause(False, _me(), reason)))

    def cancel(self, run_id: str, terminate: bool = False) -> bool:
        """Calls a run off that has not started: it ends as revoked. A running one only if `terminate`.

        Returns whether it had not started. How it ended is told to Celery by a worker, within seconds.
        """
        endings, grants = self._ask(lambda: self._ledger.cancel_by_hand(_me(), run_id))
        self._hand_over(grants)
        if not endings and terminate:
            self._app.control.revoke(run_id, terminate=True)
        return bool(endings)

    def audit(self, count: int = 100) -> list[Change]:
        """Who changed what, the latest first."""
        found = [json.loads(one) for one in self._ask(lambda: self._ledger.audit(count))]
        return [Change(**{**one, "at": _when(one["at"]), "about": decode_job(one["about"])}) for one in found]

    def close(self) -> None:
        self._ledger.close()

    def _switch(self, job: str, on: bool, why: str) -> None:
        grants = self._ask(lambda: self._ledger.switch(job, on, _me(), why))
        if grants is None:
            known = [one.name for one in self.status().jobs]
            raise UnknownJob(f"no worker has brought a job {show(job)} yet{suggest(job, known)}")
        self._hand_over(grants)

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


def read(namespace: str, found: Mapping[str, Any], sent: Mapping[str, list[str]]) -> Status:
    """The ledger's document as a model. Lua's empty tables come as {} where a list is meant.

    `sent`: the queues that jobs are sent to, each with its jobs.
    """
    now = found["now"]
    workers = {worker["id"]: worker for worker in found["workers"] or ()}
    runs = [_run(run, now, workers, None) for run in found["running"] or ()]

    def holder(encoded: str) -> str:
        name = decode_job(encoded)
        run = next((run for run in runs if run.job == name), None)
        if run is None:
            return ""
        if run.state == "running":
            return f"running on {run.worker} for {run.seconds:.0f} s"
        return f"about to start for {run.seconds:.0f} s"

    waits = []
    for wait in found["waits"] or ():
        words = _words(wait["reason"])
        waits.append(_run(wait, now, workers, reasons.sentence(words, holder)))
    slots, under_way = found.get("slots") or {}, found.get("under_way") or {}
    to_queue = Counter(wait.queue for wait in waits)
    all_queues = [
        QueueStatus(name=name, slots=slots.get(name, 0), under_way=under_way.get(name, 0), waiting=to_queue[name])
        for name in sorted({*slots, *under_way, *to_queue, *sent})
    ]
    return Status(
        namespace=namespace,
        at=_when(now),
        paused=found["paused"],
        running=found["total"],
        max_running=found.get("cap"),
        waiting=found["waiting"],
        jobs=sorted((_job(job) for job in found["jobs"] or ()), key=lambda job: job.name),
        runs=runs,
        waits=waits,
        workers=sorted((_worker(worker, now) for worker in workers.values()), key=lambda worker: worker.name),
        queues=all_queues,
        problems=_problems(all_queues, found, sent),
    )


def _words(reason: Sequence[str]) -> list[str]:
    if reason[0] == "disabled":
        off = json.loads(reason[1])
        return ["disabled", f"{off['why']} ({off['by']})" if off["why"] else f"by {off['by']}"]
    return [decode_job(word) if index == 1 else word for index, word in enumerate(reason)]


def _problems(all_queues: list[QueueStatus], found: Mapping[str, Any], sent: Mapping[str, list[str]]) -> list[str]:
    if all(_is_lost(worker, found["now"]) for worker in found["workers"] or ()):
        problems = ["no worker is alive"]
    else:
        problems = [_unserved(queue, sent.get(queue.name, [])) for queue in all_queues if queue.slots == 0]
    if found["paused"]:
        problems.append("everything is paused")
    return problems


def _unserved(queue: QueueStatus, jobs: list[str]) -> str:
    why = []
    if queue.waiting or queue.under_way:
        why.append("runs are to be handed over")
    if jobs:
        why.append(queues.sent_there(jobs))
    return f"no live worker serves queue {queue.name}, where {' and '.join(why)}"


def _job(job: Mapping[str, Any]) -> JobStatus:
    state = "disabled" if job.get("off") else "running" if job["running"] else "waiting" if job["waiting"] else "idle"
    return JobStatus(
        name=decode_job(job["name"]),
        state=state,
        running=job["running"],
        max_running=job.get("cap"),
        keyed=job["keyed"],
        waiting=job["waiting"],
        oldest_arrival=_when(job.get("oldest")),
        last_start=_when(job.get("begun")),
        last_end=_when(job.get("ended")),
        last_outcome=None if job.get("ended") is None else "succeeded" if job.get("succeeded") else "failed",
        last_success=_when(job.get("succeeded_at")),
        failures=job.get("fails") or 0,
        max_consecutive_failures=job.get("fmax"),
        last_error=job.get("err") or None,
        disabled=_disabled(job.get("off")),
        would_have_waited=job.get("observed") or {},
    )


def _disabled(off: str | None) -> Disabled | None:
    if not off:
        return None
    found = json.loads(off)
    return Disabled(by=found["by"], why=found["why"], at=_when(found["at"]))


def _run(run: Mapping[str, Any], now: int, workers: Mapping[str, Any], reason: str | None) -> RunStatus:
    worker = workers.get(run.get("worker") or "")
    return RunStatus(
        id=run["id"],
        job=decode_job(run["job"]),
        state=run["state"],
        key=run["key"],
        priority=Priority(run["priority"]).label,
        retries=run["attempt"] & ((1 << 20) - 1),
        worker=worker["name"] if worker else None,
        queue=run["queue"],
        fence=int(run["fence"]) if run.get("fence") else None,
        recoveries=run["recoveries"],
        arrived=_when(run["arrived"]),
        since=_when(run["since"]),
        seconds=max(0.0, (now - run["since"]) / 1000),
        expires=_when(run.get("expires")),
        reason=reason,
    )


def _is_lost(worker: Mapping[str, Any], now: int) -> bool:
    """By the ledger clock, or, as that stands still while nobody sweeps, by its silence."""
    return bool(worker["left"] <= 0 or now - worker["beat"] > worker["lease"])


def _worker(worker: Mapping[str, Any], now: int) -> WorkerStatus:
    state = "lost" if _is_lost(worker, now) else "busy" if worker["running"] else "idle"
    return WorkerStatus(
        name=worker["name"],
        host=worker["host"],
        pid=worker["pid"],
        state=state,
        execution_pool=worker["kind"],
        slots=worker["slots"],
        running=worker["running"],
        queues=worker["queues"] or [],
        mode=worker["mode"],
        since=_when(worker["since"]),
        last_beat=_when(worker["beat"]),
    )


def _when(ms: int | None) -> Any:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc)

"""The overview: problems with causes and buttons; then scheduler, workers, queues, and jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from celery_orchestration.operate.models import JobStatus, QueueStatus, RunStatus, Status
from celery_orchestration.operate.status.findings import Findings
from celery_orchestration.operate.status.urgency import by_urgency
from celery_orchestration.web.live import Snapshot
from celery_orchestration.web.pages import PageData, Query
from celery_orchestration.web.svg import spark

#: How many jobs, queues and findings are listed here; the other pages list all of them.
MOST_JOBS, MOST_QUEUES, MOST_FINDINGS, MOST_RUNS = 40, 12, 8, 8


@dataclass(frozen=True)
class JobRow:
    job: JobStatus
    #: The chain from this job to the root cause of its wait.
    chain: Sequence[str]
    #: The reason why its first run waits, and the rule.
    reason: str
    rule: str | None
    ticks: Markup


@dataclass(frozen=True)
class QueueRow:
    queue: QueueStatus
    line: Markup


def view(data: PageData, asked: Query) -> dict[str, Any]:
    status = data.status
    first = by_urgency(status.jobs)[:MOST_JOBS]
    states = Counter(worker.state for worker in status.workers)
    alive = [worker for worker in status.workers if worker.state != "dead"]
    queues = sorted(status.queues, key=lambda one: (one.slots > 0, -(one.depth or 0), one.name))
    return {
        "headline": headline(status, data.snapshot.causes),
        "findings": data.snapshot.causes.findings[:MOST_FINDINGS],
        "more_findings": len(data.snapshot.causes.findings) - MOST_FINDINGS,
        "rows": job_rows(data, first),
        "jobs_count": len(status.jobs),
        "worker_states": {state: states[state] for state in ("busy", "idle", "draining", "dead") if states[state]},
        "slots": sum(worker.slots for worker in alive),
        "busy_slots": sum(worker.running for worker in alive),
        "queue_rows": [QueueRow(one, depth_line(data.snapshot, one.name)) for one in queues[:MOST_QUEUES]],
        "more_queues": len(queues) - MOST_QUEUES,
        "longest": longest(status),
        "next_fire": min((job.next_fire for job in status.jobs if job.next_fire), default=None),
    }


def headline(status: Status, causes: Findings) -> str:
    """The headline of the page."""
    if not status.jobs and not status.workers:
        return "No worker has registered a job yet"
    count = len(causes.wrong)
    if count:
        return "One problem needs you" if count == 1 else f"{count} problems need you"
    return "Everything is all right"


def job_rows(data: PageData, jobs: Sequence[JobStatus]) -> list[JobRow]:
    first: dict[str, RunStatus] = {}
    for one in data.status.waits:
        first.setdefault(one.job, one)
    rows = []
    for job in jobs:
        run = first.get(job.name)
        rows.append(
            JobRow(
                job,
                data.snapshot.causes.chains.get(job.name, ()),
                (run.reason or "") if run else "",
                run.rule if run else None,
                spark.ticks(data.history(job, spark.TICKS)),
            )
        )
    return rows


def longest(status: Status) -> list[RunStatus]:
    """The runs that have been running longest."""
    running = [run for run in status.runs if run.state == "running"]
    return sorted(running, key=lambda run: (run.timed_out is None, run.since))[:MOST_RUNS]


def depth_line(snapshot: Snapshot, queue: str) -> Markup:
    values = [one.depths.get(queue, 0) for one in snapshot.samples]
    return spark.line(values, f"messages in {queue} over the last minutes, at most {max(values, default=0)}")

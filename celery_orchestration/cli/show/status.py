"""Status: is everything all right?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from celery_orchestration.cli.show.base import ago, duration, plain, print_to, rest, state, table
from celery_orchestration.operate.models import (
    Progress,
    RunStatus,
    SchedulerStatus,
    Status,
)


def print_status(status: Status, file: IO[str]) -> None:
    print_to(render(status), file)


def render(status: Status, rows: int = 20) -> Group:
    head = f"{status.namespace}: {status.running} running, {status.waiting} waiting"
    if status.later:
        head += f", {status.later} not due yet"
    if status.dead_letters:
        head += f", {status.dead_letters} dead letters"
    if status.max_running is not None:
        head += f", at most {status.max_running} at once"
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [plain(f"! {problem}", "bold red") for problem in status.problems]
    parts += _scheduler(status.scheduler, status.at)
    parts.append(_jobs(status))
    if status.runs:
        parts.append(_runs(status.runs, rows))
    if status.waits:
        parts.append(_waits(status, rows))
    if status.workers:
        parts.append(_workers(status))
    parts += [
        plain(f"worker {one.name} died {ago(status.at, one.at)}, with {one.runs} runs", "red")
        for one in status.died
        if (status.at - one.at).total_seconds() < SHOW_DEATHS
    ]
    return Group(*parts)


def _scheduler(scheduler: SchedulerStatus, now: datetime) -> list[Text]:
    said = []
    if scheduler.leader is not None and scheduler.since is not None:
        said.append(f"{scheduler.leader} has led for {duration((now - scheduler.since).total_seconds())}")
    if scheduler.standbys:
        many = len(scheduler.standbys)
        said.append(f"{many} stands by" if many == 1 else f"{many} stand by")
    if scheduler.entries:
        said.append(f"{scheduler.entries} entries" if scheduler.entries != 1 else "1 entry")
    return [plain(f"scheduler: {', '.join(said)}")] if said else []


#: Seconds that a death is shown.
SHOW_DEATHS = 3600


def _jobs(status: Status) -> RenderableType:
    rows = []
    for job in status.jobs:
        cap = "" if job.max_running is None else f"/{job.max_running}{' per key' if job.keyed else ''}"
        rows.append(
            (
                plain(job.name),
                state(job.state),
                f"{job.running}{cap}",
                str(job.waiting),
                ago(status.at, job.last_end),
                state(job.last_outcome or ""),
            )
        )
    observed = [
        plain(f"{job.name} would have waited {count} times for {reason}")
        for job in status.jobs
        for reason, count in sorted(job.would_have_waited.items())
    ]
    observed += [
        plain(f"{job.name} is disabled: {job.disabled.why} ({job.disabled.by})", "red")
        for job in status.jobs
        if job.disabled is not None
    ]
    return Group(table("jobs", ("job", "state", "running", "waiting", "last ended", "outcome"), rows), *observed)


def _runs(runs: Sequence[RunStatus], most: int) -> RenderableType:
    rows = [
        (
            plain(run.id[:8]),
            plain(run.job),
            state("timed out" if run.timed_out else run.state),
            plain(run.worker or f"queue {run.queue}"),
            duration(run.seconds),
            plain(_progress(run.progress)),
        )
        for run in runs[:most]
    ]
    columns = ("run", "job", "state", "worker", "for", "progress")
    shown = len(columns) if any(run.progress for run in runs[:most]) else len(columns) - 1
    return Group(table("running", columns[:shown], [row[:shown] for row in rows]), *rest(len(runs), most))


#: Up to so many, "3/10" says more than "30 %"; characters of a note that fit into a table.
_COUNTED, _NOTE = 100, 60


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return ""
    done, total, note = progress.done, progress.total, progress.note
    if total is None:
        far = f"{done:g}" if isinstance(done, float) else str(done)
    elif isinstance(done, int) and isinstance(total, int) and total <= _COUNTED:
        far = f"{done}/{total}"
    else:
        far = f"{100 * done / total:.0f} %" if total else "100 %"
    return f"{far} {note if len(note) <= _NOTE else note[:_NOTE] + '…'}".strip()


def _waits(status: Status, most: int) -> RenderableType:
    rows = [
        (plain(run.id[:8]), plain(run.job), duration(run.seconds), plain(run.reason or ""))
        for run in status.waits[:most]
    ]
    return Group(table("waiting", ("run", "job", "for", "why"), rows), *rest(status.waiting, most))


def _workers(status: Status) -> RenderableType:
    rows = [
        (
            plain(worker.name),
            state(worker.state),
            f"{worker.running}/{worker.slots}",
            str(worker.done),
            str(worker.failed),
            worker.execution_pool,
            plain(", ".join(worker.queues)),
        )
        for worker in status.workers
    ]
    return table("workers", ("worker", "state", "running", "done", "failed", "pool", "queues"), rows)

"""The sections of a status: jobs, pools, runs, waiting runs, queues and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

from rich.text import Text

from celery_orchestration.cli.show import pools as pool_views
from celery_orchestration.cli.show.base import ago, many, plain, state
from celery_orchestration.cli.show.grid import Column, Section, grid, wrapped
from celery_orchestration.operate.clock import lasting, took
from celery_orchestration.operate.models import (
    JobStatus,
    Progress,
    QueueStatus,
    RunStatus,
    Status,
    WorkerStatus,
)
from celery_orchestration.operate.pools.models import PoolStatus
from celery_orchestration.operate.status.urgency import by_urgency, is_failing

T = TypeVar("T")


def _section(
    columns: Sequence[Column],
    found: Sequence[T],
    row: Callable[[T], Sequence[Text]],
    width: int,
    most: int,
    below: Callable[[T], list[Text]] = lambda _: [],
    total: int | None = None,
) -> Section:
    """A section with the first rows, not more than `most`."""
    shown = found[:most]
    head, *lines = grid(columns, [row(one) for one in shown], width)
    blocks = [[line, *below(one)] for line, one in zip(lines, shown, strict=True)]
    return Section([Text(), head], blocks, len(found) if total is None else total)


_JOB_COLUMNS = (
    Column("job", cut="left"),
    Column("state"),
    Column("prio", goes=7),
    Column("running", goes=2, right=True),
    Column("waiting", goes=1, right=True),
    Column("fails", goes=4, right=True),
    Column("last run", goes=5, right=True),
    Column("took", goes=6, right=True),
    Column("next", goes=3, right=True),
)


def jobs(status: Status, width: int, most: int) -> Section:
    jobs = by_urgency(status.jobs)
    return _section(
        _JOB_COLUMNS, jobs, lambda job: _job(job, status.at), width, most, lambda job: _about(job, status.at, width)
    )


def _job(job: JobStatus, now: datetime) -> Sequence[Text]:
    busy = job.running or job.max_running is not None
    cap = "" if job.max_running is None else f"/{job.max_running}{' a key' if job.keyed else ''}"
    limit = "" if job.max_consecutive_failures is None else f"/{job.max_consecutive_failures}"
    waiting = str(job.waiting + job.later) if job.waiting or job.later else ""
    if job.oldest_arrival is not None:
        waiting += f" ({lasting(max(0, _seconds(now, job.oldest_arrival)))})"
    return (
        plain(job.name),
        Text("overdue", "red") if job.overdue and job.state == "idle" else state(job.state),
        Text("" if job.priority in (None, "normal") else str(job.priority)),
        Text(f"{job.running}{cap}" if busy else ""),
        Text(waiting),
        Text(f"{job.failures}{limit}" if job.failures else "", "red"),
        Text(ago(now, job.last_end), "red" if job.last_outcome == "failed" else ""),
        Text("" if job.last_seconds is None else took(job.last_seconds)),
        _next(job, now),
    )


def _next(job: JobStatus, now: datetime) -> Text:
    if job.next_fire is None:
        return Text("")
    seconds = (job.next_fire - now).total_seconds()
    return Text(f"in {lasting(seconds)}") if seconds >= 0 else Text(f"{lasting(-seconds)} late", "yellow")


def _about(job: JobStatus, now: datetime, width: int) -> list[Text]:
    """Lines below a job: why it is disabled, overdue or failing."""
    parts = []
    if job.disabled is not None:
        by = "" if job.disabled.by == "failures" else f" ({job.disabled.by})"
        why = f"disabled {ago(now, job.disabled.at)}: {job.disabled.why or 'no reason given'}{by}"
        probe = "" if job.next_probe is None else f", retried in {lasting(max(0, _seconds(job.next_probe, now)))}"
        parts.append(plain(why + probe, "red"))
    if job.overdue:
        last = "it never succeeded" if job.last_success is None else f"last success {ago(now, job.last_success)}"
        parts.append(plain(f"overdue: {last}", "red"))
    shown_already = job.disabled is not None and job.last_error is not None and job.last_error in job.disabled.why
    if job.last_error and is_failing(job) and not shown_already:
        parts.append(plain(f"last error: {job.last_error}", "red"))
    parts += [
        plain(f"would have waited {many(count, 'time')} for {reason}")
        for reason, count in sorted(job.would_have_waited.items())
    ]
    return [line for one in parts for line in wrapped(one, width, 4)]


def _seconds(later: datetime, earlier: datetime) -> float:
    return (later - earlier).total_seconds()


def pools(status: Status, width: int, most: int) -> Section:
    """Pools that lack workers first. A single pool is shown with its reason and its last changes."""
    order = sorted(status.pools, key=lambda pool: (pool.live >= pool.wanted, pool.name))
    about = _about_pool(status, width)
    return _section(pool_views.COLUMNS, order, lambda pool: pool_views.pool_row(pool, {}), width, most, about)


def _about_pool(status: Status, width: int) -> Callable[[PoolStatus], list[Text]]:
    def about(pool: PoolStatus) -> list[Text]:
        if len(status.pools) > 1:
            return []
        why = wrapped(plain(pool.reason), width, 4, 3)
        return [*why, *pool_views.changes_lines(pool.changes[:5], status.at, width)]

    return about


_RUN_COLUMNS = (
    Column("running"),
    Column("job", cut="left"),
    Column("state", goes=3),
    Column("worker", goes=4, cut="right"),
    Column("for", goes=1, right=True),
    Column("progress", goes=2, cut="right"),
)

_WAIT_COLUMNS = (
    Column("waiting"),
    Column("job", cut="left"),
    Column("for", goes=1, right=True),
    Column("why"),
)

#: Width of a bar; of a bar in a narrow window; and the columns of a window that is not narrow.
BAR, SHORT_BAR, WIDE = 20, 10, 100


def runs(status: Status, width: int, most: int, bars: bool) -> Section:
    """The longest runs first."""
    size = BAR if width >= WIDE else SHORT_BAR
    far = partial(_bar, size=size) if bars else progress_text
    order = sorted(status.runs, key=lambda run: (run.timed_out is None, -run.seconds))
    return _section(_RUN_COLUMNS, order, lambda run: _run(run, far), width, most)


def _run(run: RunStatus, far: Callable[[Progress | None], str]) -> Sequence[Text]:
    return (
        plain(run.id[:8]),
        plain(run.job),
        state("timed out" if run.timed_out else run.state),
        plain(run.worker or f"queue {run.queue}"),
        Text(lasting(run.seconds)),
        plain(far(run.progress)),
    )


def waits(status: Status, width: int, most: int) -> Section:
    """The reason stands beside the run if it fits, else below it."""
    shown = status.waits[:most]
    total = max(status.waiting + status.later, len(status.waits))
    beside = [(*_wait(run), plain(run.reason or "")) for run in shown]
    natural = sum(max((row[at].cell_len for row in beside), default=0) for at in range(4)) + 6
    if natural <= width:
        head, *lines = grid(_WAIT_COLUMNS, beside, width)
        return Section([Text(), head], [[line] for line in lines], total)
    return _section(
        _WAIT_COLUMNS[:3], shown, _wait, width, most, lambda run: wrapped(plain(run.reason or ""), width, 4), total
    )


def _wait(run: RunStatus) -> tuple[Text, Text, Text]:
    return plain(run.id[:8]), plain(run.job), Text(lasting(run.seconds))


#: Up to this total progress is shown as "3/10", then as "30 %"; and the most characters of a note.
_COUNTED, _NOTE = 100, 60


def progress_text(progress: Progress | None) -> str:
    if progress is None:
        return ""
    return f"{_far(progress)} {_note(progress)}".strip()


def _far(progress: Progress) -> str:
    done, total = progress.done, progress.total
    if total is None:
        return f"{done:g}" if isinstance(done, float) else str(done)
    if isinstance(done, int) and isinstance(total, int) and total <= _COUNTED:
        return f"{done}/{total}"
    return f"{100 * done / total:.0f} %" if total else "100 %"


def _note(progress: Progress) -> str:
    return progress.note if len(progress.note) <= _NOTE else progress.note[:_NOTE] + "…"


def _bar(progress: Progress | None, size: int) -> str:
    """The number comes first, as the end may be cut. Without a total there is no bar."""
    if progress is None or progress.total is None:
        return progress_text(progress)
    share = min(1.0, max(0.0, progress.done / progress.total)) if progress.total else 1.0
    full = int(share * size)
    return f"{_far(progress):>5} {'█' * full}{'░' * (size - full)} {_note(progress)}".rstrip()


_QUEUE_COLUMNS = (
    Column("queue", cut="right"),
    Column("depth", right=True),
    Column("served by", goes=1),
    Column("under way", goes=3, right=True),
    Column("waiting", goes=2, right=True),
)

_WORKER_COLUMNS = (
    Column("worker", cut="right"),
    Column("state"),
    Column("slots", goes=1, right=True),
    Column("fetched", goes=6, right=True),
    Column("done", goes=2, right=True),
    Column("failed", goes=3, right=True),
    Column("-P", goes=4),
    Column("queues", goes=5, cut="right"),
)

_WORKER_STATES: tuple[Literal["dead", "draining", "busy", "idle"], ...] = ("dead", "draining", "busy", "idle")


def queues(status: Status, width: int, most: int) -> Section:
    """Queues without a worker first, then those with messages."""
    order = sorted(status.queues, key=lambda one: (one.slots > 0, not (one.depth or one.under_way), one.name))
    section = _section(_QUEUE_COLUMNS, order, _queue, width, most)
    unserved = sum(not one.slots for one in order)
    served = f"{unserved} without a worker" if unserved else "all served"
    depth = "?" if any(one.depth is None for one in order) else str(sum(one.depth or 0 for one in order))
    section.brief = [Text(), *wrapped(Text(f"queues: {len(order)}, {served}; messages: {depth}"), width, 0)]
    return section


def _queue(queue: QueueStatus) -> Sequence[Text]:
    return (
        plain(queue.name),
        Text("?" if queue.depth is None else str(queue.depth)),
        Text(many(queue.slots, "slot")) if queue.slots else Text("nobody", "red"),
        Text(str(queue.under_way or "")),
        Text(str(queue.waiting or "")),
    )


def workers(status: Status, width: int, most: int) -> Section:
    order = sorted(status.workers, key=lambda one: (_WORKER_STATES.index(one.state), one.name))
    section = _section(_WORKER_COLUMNS, order, _worker, width, most)
    counts = Counter(one.state for one in order)
    alive = [one for one in order if one.state != "dead"]
    parts = [Text(f"{counts[one]} ") + state(one) for one in reversed(_WORKER_STATES)]
    slots = f"; {sum(one.running for one in alive)} of {sum(one.slots for one in alive)} slots at work"
    line = Text.assemble("workers: ", Text(", ").join(parts), slots)
    section.brief = [Text(), *wrapped(line, width, 0)]
    section.head = [*section.brief, section.head[-1]]
    return section


def _worker(worker: WorkerStatus) -> Sequence[Text]:
    return (
        plain(worker.name),
        state(worker.state),
        Text(f"{worker.running}/{worker.slots}"),
        Text("" if worker.fetched is None else str(worker.fetched)),
        Text(str(worker.done)),
        Text(str(worker.failed)),
        plain(worker.execution_pool),
        plain(", ".join(worker.queues)),
    )

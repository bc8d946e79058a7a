"""The timeline: past runs, their waits, and coming fires, with a lane for each job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from markupsafe import Markup

from celery_orchestration.job.reasons import KINDS, kind_of
from celery_orchestration.operate.models import Ended, EntryStatus, JobStatus, RunStatus
from celery_orchestration.web import filters
from celery_orchestration.web.formatting import query, state_of
from celery_orchestration.web.pages import PageData, Query
from celery_orchestration.web.svg import timeline
from celery_orchestration.web.svg.timeline import Span, Window

SPANS = ("5m", "15m", "1h", "6h", "1d", "7d")
#: The part of the window that lies in the future.
AHEAD = 0.15
#: The most lanes, runs in all lanes, and coming fires in one lane.
MOST_LANES, MOST_RUNS, MOST_FIRES = 60, 10_000, 60
OUTCOME_KINDS = {"succeeded": "succeeded", "failed": "failed", "crashed": "failed"}


@dataclass(frozen=True)
class Lane:
    job: JobStatus
    state: str
    drawing: Markup


def view(data: PageData, asked: Query) -> dict[str, Any]:
    span = asked.get("span", "")
    span = span if filters.span(span) else "1h"
    seconds = min(max(filters.span(span) or 3600.0, 10.0), 90 * 86400.0)
    window = window_of(data.now, seconds, asked.get("until", ""))
    wanted = filters.parse(asked.get("q", ""), ("state",))
    jobs = [job for job in data.status.jobs if wanted.mentions(job.name) and wanted.holds("state", state_of(job))]
    jobs.sort(key=lambda job: (not (job.running or job.waiting or _ended_within(job, window)), job.name))
    shown = sorted(jobs[:MOST_LANES], key=lambda job: job.name)
    coming = _coming(data, window)
    of_each = max(200, MOST_RUNS // max(1, len(shown)))
    lanes = [Lane(job, state_of(job), _lane(data, job, window, of_each, coming.get(job.name, ()))) for job in shown]
    at = {name: _moved(window, share) for name, share in (("earlier", -0.5), ("later", 0.5))}
    return {
        "lanes": lanes,
        "more_lanes": len(jobs) - len(shown),
        "axis": timeline.axis(window, data.now),
        "span": span,
        "spans": SPANS,
        "window": window,
        "earlier": at["earlier"],
        "later": at["later"],
        "is_now": not asked.get("until"),
        "legend": KINDS,
        "mistakes": wanted.mistakes,
        "suggestions": ["state:running", "state:waiting", "state:disabled", "state:failing"],
    }


def window_of(now: datetime, seconds: float, until: str) -> Window:
    """The window up to a given time, or to shortly after now. It moves in steps, so that shapes do not slide."""
    end = filters.moment(until, now) if until else None
    if end is None:
        step = max(1.0, seconds / 400)
        end = datetime.fromtimestamp(-(-(now.timestamp() + seconds * AHEAD) // step) * step, timezone.utc)
    return Window(end - timedelta(seconds=seconds), end)


def _moved(window: Window, share: float) -> str:
    return (window.end + timedelta(seconds=window.seconds * share)).isoformat(timespec="seconds")


def _ended_within(job: JobStatus, window: Window) -> bool:
    return job.last_end is not None and job.last_end >= window.begin


def _lane(data: PageData, job: JobStatus, window: Window, most: int, coming: Sequence[Span]) -> Markup:
    ended = data.history(job, most) if _ended_within(job, window) else []
    bars, strips, points = of_ended(ended, window.begin)
    for run in (*data.status.runs, *data.status.waits):
        if run.job == job.name:
            _add_active(run, data.now, bars, strips)
    href = f"runs{query(q=filters.quoted('job', job.name))}"
    merge: Callable[[Sequence[Span]], list[Span]] = lambda some: timeline.merged(some, window, href)  # noqa: E731
    return timeline.lane(merge(bars), merge(strips), [*merge(points), *coming], window, data.now, job.name)


def of_ended(ended: Sequence[Ended], begin: datetime) -> tuple[list[Span], list[Span], list[Span]]:
    """The shapes of ended runs, their waits, and fires that made no run."""
    bars, strips, points = [], [], []
    for run in ended:
        if run.ended < begin:
            break  # runs are in the order of their ends
        href = f"run{query(id=run.id)}"
        if not run.made_run:
            words = f"{run.outcome}: {run.error or 'no reason given'}"
            points.append(Span(run.outcome, run.due or run.ended, None, words, href="schedule", count=run.fires))
            continue
        if run.started is not None:
            kind = OUTCOME_KINDS.get(run.outcome, "other") + (" recovered" if run.recoveries else "")
            again = f", recovered {run.recoveries} times" if run.recoveries else ""
            error = f": {run.error}" if run.error else ""
            bars.append(Span(kind, run.started, run.ended, f"{run.outcome}{again}{error}", href))
        waited_until = run.started or run.ended
        if run.waited_for and run.waited_seconds > 0:
            strips.append(
                Span(
                    f"wait {kind_of(run.waited_rule)}", run.arrived, waited_until, f"waited for {run.waited_for}", href
                )
            )
    return bars, strips, points


def _add_active(run: RunStatus, now: datetime, bars: list[Span], strips: list[Span]) -> None:
    href = f"run{query(id=run.id)}"
    if run.state in ("running", "ending"):
        kind = "failed" if run.timed_out else "running"
        bars.append(Span(kind, run.since, now, f"running on {run.worker or 'a worker that is gone'}", href))
    else:
        kind = f"wait {kind_of(run.rule)}" if run.rule else "wait slot"
        begin = run.since if run.state == "waiting" else min(run.since, now)
        strips.append(Span(kind, begin, now, run.reason or f"{run.state}, for queue {run.queue}", href))


def _coming(data: PageData, window: Window) -> dict[str, list[Span]]:
    if window.end <= data.now:
        return {}
    found: dict[str, list[Span]] = {}
    for entry in data.client.schedule.list():
        for at in fires(entry, data.now, window.end):
            label = f"due by entry {entry.name}, {entry.every}"
            found.setdefault(entry.task, []).append(Span("upcoming", at, None, label, "schedule"))
    return found


def fires(entry: EntryStatus, now: datetime, until: datetime) -> list[datetime]:
    """The due times of an entry. An interval also has the times after the next one."""
    if entry.next_fire is None or entry.next_fire > until:
        return []
    found = [max(entry.next_fire, now)]
    if entry.last_fire is not None and entry.every.startswith("every "):
        gap = entry.next_fire - entry.last_fire
        while gap > timedelta(0) and found[-1] + gap <= until and len(found) < MOST_FIRES:
            found.append(found[-1] + gap)
    return found

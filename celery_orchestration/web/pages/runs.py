"""Running, waiting and ended runs, selected by a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_orchestration.job.reasons import kind_of
from celery_orchestration.operate.models import OUTCOMES, Ended, RunStatus
from celery_orchestration.web.filters import Filter, is_like, parse, quoted
from celery_orchestration.web.pages import PageData, Query

FIELDS = ("job", "state", "key", "waits_for", "error", "since", "worker")
#: How many runs are shown, how many jobs' histories are read for them, and how many runs of each.
MOST, MOST_HISTORIES, OF_EACH = 200, 300, 200
_ACTIVE = ("running", "waiting", "later", "granted", "queued", "ending", "early", "retrying", "released")
STATES = (*_ACTIVE, *OUTCOMES)


@dataclass(frozen=True)
class RunRow:
    id: str
    job: str
    state: str
    key: str
    at: datetime
    seconds: float | None
    worker: str | None
    #: The reason why it waits, waited, or failed; and the group of the gate's rule.
    about: str
    cause: str | None
    waits_for: str | None
    progress: Any = None
    ended: bool = False


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    rows: list[RunRow] = []
    more = False
    for row in _all(data, wanted):
        if len(rows) == MOST:
            more = True
            break
        if _holds(row, wanted, data.now):
            rows.append(row)
    listed = len(data.status.waits)
    return {
        "run_rows": rows,
        "more": more,
        "mistakes": wanted.mistakes,
        "unlisted": max(0, data.status.waiting + data.status.later - listed),
        "suggestions": _suggestions(data),
    }


def _holds(row: RunRow, wanted: Filter, now: datetime) -> bool:
    since = wanted.since(now)
    return (
        wanted.holds("job", row.job)
        and wanted.holds("state", row.state)
        and wanted.holds("key", row.key)
        and wanted.holds("worker", row.worker)
        and wanted.holds("waits_for", row.waits_for, row.about if not row.ended else None)
        and wanted.holds("error", row.about if row.ended else None)
        and (since is None or row.at >= since)
        and wanted.mentions(row.id, row.job, row.key, row.about, row.worker)
    )


def _all(data: PageData, wanted: Filter) -> Iterator[RunRow]:
    yield from map(active, sorted(data.status.runs, key=lambda run: run.since))
    yield from map(active, data.status.waits)
    states = wanted.terms.get("state")
    if states and not any(is_like(outcome, state) for state in states for outcome in OUTCOMES):
        return
    if "waits_for" in wanted.terms:
        return
    # The jobs whose runs ended last.
    jobs = [job for job in data.status.jobs if job.last_end is not None and wanted.holds("job", job.name)]
    jobs.sort(key=lambda job: job.last_end or data.now, reverse=True)
    ended = [one for job in jobs[:MOST_HISTORIES] for one in data.history(job, OF_EACH)]
    yield from map(over, sorted(ended, key=lambda one: one.ended, reverse=True))


def active(run: RunStatus) -> RunRow:
    return RunRow(
        id=run.id,
        job=run.job,
        state="timed out" if run.timed_out else run.state,
        key=run.key,
        at=run.since,
        seconds=None,
        worker=run.worker,
        about=run.reason or (f"queue {run.queue}" if run.worker is None else ""),
        cause=kind_of(run.rule) if run.rule else None,
        waits_for=run.waits_for,
        progress=run.progress,
    )


def over(run: Ended) -> RunRow:
    times = f"{run.fires} fires: " if run.fires > 1 else ""
    waited = f"waited for {run.waited_for}" if run.waited_for else ""
    return RunRow(
        id=run.id if run.made_run else "",
        job=run.job,
        state=run.outcome,
        key=run.key,
        at=run.ended,
        seconds=run.seconds,
        worker=run.worker,
        about=f"{times}{run.error or waited}",
        cause=None,
        waits_for=None,
        ended=True,
    )


def _suggestions(data: PageData) -> list[str]:
    jobs = [quoted("job", job.name) for job in data.status.jobs[:200]]
    waited = sorted({quoted("waits_for", run.waits_for) for run in data.status.waits if run.waits_for})
    workers = [quoted("worker", worker.name) for worker in data.status.workers[:50]]
    return [*(f"state:{state}" for state in STATES), "since:15m", "since:1h", "since:1d", *waited, *jobs, *workers]

"""The schedule: entries, the fires of the next day, fires that made no run, and the forecast."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from markupsafe import Markup

from celery_orchestration.errors import LedgerError, OrchestrationError
from celery_orchestration.job.reasons import kind_of
from celery_orchestration.operate.forecast.report import Forecast
from celery_orchestration.operate.models import EntryStatus
from celery_orchestration.web.filters import parse
from celery_orchestration.web.formatting import query, state_of
from celery_orchestration.web.pages import PageData, Query
from celery_orchestration.web.redaction import as_text
from celery_orchestration.web.svg import timeline
from celery_orchestration.web.svg.timeline import Span, Window

FIELDS = ("task", "source", "state")
HOURS = 24
#: How many entries are listed, how many fires without a run, and how many jobs are searched for those.
MOST, MOST_SKIPS, MOST_JOBS, MOST_LANES = 200, 40, 200, 40


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    every = data.client.schedule.list()
    found = [one for one in every if _holds(one, wanted)]
    until = data.now + timedelta(hours=HOURS)
    coming = sorted((one for one in found if one.next_fire and one.next_fire <= until), key=_next)
    states = {job.name: state_of(job) for job in data.status.jobs}
    return {
        "entries": sorted(found, key=lambda one: (one.problem is None, one.paused is None, _next(one), one.name))[
            :MOST
        ],
        "entries_count": len(found),
        "all_count": len(every),
        "coming": len(coming),
        "states": states,
        "arguments": {one.name: _arguments(data, one) for one in found[:MOST] if one.args or one.named_args},
        "not_made": _not_made(data, every),
        "mistakes": wanted.mistakes,
        "suggestions": ["state:paused", "state:missed", "state:skipped", "source:code", "source:people"],
        "scheduler": data.status.scheduler,
        "most": MOST,
    }


def extra(data: PageData, asked: Query) -> dict[str, Any]:
    """The forecast."""
    try:
        found = data.forecast(HOURS)
    except LedgerError:
        raise
    except OrchestrationError as exc:
        return {"forecast": None, "why_none": str(exc)}
    window = Window(found.at, max(found.until, found.at + timedelta(minutes=1)))
    lanes = [
        (one, _lane(one.job, found, window))
        for one in sorted(found.jobs, key=lambda one: (not one.waits, one.job))[:MOST_LANES]
    ]
    return {
        "forecast": found,
        "why_none": "",
        "forecast_lanes": lanes,
        "forecast_axis": timeline.axis(window, found.at),
        "more_forecast": max(0, len(found.jobs) - MOST_LANES),
    }


def _lane(job: str, found: Forecast, window: Window) -> Markup:
    href = f"job{query(name=job)}"
    bars, strips = [], []
    for run in found.runs:
        if run.job != job:
            continue
        if run.starts is not None:
            bars.append(Span("expected", run.starts, run.ends or run.starts, "expected to run", href))
        if run.waited_seconds >= 1:
            for_whom = f" for {run.waits_for}" if run.waits_for else ""
            until = run.starts or window.end
            strips.append(Span(f"wait {kind_of(run.rule)}", run.due, until, f"expected to wait{for_whom}", href))
    ran, waited = (timeline.merged(some, window, href) for some in (bars, strips))
    return timeline.lane(ran, waited, [], window, found.at, job)


def _next(one: EntryStatus) -> float:
    return one.next_fire.timestamp() if one.next_fire else float("inf")


def _holds(one: EntryStatus, wanted: Any) -> bool:
    states = ["paused"] if one.paused else []
    states += [one.last_outcome] if one.last_outcome else []
    states += ["problem"] if one.problem else []
    return bool(
        wanted.holds("task", one.task)
        and wanted.holds("source", one.source)
        and wanted.holds("state", *states)
        and wanted.mentions(one.name, one.task, one.every)
    )


def _arguments(data: PageData, one: EntryStatus) -> str:
    return as_text(data.redact, [*(one.args or ()), *([one.named_args] if one.named_args else ())])


def _not_made(data: PageData, entries: list[EntryStatus]) -> list[Any]:
    """Fires that made no run, latest first."""
    asked_for = {one.task for one in entries if one.skips or one.misses}
    jobs = [job for job in data.status.jobs if job.name in asked_for][:MOST_JOBS]
    found = [one for job in jobs for one in data.history(job, 100) if not one.made_run]
    return sorted(found, key=lambda one: one.ended, reverse=True)[:MOST_SKIPS]

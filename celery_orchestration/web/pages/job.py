"""One job: why it does or does not run, its durations and waits, its ended runs, and its options."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_orchestration.errors import LedgerError, OrchestrationError
from celery_orchestration.operate.models import Ended, EntryStatus
from celery_orchestration.web.pages import PageData, Query, runs
from celery_orchestration.web.svg import bands

#: How many ended runs the figures use, and how many are listed.
MOST, LISTED, MOST_ERRORS = 500, 25, 8


@dataclass(frozen=True)
class Figures:
    count: int
    p50: float
    p95: float
    longest: float


@dataclass(frozen=True)
class Errors:
    error: str
    count: int
    last: datetime


def view(data: PageData, asked: Query) -> dict[str, Any]:
    name = asked.get("name", "")
    job = data.job(name)
    found = data.client.explain(name, ask_workers=bool(asked.get("ask")))
    ended = data.history(job, MOST) if job else []
    made = [run for run in ended if run.made_run and run.started is not None]
    took = [(run.ended, run.seconds) for run in made if run.seconds is not None]
    waited = [(run.ended, run.waited_seconds) for run in made]
    return {
        "name": name,
        "job": job,
        "explanation": found,
        "took": figures([seconds for _, seconds in took]),
        "waited": figures([seconds for _, seconds in waited]),
        "took_band": bands.bands(took, "How long runs took"),
        "waited_band": bands.bands(waited, "How long runs waited"),
        "outcomes": Counter(run.outcome for run in ended).most_common(),
        "errors": errors(ended)[:MOST_ERRORS],
        "ended_rows": [runs.over(run) for run in ended[:LISTED]],
        "active_rows": [runs.active(run) for run in (*data.status.runs, *data.status.waits) if run.job == name][
            :LISTED
        ],
        "entries": _entries(data, name),
    }


def figures(seconds: Sequence[float]) -> Figures | None:
    if not seconds:
        return None
    order = sorted(seconds)
    return Figures(len(order), at_share(order, 0.5), at_share(order, 0.95), order[-1])


def at_share(order: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    return order[max(0, math.ceil(share * len(order)) - 1)]


def errors(ended: Sequence[Ended]) -> list[Errors]:
    """Equal errors together, most frequent first."""
    found: dict[str, list[Ended]] = {}
    for run in ended:
        if run.error and run.made_run:
            found.setdefault(run.error, []).append(run)
    groups = [Errors(error, len(some), max(run.ended for run in some)) for error, some in found.items()]
    return sorted(groups, key=lambda one: (-one.count, one.error))


def _entries(data: PageData, name: str) -> list[EntryStatus]:
    try:
        return data.client.schedule.list(name)
    except LedgerError:
        raise
    except OrchestrationError:  # no entry has ever fired it
        return []

"""All jobs, filtered by name and state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery_orchestration.operate.status.urgency import by_urgency
from celery_orchestration.web.filters import parse
from celery_orchestration.web.formatting import state_of
from celery_orchestration.web.pages import PageData, Query, whole
from celery_orchestration.web.pages.overview import job_rows

FIELDS = ("state", "pool")
PART, MOST = 100, 10_000
STATES = ("disabled", "overdue", "failing", "running", "waiting", "idle")


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    found = [
        job
        for job in by_urgency(data.status.jobs)
        if wanted.holds("state", state_of(job)) and wanted.holds("pool", job.pool) and wanted.mentions(job.name)
    ]
    skip = whole(asked.get("skip"), 0, MOST)
    counts = Counter(state_of(job) for job in data.status.jobs)
    return {
        "rows": job_rows(data, found[skip : skip + PART]),
        "found": len(found),
        "jobs_count": len(data.status.jobs),
        "skip": skip,
        "part": PART,
        "mistakes": wanted.mistakes,
        "state_counts": {state: counts[state] for state in STATES if counts[state]},
        "suggestions": [
            *(f"state:{state}" for state in STATES),
            *sorted({f"pool:{job.pool}" for job in data.status.jobs if job.pool}),
        ],
    }

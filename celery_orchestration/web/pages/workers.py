"""Pools and workers: wanted and live workers with the reason, and the state of each worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from celery_orchestration.operate.pools.models import PoolStatus, ScalingChange
from celery_orchestration.web.filters import parse
from celery_orchestration.web.live import Sample
from celery_orchestration.web.pages import PageData, Query
from celery_orchestration.web.svg import spark

FIELDS = ("state", "queue", "host")
STATES = ("dead", "draining", "busy", "idle")
MOST, MOST_CHANGES = 300, 20


@dataclass(frozen=True)
class PoolRow:
    pool: PoolStatus
    #: A drawing of its workers over the last minutes.
    line: Markup


@dataclass(frozen=True)
class Change:
    pool: str
    change: ScalingChange


def view(data: PageData, asked: Query) -> dict[str, Any]:
    wanted = parse(asked.get("q", ""), FIELDS)
    workers = data.status.workers
    found = [
        one
        for one in workers
        if wanted.holds("state", one.state)
        and wanted.holds("host", one.host)
        and wanted.holds("queue", *one.queues)
        and wanted.mentions(one.name, one.host, one.execution_pool)
    ]
    counts: Counter[str] = Counter(one.state for one in workers)
    alive = [one for one in workers if one.state != "dead"]
    return {
        "workers": sorted(found, key=lambda one: (STATES.index(one.state), one.name))[:MOST],
        "found": len(found),
        "state_counts": {state: counts[state] for state in reversed(STATES) if counts[state]},
        "slots": sum(one.slots for one in alive),
        "busy_slots": sum(one.running for one in alive),
        "pool_rows": [PoolRow(pool, live_line(data.snapshot.samples, pool.name)) for pool in data.status.pools],
        "pool_changes": changes(data.status.pools)[:MOST_CHANGES],
        "died": data.status.died[:20],
        "mistakes": wanted.mistakes,
        "suggestions": [*(f"state:{state}" for state in STATES), *sorted({f"host:{one.host}" for one in workers})[:50]],
    }


def live_line(samples: Sequence[Sample], pool: str) -> Markup:
    values = [one.live.get(pool, 0) for one in samples]
    return spark.line(values, f"workers of {pool} over the last minutes, at most {max(values, default=0)}")


def changes(pools: Sequence[PoolStatus]) -> list[Change]:
    """Changes of the numbers of workers, latest first."""
    found = [Change(pool.name, one) for pool in pools for one in pool.changes]
    return sorted(found, key=lambda one: one.change.at, reverse=True)

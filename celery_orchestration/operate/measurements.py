"""Reads the figures for metrics from the ledger and the broker: in bounded reads, without a model of every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_orchestration.job import queues
from celery_orchestration.job.app import read_settings
from celery_orchestration.ledger import Ledger
from celery_orchestration.operate import app_jobs, broker
from celery_orchestration.pools.table import queues_of

#: The name under which the ledger counts the runs of deleted jobs.
DELETED = ""


@dataclass(frozen=True)
class Measured:
    #: The ledger's status (``read_status.lua``) without runs; ``fires`` by job.
    status: Mapping[str, Any]
    #: The ledger's totals (``read_statistics.lua``) of all jobs and of deleted ones.
    statistics: Mapping[str, Any]
    #: Messages in the queues that jobs are sent to or workers serve; None: the broker did not answer.
    depths: Mapping[str, int | None]
    #: How many workers each pool should have, if a supervisor has decided.
    wanted: Mapping[str, int] = field(default_factory=dict)


def measure(app: Celery, ledger: Ledger) -> Measured:
    status = ledger.read_status(0, 0)
    names = [job["name"] for job in status["jobs"]]
    jobs, _ = app_jobs.valid_jobs(app)
    all_queues = {*queues.destinations(app, jobs), *(status.get("slots") or ())}
    return Measured(
        status=status,
        statistics=ledger.read_statistics("all", [*names, DELETED]),
        depths=broker.depths(app, sorted(all_queues)).messages,
        wanted=_wanted(app, ledger),
    )


def _wanted(app: Celery, ledger: Ledger) -> dict[str, int]:
    table = read_settings(app).pools
    if not table:
        return {}
    found = ledger.read_pools({name: queues_of(app, name) for name in table})["pools"]
    return {name: pool["wanted"] for name, pool in found.items() if pool.get("wanted") is not None}

"""Health for probes, from the answer of ``read_health.lua``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery_orchestration.job.text import show
from celery_orchestration.ledger import FORGOTTEN
from celery_orchestration.operate.clock import when
from celery_orchestration.operate.doctor.models import Health
from celery_orchestration.operate.status.problems import NO_LEADER
from celery_orchestration.operate.status.redis_problems import FULL


def health(
    found: Mapping[str, Any], ledger: str, namespace: str, worker: str | None, scheduler: bool, beat: str | None = None
) -> Health:
    """`worker`: the worker whose lease must hold, if given. `scheduler`: whether a scheduler must lead. `beat`: the
    class of this app's scheduler, if it is not this extension's."""
    problems = list(_problems(found, worker, scheduler, beat))
    return Health(
        ok=not problems,
        problem="; ".join(problems) or None,
        ledger=ledger,
        namespace=namespace,
        at=when(found["now"]),
        workers=found["workers"],
        leader=found.get("lead"),
        opens_in_seconds=found["epoch"]["left"] / 1000,
        worker=worker,
        lease_seconds=None if worker is None else max(0.0, _left(found)),
    )


def no_answer(problem: str, ledger: str, namespace: str, worker: str | None) -> Health:
    return Health(ok=False, problem=problem, ledger=ledger, namespace=namespace, worker=worker)


def _problems(found: Mapping[str, Any], worker: str | None, scheduler: bool, beat: str | None) -> Iterator[str]:
    epoch = found["epoch"]
    # A probe of a worker or a scheduler ignores these: restarting it would not help.
    if found["replica"] and worker is None and not scheduler:
        yield "the ledger's Redis is a replica, and takes no writes"
    if found["full"] and worker is None and not scheduler:
        yield FULL
    if epoch["left"] > 0 and worker is None and not scheduler:
        forgotten = FORGOTTEN.get(epoch.get("why") or "", "may have lost data")
        yield f"the ledger {forgotten}; nothing starts for {epoch['left'] / 1000:.0f} s"
    if worker is not None and not found.get("worker"):
        yield f"the ledger has no worker {show(worker)}: it has not registered, or its lease ran out"
    elif worker is not None and _left(found) <= 0:
        silent = found["worker"]["silent"] / 1000
        yield f"the lease of worker {show(worker)} has run out: no heartbeat for {silent:.0f} s"
    if scheduler and not found.get("lead"):
        # The ledger does not know whether another kind of beat works.
        yield NO_LEADER if beat is None else f"this app's beat is {beat}: the ledger does not know whether it is alive"


def _left(found: Mapping[str, Any]) -> float:
    """How many seconds the lease still holds. The ledger clock stops while nobody sweeps, so silence counts, too."""
    one = found.get("worker")
    return min(one["left"], one["lease"] - one["silent"]) / 1000 if one else 0.0

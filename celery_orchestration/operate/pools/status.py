"""Reads pools from the ledger and the broker into models."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from celery import Celery

from celery_orchestration.errors import UnknownJob
from celery_orchestration.job.pool import Pool
from celery_orchestration.job.text import show, suggest
from celery_orchestration.ledger import Ledger
from celery_orchestration.operate import broker
from celery_orchestration.operate.clock import when
from celery_orchestration.operate.models import Status
from celery_orchestration.operate.pools.models import (
    Desired,
    DesiredPool,
    PoolsStatus,
    PoolStatus,
    PoolWorker,
    ScalingChange,
)
from celery_orchestration.pools.decide import decide
from celery_orchestration.pools.pool_snapshot import HeldPlace, PoolReader, PoolSnapshot, Worker
from celery_orchestration.pools.table import queues_of

T = TypeVar("T")

#: How many changes of each pool are shown.
MOST_CHANGES = 20


class Pools:
    """The pools of an app. `ask` calls the ledger and puts its errors into words."""

    def __init__(
        self, app: Celery, ledger: Ledger, ask: Callable[[Callable[[], Any]], Any], table: Mapping[str, Pool]
    ) -> None:
        self._app, self._ask, self._table = app, ask, table
        self._reader = PoolReader(ledger, {name: queues_of(app, name) for name in table})
        #: For each pool: the wanted workers, when that many were needed last, and since when. For repeated questions.
        self._decided: dict[str, tuple[int, float, float]] = {}
        self._lock = threading.Lock()

    def snapshots(self, names: Collection[str] = (), changes: int = MOST_CHANGES) -> dict[str, PoolSnapshot]:
        """All pools if none is named. Raises :class:`UnknownJob` for an unknown name."""
        for name in names:
            if name not in self._table:
                raise UnknownJob(f"there is no pool {show(name)} in orchestration_pools{suggest(name, self._table)}")
        table = {name: pool for name, pool in self._table.items() if not names or name in names}
        if not table:
            return {}
        queued, problem = broker.queued(self._app, [q for name in table for q in self._reader.queues[name]])
        found: dict[str, PoolSnapshot] = self._ask(lambda: self._reader.read(table, queued, problem, changes))
        return found

    def desired(self) -> Desired:
        """How many workers each pool should have: as the supervisors decided, or, if none runs the pool, by the same
        function. Between calls it remembers when workers were needed last."""
        with self._lock:
            snapshots = self.snapshots(changes=0)
            pools = {name: self._desired(name, snapshot) for name, snapshot in snapshots.items()}
        at = max((snapshot.figures.now for snapshot in snapshots.values()), default=0.0)
        return Desired(at=when(int(at * 1000)), pools=pools)

    def _desired(self, name: str, snapshot: PoolSnapshot) -> DesiredPool:
        figures, wanted = snapshot.figures, snapshot.wanted
        if not snapshot.supervisors or wanted is None:
            before = self._decided.get(name)
            if before is None:
                wanted = decide(replace(figures, wanted=None)).needed
                self._decided[name] = (wanted, figures.now, figures.now)
            else:
                known = replace(figures, wanted=before[0], needed_at=before[1], changed_at=before[2])
                found = decide(known)
                changed = before[2] if found.wanted == before[0] else figures.now
                wanted = found.wanted
                self._decided[name] = (wanted, found.needed_at, changed)
        return DesiredPool(
            wanted=wanted, oldest_wait_seconds=_oldest(snapshot), ready=figures.ready_runs, live=figures.workers
        )


def pools_status(snapshots: Mapping[str, PoolSnapshot], status: Status | None = None) -> PoolsStatus:
    """`status`: for the runs of workers, and dead letters."""
    pools = [pool_status(snapshot, status) for _, snapshot in sorted(snapshots.items())]
    at = max((snapshot.figures.now for snapshot in snapshots.values()), default=0.0)
    problems = list(dict.fromkeys(problem for pool in pools for problem in pool.problems))
    return PoolsStatus(at=when(int(at * 1000)), pools=pools, problems=problems)


def without_idle_pools(problems: list[str], snapshots: Mapping[str, PoolSnapshot]) -> list[str]:
    """Drops problems about pools that need no worker now: their supervisor starts one in time."""
    idle_pools = [pool for pool in snapshots.values() if pool.supervisors and pool.wanted == 0]
    reported = tuple(f"no live worker serves queue {queue}," for pool in idle_pools for queue in pool.queue_names)
    all_idle = bool(snapshots) and len(idle_pools) == len(snapshots)
    return [one for one in problems if not one.startswith(reported) and not (all_idle and one == "no worker is alive")]


def pool_status(snapshot: PoolSnapshot, status: Status | None = None) -> PoolStatus:
    figures, pool = snapshot.figures, snapshot.figures.pool
    alive = [worker for worker in snapshot.workers if not worker.draining and not worker.dead]
    decided = snapshot.wanted if snapshot.wanted is not None and snapshot.supervisors else None
    now = decide(figures)
    jobs = [job for job in (status.jobs if status else ()) if job.pool == snapshot.name]
    return PoolStatus(
        name=snapshot.name,
        wanted=now.needed if decided is None else decided,
        live=len(alive),
        min=pool.min,
        max=pool.max,
        ready=None if figures.unknown else figures.ready_runs,
        oldest_wait_seconds=round(_oldest(snapshot), 1),
        drain_seconds=None if snapshot.drain_seconds is None else round(snapshot.drain_seconds, 1),
        busy_slots=figures.busy_slots,
        slots=sum(worker.slots for worker in alive),
        done=sum(worker.done for worker in snapshot.workers),
        failed=sum(worker.failed for worker in snapshot.workers),
        dead_letters=sum(job.dead_letters for job in jobs),
        reason=now.reason,
        supervisors=sorted(one.name for one in snapshot.supervisors),
        workers=_workers(snapshot, status),
        changes=[_change(one) for one in snapshot.changes],
        problems=_problems(snapshot),
    )


def _oldest(snapshot: PoolSnapshot) -> float:
    if snapshot.figures.ready_runs == 0:
        return 0.0
    return max(snapshot.figures.oldest_wait_seconds, snapshot.reported_wait_seconds)


def _problems(snapshot: PoolSnapshot) -> list[str]:
    """The problems that supervisors report about this pool, or about all pools."""
    return [
        f"{problem} (says supervisor {one.name})"
        for one in snapshot.supervisors
        for problem in one.report.get("problems") or ()
        if f"worker {snapshot.name}-" in problem or f"pool {snapshot.name!r}" in problem
    ]


def _workers(snapshot: PoolSnapshot, status: Status | None) -> list[PoolWorker]:
    """First the workers on places, in order; then those started by hand."""
    by_pid = {(worker.host, worker.pid): worker for worker in snapshot.workers}
    placed = [(place, by_pid.get((place.info.get("host", ""), place.info.get("pid", -1)))) for place in snapshot.places]
    known = {worker.name for _, worker in placed if worker is not None}
    by_hand = [worker for worker in snapshot.workers if worker.name not in known]
    return [
        *(_worker(snapshot, place, worker, status) for place, worker in placed),
        *(_worker(snapshot, None, worker, status) for worker in sorted(by_hand, key=lambda one: one.name)),
    ]


def _worker(
    snapshot: PoolSnapshot, place: HeldPlace | None, worker: Worker | None, status: Status | None
) -> PoolWorker:
    info: Mapping[str, Any] = place.info if place else {}
    began = info.get("started") or (worker.since if worker else None)
    name = worker.name if worker else f"{snapshot.name}-{place.number if place else '?'}"
    return PoolWorker(
        name=name,
        place=place.number if place else None,
        supervisor=place.by if place else None,
        host=worker.host if worker else str(info.get("host") or ""),
        pid=worker.pid if worker else info.get("pid"),
        state=_state(place, worker),
        slots=worker.slots if worker else 0,
        running=worker.running if worker else 0,
        runs=[run.id for run in (status.runs if status else ()) if worker and run.worker == worker.name],
        done=worker.done if worker else 0,
        failed=worker.failed if worker else 0,
        memory_mb=None if info.get("memory_mb") is None else round(info["memory_mb"], 1),
        uptime_seconds=None if began is None else max(0.0, round(snapshot.figures.now - began / 1000, 1)),
        restarts=info.get("restarts"),
    )


def _state(place: HeldPlace | None, worker: Worker | None) -> Any:
    reported = place.info.get("state") if place else None
    if worker is None:
        return {"running": "starting", "draining": "draining", "dying": "dying", None: "starting"}.get(reported, "dead")
    if worker.dead:
        return "dead"
    if worker.draining or reported == "draining" or (place and place.leaving):
        return "draining"
    return "busy" if worker.running else "idle"


def _change(one: Mapping[str, Any]) -> ScalingChange:
    figures = json.loads(one.get("figures") or "{}")
    return ScalingChange(
        at=when(one["at"]),
        by=one["by"],
        before=one.get("before"),
        wanted=one["wanted"],
        reason=one["why"],
        ready=figures.get("ready", 0),
        oldest_wait_seconds=figures.get("oldest_wait_seconds", 0.0),
        busy_slots=figures.get("busy_slots", 0),
    )

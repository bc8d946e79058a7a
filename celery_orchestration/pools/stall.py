"""Detects stalled workers: they are alive and take no message, although their queues have messages and slots are free.

Celery workers are known to stop consuming after a reconnect (celery #8030, #8091, #10205). A worker is suspected if its
running and done counts in the ledger have not changed for half of ``stall_seconds`` while its queues had messages. Then
the worker itself is asked, twice, because the ledger does not know plain tasks. It is stalled if it has free slots and
received nothing between the two answers, or does not answer at all. A solo worker cannot answer while it runs a task:
as long as its lease holds, its silence means nothing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from celery_orchestration import commands
from celery_orchestration.job.pool import Pool
from celery_orchestration.pools.place_worker import PlaceWorker
from celery_orchestration.pools.pool_snapshot import PoolSnapshot, Worker

#: Seconds to wait for a worker's answer.
ANSWER_SECONDS = 3.0


@dataclass(slots=True)
class _Watch:
    signature: tuple[int, ...]
    since: float
    pid: int
    first: _Question | None = None
    second: _Question | None = None


@dataclass(slots=True)
class _Question:
    """A question to a worker about its state, asked on its own thread."""

    app: Celery
    name: str
    over: threading.Event = field(default_factory=threading.Event)
    #: Messages received since it started; None: no answer.
    received: int | None = None
    free_slots: int = 0
    #: Messages that it has and cannot start: no slot is free for them, or a rate limit delays them.
    held: int = 0

    def ask(self) -> _Question:
        threading.Thread(target=self._ask, name=f"orchestration-ask {self.name}", daemon=True).start()
        return self

    def _ask(self) -> None:
        try:
            replies = self.app.control.broadcast(
                commands.INSPECT, destination=[self.name], reply=True, timeout=ANSWER_SECONDS, limit=1
            )
            answer: dict[str, Any] = next((reply[self.name] for reply in replies or () if self.name in reply), {})
            self.received, self.free_slots = answer.get("received"), answer.get("free_slots") or 0
            self.held = len(answer.get("fetched") or ()) + len(answer.get("rate_limited") or ())
        except Exception:  # any error of the transport counts as no answer
            self.received = None
        finally:
            self.over.set()


class Stalls:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._watched: dict[tuple[str, int], _Watch] = {}

    def stalled(
        self,
        place_workers: Mapping[tuple[str, int], PlaceWorker],
        snapshots: Mapping[str, PoolSnapshot],
        table: Mapping[str, Pool],
        now: float,
    ) -> Iterator[tuple[tuple[str, int], str]]:
        """The stalled workers, each with its symptom."""
        for key in self._watched.keys() - place_workers.keys():
            del self._watched[key]
        for key, place_worker in place_workers.items():
            pool = table.get(key[0])
            if pool is None or key[0] not in snapshots:
                continue
            if why := self._symptom_of(key, place_worker, snapshots[key[0]], pool, now):
                del self._watched[key]
                yield key, why

    def _symptom_of(
        self, key: tuple[str, int], place_worker: PlaceWorker, snapshot: PoolSnapshot, pool: Pool, now: float
    ) -> str:
        assert place_worker.worker is not None
        stall_seconds = pool.stall_seconds
        pid = place_worker.worker.pid
        worker = next((one for one in snapshot.workers if _is_of(one, place_worker) and not one.dead), None)
        signature = (worker.done, worker.failed, worker.running) if worker else (-1,)
        watch = self._watched.get(key)
        has_work = any(length > 0 for length in snapshot.queued.values())
        is_full = worker is not None and worker.running >= worker.slots
        held_back = snapshot.figures.paused or snapshot.figures.in_new_epoch or bool(snapshot.figures.unknown)
        starting = worker is None and place_worker.worker.age < stall_seconds
        has_changed = watch is None or watch.signature != signature or watch.pid != pid
        if watch is None or has_changed or not has_work or is_full or held_back or starting:
            self._watched[key] = _Watch(signature, now, pid)
            return ""
        quiet = now - watch.since
        name = next(
            (one.name for one in snapshot.workers if _is_of(one, place_worker)),
            f"{place_worker.name}@{socket.gethostname()}",
        )
        if watch.first is None and quiet >= stall_seconds / 2:
            watch.first = _Question(self._app, name).ask()
        if watch.second is None and quiet >= stall_seconds and watch.first and watch.first.over.is_set():
            watch.second = _Question(self._app, name).ask()
        if watch.first is None or watch.second is None or not watch.second.over.is_set():
            return ""
        return self._verdict(watch, quiet, snapshot, may_be_silent=pool.kind == "solo" and worker is not None)

    @staticmethod
    def _verdict(watch: _Watch, quiet: float, snapshot: PoolSnapshot, may_be_silent: bool) -> str:
        """`may_be_silent`: it is a solo worker that runs a task, and its lease holds."""
        first, second = watch.first, watch.second
        assert first is not None
        assert second is not None
        waiting = sum(snapshot.queued.values())
        if second.received is None and not may_be_silent:
            return f"it has taken no message for {quiet:.0f} s while {waiting} messages wait, and does not answer"
        if (
            second.received is not None
            and second.received == first.received
            and second.free_slots > 0
            and not second.held
        ):
            return (
                f"it has received no message for {quiet / 2:.0f} s, while {waiting} messages wait and "
                f"{second.free_slots} of its slots are free"
            )
        watch.first = watch.second = None  # it works: on plain tasks, or on runs that the gate made wait
        watch.since = watch.since + quiet
        return ""


def _is_of(worker: Worker, place_worker: PlaceWorker) -> bool:
    return (
        place_worker.worker is not None
        and worker.pid == place_worker.worker.pid
        and worker.name.partition("@")[0] == place_worker.name
    )

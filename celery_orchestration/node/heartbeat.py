"""A member of the ledger keeps its lease, and sweeps.

A worker and a scheduler are members: they are registered with the policies that their code brings, and any of them may
find what got lost. A thread with a connection of its own does that; all its calls are made there, in order.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from time import monotonic

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.job import graph, queues
from celery_orchestration.ledger import Grant, NewEpoch, Registered, Sweep, UnknownWorker, keys
from celery_orchestration.node import releases
from celery_orchestration.node.backoff import LONGEST_WAIT, Backoff
from celery_orchestration.node.presence import Node

logger = get_logger(__name__)

#: Seconds that a queue may be without a worker before the log says so: pools are not started all at once.
UNSERVED_SECONDS = 30.0


class Heartbeat(threading.Thread, ABC):
    def __init__(self, node: Node, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._node = node
        self._ledger = node.ledger.new_connection()
        self._wake = threading.Event()
        self._stopped = False
        self._sweeps = 0
        # Once the ledger is back, others sweep: a lease must be renewed well before it could run out.
        self._backoff = Backoff(self._wake.wait, min(LONGEST_WAIT, node.settings.lease_seconds / 10))
        self._registered = self._unknown = False
        #: In which it is registered, and has restored what it knows of decisions.
        self._epoch_name = ""
        self._beat_at = self._sweep_at = 0.0
        self._sweep_is_asked_for = False
        self._alive_at = monotonic()
        #: For people: when a heartbeat reached the ledger last, how far our clock was ahead of Redis's then, and what
        #: has gone wrong since.
        self.beaten_at: float | None = None
        self.ahead: float | None = None
        self.trouble = ""
        self._sweep_seconds = node.settings.sweep_interval_seconds
        #: Queues of our jobs that no live worker serves, since when; said: those the log knows of.
        self._unserved: dict[str, float] = {}
        self._said: set[str] = set()

    # -- what a member adds -------------------------------------------------------------------------

    @abstractmethod
    def _told(self) -> tuple[str, str]:
        """The epoch in which it claimed its runs last, and the highest fence it has seen."""

    @abstractmethod
    def _is_registered(self, found: Registered) -> None: ...

    @abstractmethod
    def _epoch_began(self, epoch: str) -> None: ...

    @abstractmethod
    def _renew(self) -> None: ...

    def _may_sweep(self) -> bool:
        return True

    def _has_swept(self, swept: Sweep) -> None: ...

    def _ledger_is_away(self) -> None: ...

    def _before(self) -> None:
        """Of each round, once it is registered."""

    def _after(self) -> None: ...

    # -- asked for by others ------------------------------------------------------------------------

    def register_soon(self) -> None:
        """The ledger does not know this member, or one of its jobs."""
        self._registered = False
        self._wake.set()

    def sweep_soon(self) -> None:
        """Somebody left something for whoever sweeps next."""
        self._sweep_is_asked_for = True
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def silent_for(self) -> float:
        """Seconds since it last went about its round, with or without success."""
        return monotonic() - self._alive_at

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopped:
            self._alive_at = monotonic()
            self._wake.clear()
            try:
                self._round()
            except UnknownWorker:
                self._unknown = True
                self._registered = False
                self._beat_at = 0.0
                continue
            except NewEpoch as exc:
                self._epoch_began(exc.epoch)
                continue
            except LedgerRefused as exc:
                self._node.give_up(str(exc))
                return
            except LedgerError as exc:
                self.trouble = str(exc)
                self._ledger_is_away()
                self._backoff.failed(lambda seconds, exc=exc: self._say(exc, seconds))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("The heartbeat met an unexpected error and goes on")
                self._wake.wait(1.0)
                continue
            self._backoff.succeeded()
            self.trouble = ""
            self._wake.wait(max(0.0, min(self._beat_at, self._sweep_at) - monotonic()))

    def _say(self, exc: LedgerError, seconds: float) -> None:
        logger.error("No heartbeat for %.0f s: the ledger at %s says %s", seconds, self._node.ledger.address, exc)

    def _round(self) -> None:
        if not self._registered:
            self._register()
        self._before()
        now = monotonic()
        if now >= self._beat_at:
            self._renew()
            self._beat_at = now + self._node.settings.lease_seconds / 3
            self.beaten_at = monotonic()
            self.ahead = self._ledger.ahead
        if (now >= self._sweep_at or self._sweep_is_asked_for) and self._may_sweep():
            self._sweep_is_asked_for = False
            self._sweep()
            self._sweep_at = now + self._sweep_seconds
        self._after()

    def _register(self) -> None:
        node = self._node
        if not node.eviction_is_checked:  # Redis was down when this process started
            node.check_eviction(self._ledger)
        told, fence = self._told()
        found = self._ledger.register(node.presence(), told, fence)
        if self._unknown and found.epoch == told:
            logger.error("The lease was lost: what runs here is void; it registers again")
        self._unknown = False
        self._install(found.live, found.installed)
        if told and found.epoch != told and found.why in ("emptied", "moved"):
            node.memory.restore(self._ledger, node.presence().name, found.epoch)
        self._epoch_name = found.epoch
        self._is_registered(found)
        self._registered = True

    def _install(self, live: str, installed: str) -> None:
        """Puts the policies of all live releases into force, if that is not done."""
        while live != installed:
            merged = releases.merged(self._ledger.read_releases(live))
            for cycle in merged.cycles:
                logger.error(
                    "The releases that are live together have a cycle of dependencies: %s: these jobs wait "
                    "until one release is gone",
                    " -> ".join(cycle),
                )
            if self._ledger.install_policies(live, merged.cap, merged.jobs):
                for line in graph.absent(self._node.jobs, [keys.decode_job(name) for name in merged.jobs]):
                    logger.warning("%s", line)
                return
            found = self._ledger.register(self._node.presence(), *self._told())
            live, installed = found.live, found.installed

    def _sweep(self) -> None:
        node = self._node
        while not self._stopped:
            swept = self._ledger.sweep(node.worker, self._sweeps, int(self._sweep_seconds * 1000))
            self._sweeps += 1  # not before: a call whose reply was lost is made again under its number
            for name in swept.dead_workers:
                logger.warning("%s is dead: its lease ran out", name)
            if swept.recovered:
                logger.warning("%d runs of dead workers go back to their queues", swept.recovered)
            node.publisher.publish(swept.grants)
            node.publisher.end(swept.endings)
            node.publisher.retry(swept.retries)
            if swept.disabled:
                node.disabled(swept.disabled)
            node.memory.refresh(self._ledger, swept.decisions, self._epoch_name)
            self._has_swept(swept)
            self._install(swept.live_releases, swept.installed_releases)
            self._look_for_unserved(swept.served)
            if not swept.more:
                if node.recovery is not None:
                    node.recovery.swept()
                return

    def _look_for_unserved(self, served: list[str]) -> None:
        now = monotonic()
        jobs = self._node.destinations
        # A pool of the table may rest without a worker: who runs it sees to it.
        resting = [name for name, pool in self._node.settings.pools.items() if pool.min == 0]
        unserved = [queue for queue in jobs if queue not in served and queues.pool_of(queue) not in resting]
        self._unserved = {queue: self._unserved.get(queue, now) for queue in unserved}
        self._said &= self._unserved.keys()
        for queue, since in self._unserved.items():
            if now - since >= UNSERVED_SECONDS and queue not in self._said:
                self._said.add(queue)
                logger.warning("No live worker serves queue %s, where %s", queue, queues.sent_there(jobs[queue]))

    # -- it stops -----------------------------------------------------------------------------------

    def leave(self) -> list[Grant]:
        """After the thread has ended."""
        grants = self._ledger.leave(self._node.worker)
        self._ledger.close()
        return grants

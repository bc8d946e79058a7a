"""The heartbeat of a node: it registers the node, renews its lease and sweeps.

Workers and schedulers are nodes: each is registered with the policies of its code, and each may sweep, which recovers
lost runs. A thread with a connection of its own makes all these calls, in order. Methods without
an underscore may be called from any thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from time import monotonic

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.job import graph, queues
from celery_orchestration.ledger import Grant, NewEpoch, NotRegistered, Registered, Sweep, keys
from celery_orchestration.node import releases
from celery_orchestration.node.backoff import LONGEST_WAIT, Backoff
from celery_orchestration.node.left_stores import LeftStores
from celery_orchestration.node.presence import Node
from celery_orchestration.node.publisher import Publisher

logger = get_logger(__name__)

#: Seconds that a queue may be without a worker before that is logged: pools do not start all at once.
UNSERVED_SECONDS = 30.0


class Heartbeat(threading.Thread, ABC):
    def __init__(self, node: Node, publisher: Publisher, left_stores: LeftStores | None) -> None:
        """`left_stores`: gives back the messages of workers that are gone; None where the broker is not Redis."""
        super().__init__(name="orchestration-heartbeat", daemon=True)
        self._node = node
        self._publisher = publisher
        self._left_stores = left_stores
        self._ledger = node.ledger.new_connection()
        self._wake = threading.Event()
        self._stopped = False
        self._sweeps = 0
        # Once the ledger is back, other nodes sweep: the lease must be renewed well before it could run out.
        self._backoff = Backoff(self._wake.wait, min(LONGEST_WAIT, node.settings.lease_seconds / 10))
        self._registered = self._unknown = False
        #: The epoch in which it is registered, and in which it has restored the decisions that it remembers; '' before
        #: that. Any thread may read it.
        self.epoch = ""
        self._beat_at = self._sweep_at = 0.0
        self._sweep_is_asked_for = False
        self._alive_at = monotonic()
        #: For people: when the lease was last renewed, by the monotonic clock; how far our clock was ahead of Redis's
        #: then, in seconds; and the problem since, if any.
        self.renewed_at: float | None = None
        self.clock_ahead: float | None = None
        self.problem = ""
        self._sweep_seconds = node.settings.sweep_interval_seconds
        #: Queues of our jobs that no live worker serves, and since when; and those that were logged.
        self._unserved: dict[str, float] = {}
        self._logged_unserved: set[str] = set()

    # -- what workers and schedulers add; the thread calls it ---------------------------------------

    @abstractmethod
    def _last_claim(self) -> tuple[str, str]:
        """The epoch in which it claimed its runs last, and the highest fence it has seen."""

    @abstractmethod
    def _on_registered(self, found: Registered) -> None:
        """Called before `self.epoch` is updated."""

    @abstractmethod
    def _on_new_epoch(self, epoch: str) -> None: ...

    @abstractmethod
    def _renew_lease(self) -> None: ...

    def _may_sweep(self) -> bool:
        return True

    def _on_swept(self, swept: Sweep) -> None: ...

    def _on_ledger_unavailable(self) -> None: ...

    def _begin_round(self) -> None:
        """The node is registered, but its lease is not renewed yet."""

    def _end_round(self) -> None:
        """The lease was renewed and the ledger was swept, if it was time for that."""

    # -- other threads call these -------------------------------------------------------------------

    def register_soon(self) -> None:
        """The ledger does not know this node, or one of its jobs."""
        self._registered = False
        self._wake.set()

    def sweep_soon(self) -> None:
        """There is work for a sweep now."""
        self._sweep_is_asked_for = True
        self._wake.set()

    def wake(self) -> None:
        """The next round begins now."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def silent_for(self) -> float:
        """Seconds since its last round began, with or without success."""
        return monotonic() - self._alive_at

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopped:
            self._alive_at = monotonic()
            self._wake.clear()
            try:
                self._round()
            except NotRegistered:
                self._unknown = True
                self._registered = False
                self._beat_at = 0.0
                continue
            except NewEpoch as exc:
                self._on_new_epoch(exc.epoch)
                continue
            except LedgerRefused as exc:
                self._node.give_up(str(exc))
                return
            except LedgerError as exc:
                self.problem = str(exc)
                self._on_ledger_unavailable()
                self._backoff.failed(lambda seconds, exc=exc: self._log(exc, seconds))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("The heartbeat met an unexpected error; it tries again in a second")
                self._wake.wait(1.0)
                continue
            self._backoff.succeeded()
            self.problem = ""
            self._wake.wait(max(0.0, min(self._beat_at, self._sweep_at) - monotonic()))

    def _log(self, exc: LedgerError, seconds: float) -> None:
        logger.error("No heartbeat for %.0f s (the ledger at %s: %s)", seconds, self._node.ledger.address, exc)

    def _round(self) -> None:
        if not self._registered:
            self._register()
        self._begin_round()
        now = monotonic()
        if now >= self._beat_at:
            self._renew_lease()
            self._beat_at = now + self._node.settings.lease_seconds / 3
            self.renewed_at = monotonic()
            self.clock_ahead = self._ledger.ahead
        if (now >= self._sweep_at or self._sweep_is_asked_for) and self._may_sweep():
            self._sweep_is_asked_for = False
            self._sweep()
            self._sweep_at = now + self._sweep_seconds
        self._end_round()

    def _register(self) -> None:
        node = self._node
        if not node.eviction_is_checked:  # Redis was down when this process started
            node.check_eviction(self._ledger)
        claimed_epoch, fence = self._last_claim()
        found = self._ledger.register(node.presence(), claimed_epoch, fence)
        if self._unknown and found.epoch == claimed_epoch:
            logger.error(
                "The lease was lost: the runs of %s are void, and others may start them; it registers again",
                node.presence().name,
            )
        self._unknown = False
        self._install(found.live, found.installed)
        if claimed_epoch and found.epoch != claimed_epoch and found.why in ("emptied", "moved"):
            node.decisions.restore(self._ledger, node.presence().name, found.epoch)
        self._on_registered(found)
        self.epoch = found.epoch
        self._registered = True

    def _install(self, live: str, installed: str) -> None:
        """Installs the policies of all live releases, unless they are installed already."""
        while live != installed:
            merged = releases.merged(self._ledger.read_releases(live))
            for cycle in merged.cycles:
                logger.error(
                    "The live releases together have a dependency cycle: %s. These jobs wait until one release is gone",
                    " -> ".join(cycle),
                )
            if self._ledger.install_policies(live, merged.cap, merged.jobs):
                for line in graph.absent(self._node.jobs, [keys.decode_job(name) for name in merged.jobs]):
                    logger.warning("%s", line)
                return
            found = self._ledger.register(self._node.presence(), *self._last_claim())
            live, installed = found.live, found.installed

    def _sweep(self) -> None:
        node = self._node
        while not self._stopped:
            swept = self._ledger.sweep(node.worker, self._sweeps, int(self._sweep_seconds * 1000))
            self._sweeps += 1  # not earlier: if the reply is lost, the call is made again with the same number
            for name in swept.dead_workers:
                logger.warning("%s is dead, its lease expired: its runs are recovered", name)
            if swept.recovered:
                logger.warning(
                    "Runs taken from dead workers: %d. They run again, or have failed (on_crash)", swept.recovered
                )
            self._publisher.publish(swept.grants)
            self._publisher.end(swept.endings)
            self._publisher.retry(swept.retries)
            if swept.disabled:
                node.jobs_disabled(swept.disabled)
            node.decisions.refresh(self._ledger, swept.decisions, self.epoch)
            self._on_swept(swept)
            self._install(swept.live_releases, swept.installed_releases)
            self._look_for_unserved(swept.served)
            if not swept.more:
                if self._left_stores is not None:
                    self._left_stores.swept()
                return

    def _look_for_unserved(self, served: list[str]) -> None:
        now = monotonic()
        jobs = self._node.destinations
        # A pool with min=0 may have no worker for a while: its supervisor starts one when there is work.
        resting = [name for name, pool in self._node.settings.pools.items() if pool.min == 0]
        unserved = [queue for queue in jobs if queue not in served and queues.pool_of(queue) not in resting]
        self._unserved = {queue: self._unserved.get(queue, now) for queue in unserved}
        self._logged_unserved &= self._unserved.keys()
        for queue, since in self._unserved.items():
            if now - since >= UNSERVED_SECONDS and queue not in self._logged_unserved:
                self._logged_unserved.add(queue)
                logger.warning("No live worker serves queue %s, where %s", queue, queues.sent_there(jobs[queue]))

    # -- it stops -----------------------------------------------------------------------------------

    def leave(self) -> list[Grant]:
        """After the thread has ended."""
        grants = self._ledger.leave(self._node.worker)
        self._ledger.close()
        return grants

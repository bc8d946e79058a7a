"""The keeper: leases, sweeps, and what else must happen without anybody waiting for it.

A thread with a connection of its own that needs neither the event loop nor the broker, so that on prefork a lease holds
whatever tasks do. (On threads, gevent and solo a task that never lets go of the interpreter can starve it.) All its
calls are made in this one thread, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration import queues
from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.ledger import Grant, NewEpoch, Outcome, Over, UnknownWorker
from celery_orchestration.worker import policies
from celery_orchestration.worker.line import LONGEST_WAIT, Patience

if TYPE_CHECKING:
    from celery_orchestration.worker.side import WorkerSide

logger = get_logger(__name__)

#: Seconds that a queue may be without a worker before the log says so: pools are not started all at once.
UNSERVED_SECONDS = 30.0


class Keeper(threading.Thread):
    def __init__(self, side: WorkerSide, before: Keeper | None = None) -> None:
        """`before`: the one whose place it takes."""
        super().__init__(name="orchestration-keeper", daemon=True)
        self._side = side
        self._ledger = side.ledger.line()
        self._wake = threading.Event()
        self._stopped = False
        self._sweeps = self._cancels = 0
        # Once the ledger is back, others sweep: a lease must be renewed well before it could run out.
        self._patience = Patience(self._wake.wait, min(LONGEST_WAIT, side.settings.lease_seconds / 10))
        self._registered = self._unknown = False
        self._draining = self._drain_is_told = False
        self._revoked: deque[str] = deque()
        self._cancelling: list[str] = []
        self._finished: deque[tuple[str, int]] = deque()
        self._failed: deque[Outcome] = deque()
        self._over: deque[Over] = deque()
        self._beat_at = self._sweep_at = 0.0
        self._alive_at = monotonic()
        if before is not None:
            self._revoked, self._finished = before._revoked, before._finished
            self._failed, self._over = before._failed, before._over
            self._cancelling = list(before._cancelling)
            # Whatever calls it was in the midst of: these are others.
            self._sweeps, self._cancels = before._sweeps + 1, before._cancels + 1
        # A sweep may advance the ledger clock by two of these: leases of the living must not end by that.
        self._sweep_seconds = min(side.settings.sweep_seconds, side.settings.lease_seconds / 6)
        #: Queues of our jobs that no live worker serves, since when; said: those the log knows of.
        self._unserved: dict[str, float] = {}
        self._said: set[str] = set()

    # -- asked for by others ------------------------------------------------------------------------

    def register_soon(self) -> None:
        """The ledger does not know this worker, or one of its jobs."""
        self._registered = False
        self._wake.set()

    def revoke(self, ids: list[str]) -> None:
        self._revoked.extend(ids)
        self._wake.set()

    def finish(self, id: str, attempt: int) -> None:
        self._finished.append((id, attempt))
        self._wake.set()

    def fail(self, id: str, fence: str) -> None:
        """A run that was handed over to this worker cannot be begun at all."""
        self._failed.append(Outcome(id, fence, "failed"))
        self._wake.set()

    def over(self, run: Over) -> None:
        self._over.append(run)
        self._wake.set()

    def drain(self) -> None:
        """The worker begins to stop."""
        self._draining = True
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
                self._claim_soon(exc.epoch)
                continue
            except LedgerRefused as exc:
                self._side.give_up(str(exc))
                return
            except LedgerError as exc:
                self._patience.trouble(lambda seconds, exc=exc: self._say(exc, seconds))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("The keeper met an unexpected error and goes on")
                self._wake.wait(1.0)
                continue
            self._patience.over()
            self._wake.wait(max(0.0, min(self._beat_at, self._sweep_at) - monotonic()))

    def _say(self, exc: LedgerError, seconds: float) -> None:
        logger.error("No heartbeat for %.0f s: the ledger at %s says %s", seconds, self._side.ledger.address, exc)

    def _round(self) -> None:
        if not self._registered:
            self.register()
        if self._draining and not self._drain_is_told:
            self._side.publisher.publish(self._ledger.drain(self._side.worker))
            self._drain_is_told = True
        now = monotonic()
        settings = self._side.settings
        if now >= self._beat_at:
            self._beat()
            self._beat_at = now + settings.lease_seconds / 3
        if now >= self._sweep_at and not self._side.line.down:
            # Not while outcomes are untold: a sweep could recover a run that is over.
            self._sweep()
            self._sweep_at = now + self._sweep_seconds
        self._requests()

    def _claim_soon(self, epoch: str) -> None:
        """The line claims what we run, before its next turn: here is one."""
        if self._side.epoch.can_claim(epoch):
            self._side.in_loop(self._side.gate.take_a_turn)
            self._wake.wait(0.1)
        else:
            self._registered = False

    def register(self) -> None:
        side = self._side
        if not side.eviction_is_checked:  # Redis was down when this worker started
            side.check_eviction(self._ledger)
        found = self._ledger.register(side.presence(), side.epoch.name, side.epoch.fence)
        if self._unknown and found.epoch == side.epoch.name:
            logger.error("This worker's lease was lost: what it runs is void; it registers again")
        self._unknown = False
        self.install(found.live, found.installed)
        side.epoch.registered(found)
        self._registered, self._drain_is_told = True, False
        self._side.in_loop(self._side.gate.open)

    def install(self, live: str, installed: str) -> None:
        """Puts the policies of all live releases into force, if that is not done."""
        while live != installed:
            merged = policies.merged(self._ledger.releases(live))
            for cycle in merged.cycles:
                logger.error(
                    "The releases that are live together have a cycle of dependencies: %s: these jobs wait "
                    "until one release is gone",
                    " -> ".join(cycle),
                )
            if self._ledger.install(live, merged.cap, merged.jobs):
                return
            found = self._ledger.register(self._side.presence(), self._side.epoch.name, self._side.epoch.fence)
            live, installed = found.live, found.installed

    def _beat(self) -> None:
        runs = [(run.id, run.fence or "") for run in list(self._side.gate.runs.values()) if not run.void]
        void = self._ledger.beat(self._side.worker, int(self._side.settings.lease_seconds * 1000), runs)
        # A run may have ended while the question was under way: those are no longer ours to stop.
        asked = dict(runs)
        void = [id for id in void if (run := self._side.gate.runs.get(id)) and run.fence == asked[id]]
        if void:
            self._side.in_loop(lambda: self._side.gate.voided(void))

    def _sweep(self) -> None:
        side = self._side
        while not self._stopped:
            swept = self._ledger.sweep(side.worker, self._sweeps, int(self._sweep_seconds * 1000))
            self._sweeps += 1  # not before: a call whose reply was lost is made again under its number
            for name in swept.dead_workers:
                logger.warning("Worker %s is dead: its lease ran out", name)
            if swept.recovered:
                logger.warning("%d runs of dead workers go back to their queues", swept.recovered)
            side.publisher.publish(swept.grants)
            side.publisher.end(swept.endings)
            side.publisher.retry(swept.retries)
            if swept.disabled:
                side.disabled(swept.disabled)
            self._side.in_loop(lambda due=swept.due: side.gate.look_again_in(due))  # type: ignore[misc]
            self.install(swept.live_releases, swept.installed_releases)
            self._look_for_unserved(swept.served)
            if not swept.more:
                return

    def _look_for_unserved(self, served: list[str]) -> None:
        now = monotonic()
        jobs = self._side.destinations
        self._unserved = {queue: self._unserved.get(queue, now) for queue in jobs if queue not in served}
        self._said &= self._unserved.keys()
        for queue, since in self._unserved.items():
            if now - since >= UNSERVED_SECONDS and queue not in self._said:
                self._said.add(queue)
                logger.warning("No live worker serves queue %s, where %s", queue, queues.sent_there(jobs[queue]))

    def _requests(self) -> None:
        side = self._side
        while self._revoked or self._cancelling:
            if not self._cancelling:
                self._cancelling = [self._revoked.popleft() for _ in range(min(len(self._revoked), 100))]
            endings, grants = self._ledger.cancel(side.worker, self._cancels, "revoked", self._cancelling)
            self._cancels += 1
            self._cancelling = []
            side.publisher.end(endings)
            side.publisher.publish(grants)
        if self._finished:
            runs = list(self._finished)
            side.publisher.publish(self._ledger.finish(runs))
            for _ in runs:
                self._finished.popleft()
        while self._over:
            self._ledger.over(self._over[0])
            self._over.popleft()
        while self._failed:
            side.gate.tell(self._failed.popleft())

    # -- the worker stops ---------------------------------------------------------------------------

    def leave(self) -> list[Grant]:
        """After the thread has ended."""
        grants = self._ledger.leave(self._side.worker)
        self._ledger.close()
        return grants

"""The heartbeat: a worker's lease, sweeps, and what else must happen without anybody waiting for it.

It needs neither the event loop nor the broker, so that on prefork a lease holds whatever tasks do. (On threads, gevent
and solo a task that never lets go of the interpreter can starve it.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_orchestration.ledger import Discarded, Outcome, Registered, Stray, Sweep, TimedOut
from celery_orchestration.node.heartbeat import Heartbeat
from celery_orchestration.worker import deadline

if TYPE_CHECKING:
    from celery_orchestration.worker.runtime import WorkerRuntime


class WorkerHeartbeat(Heartbeat):
    def __init__(self, runtime: WorkerRuntime, before: WorkerHeartbeat | None = None) -> None:
        """`before`: the one whose place it takes."""
        super().__init__(runtime, "orchestration-heartbeat")
        self._runtime = runtime
        self._cancels = 0
        self._slots = 0
        self._draining = self._drain_is_told = False
        self._revoked: deque[str] = deque()
        self._cancelling: list[str] = []
        self._finished: deque[Discarded] = deque()
        self._failed: deque[Outcome] = deque()
        self._over: deque[TimedOut] = deque()
        self._strays: deque[tuple[Stray, Callable[[str], None]]] = deque()
        if before is not None:
            self._revoked, self._finished = before._revoked, before._finished
            self._failed, self._over, self._strays = before._failed, before._over, before._strays
            self._cancelling = list(before._cancelling)
            # Whatever calls it was in the midst of: these are others.
            self._sweeps, self._cancels = before._sweeps + 1, before._cancels + 1

    # -- asked for by others ------------------------------------------------------------------------

    def revoke(self, ids: list[str]) -> None:
        self._revoked.extend(ids)
        self._wake.set()

    def finish(self, message: Discarded) -> None:
        self._finished.append(message)
        self._wake.set()

    def fail(self, id: str, fence: str) -> None:
        """A run that was handed over to this worker cannot be begun at all."""
        self._failed.append(Outcome(id, fence, "failed"))
        self._wake.set()

    def over(self, run: TimedOut) -> None:
        self._over.append(run)
        self._wake.set()

    def stray(self, message: Stray, then: Callable[[str], None]) -> None:
        self._strays.append((message, then))
        self._wake.set()

    def drain(self) -> None:
        """The worker begins to stop."""
        self._draining = True
        self._wake.set()

    # -- the thread ---------------------------------------------------------------------------------

    def _told(self) -> tuple[str, str]:
        return self._runtime.epoch.name, self._runtime.epoch.fence

    def _round(self) -> None:
        self._round_began = deadline.now()
        super()._round()

    def _register(self) -> None:
        self._slots = self._runtime.slots
        super()._register()

    def _is_registered(self, found: Registered) -> None:
        self._lease_runs_from(self._round_began)
        self._runtime.epoch.registered(found)
        self._drain_is_told = False
        self._runtime.in_loop(self._open)

    def _open(self) -> None:
        """In the loop: jobs that came before count as waiting for a slot, not as set aside."""
        self._runtime.demand.registered = True
        self._runtime.gate.open()

    def _ledger_is_away(self) -> None:
        """Plain tasks do not need the ledger: they are fetched although it does not know this worker yet. Nobody can
        ask it for dead workers meanwhile either."""
        self._runtime.demand.registered = True

    def _epoch_began(self, epoch: str) -> None:
        """The line claims what we run, before its next turn: here is one."""
        if self._runtime.epoch.can_claim(epoch):
            self._runtime.in_loop(self._runtime.gate.take_a_turn)
            self._wake.wait(0.1)
        else:
            self._registered = False

    def _before(self) -> None:
        if self._runtime.slots != self._slots:  # somebody let the execution pool grow or shrink
            self._register()
        if self._draining and not self._drain_is_told:
            self._runtime.publisher.publish(self._ledger.drain(self._runtime.worker))
            self._drain_is_told = True

    def _may_sweep(self) -> bool:
        """Not while outcomes are untold: a sweep could recover a run that is over."""
        return not self._runtime.turns.down

    def _has_swept(self, swept: Sweep) -> None:
        self._runtime.in_loop(lambda: self._runtime.gate.look_again_in(swept.due))
        self._runtime.take_in(swept.strays)
        self._runtime.consuming.look()

    def _renew(self) -> None:
        runs = [(run.run_id, run.fence or "") for run in list(self._runtime.gate.runs.values()) if not run.void]
        sent = deadline.now()
        void = self._ledger.heartbeat(self._runtime.worker, int(self._runtime.settings.lease_seconds * 1000), runs)
        self._lease_runs_from(sent)
        # A run may have ended while the question was under way: those are no longer ours to stop.
        asked = dict(runs)
        void = [id for id in void if (run := self._runtime.gate.runs.get(id)) and run.fence == asked[id]]
        if void:
            self._runtime.in_loop(lambda: self._runtime.gate.voided(void))

    def _lease_runs_from(self, sent: float) -> None:
        if self._runtime.deadline is not None:
            self._runtime.deadline.heartbeat(sent)

    def _after(self) -> None:
        runtime = self._runtime
        while self._revoked or self._cancelling:
            if not self._cancelling:
                self._cancelling = [self._revoked.popleft() for _ in range(min(len(self._revoked), 100))]
            endings, grants = self._ledger.cancel(runtime.worker, self._cancels, "revoked", self._cancelling)
            self._cancels += 1
            self._cancelling = []
            runtime.publisher.end(endings)
            runtime.publisher.publish(grants)
        if self._finished:
            messages = list(self._finished)
            runtime.publisher.publish(self._ledger.confirm_end_of_messages(messages))
            for _ in messages:
                self._finished.popleft()
        while self._strays:
            strays = [self._strays[n] for n in range(min(len(self._strays), 32))]
            answers, grants = self._ledger.accept_strays(runtime.worker, [message for message, _ in strays])
            runtime.publisher.publish(grants)
            for (_, then), answer in zip(strays, answers, strict=True):
                self._strays.popleft()
                then(answer)
        while self._over:
            self._ledger.time_out(self._over[0])
            self._over.popleft()
        while self._failed:
            runtime.gate.tell(self._failed.popleft())

"""The heartbeat of a worker: it renews the lease, sweeps, and delivers notices.

It needs neither the event loop nor the broker, so on prefork no task can make the worker lose its lease. (On threads,
gevent and solo a task that never releases the interpreter can starve it.)

Everything here happens in the heartbeat's thread; calls to the gate go through the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from celery_orchestration.ledger import Registered, Sweep
from celery_orchestration.node.heartbeat import Heartbeat
from celery_orchestration.node.left_stores import LeftStores
from celery_orchestration.node.presence import Node
from celery_orchestration.node.publisher import Publisher
from celery_orchestration.worker import deadline
from celery_orchestration.worker.epoch import Epoch
from celery_orchestration.worker.fetch.demand import Demand
from celery_orchestration.worker.loop import InLoop
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.settlement import Settlement
from celery_orchestration.worker.strays import Strays
from celery_orchestration.worker.timers import DueTimes
from celery_orchestration.worker.turns import Turns


class WorkerHeartbeat(Heartbeat):
    def __init__(
        self,
        node: Node,
        publisher: Publisher,
        left_stores: LeftStores | None,
        settlement: Settlement,
        turns: Turns,
        due_times: DueTimes,
        epoch: Epoch,
        notices: Notices,
        in_loop: InLoop,
        demand: Demand,
        strays: Strays,
        lease_deadline: deadline.Deadline | None,
        *,
        open_gate: Callable[[], None],
        slots: Callable[[], int],
        ledger_is_down: Callable[[], bool],
        look_for_queues: Callable[[], None],
        replaces: WorkerHeartbeat | None = None,
    ) -> None:
        """`slots()`: how many runs the worker can have at once. `ledger_is_down()`: whether the last turn got no
        answer. `look_for_queues()` checks whether the broker has new queues for this worker. `replaces`: a heartbeat
        that hangs, and that this one replaces."""
        super().__init__(node, publisher, left_stores)
        self._settlement = settlement
        self._turns = turns
        self._due_times = due_times
        self._epoch = epoch
        self._notices = notices
        self._in_loop = in_loop
        self._demand = demand
        self._strays = strays
        self._lease_deadline = lease_deadline
        self._open_gate = open_gate
        self._slots = slots
        self._ledger_is_down = ledger_is_down
        self._look_for_queues = look_for_queues
        self._registered_slots = 0
        self._drain_is_known = False
        #: Revoked task ids of the current call of ``cancel``, and the number of that call.
        self._cancelling: list[str] = []
        self._cancels = 0
        self._round_began = 0.0
        if replaces is not None:
            self._cancelling = list(replaces._cancelling)
            # The heartbeat that hangs may be in the middle of a call, so the numbers must be new ones.
            self._sweeps, self._cancels = replaces._sweeps + 1, replaces._cancels + 1

    # -- the lease ----------------------------------------------------------------------------------

    def _last_claim(self) -> tuple[str, str]:
        return self._epoch.name, self._settlement.highest_fence

    def _round(self) -> None:
        self._round_began = deadline.now()
        super()._round()

    def _register(self) -> None:
        self._registered_slots = self._slots()
        super()._register()

    def _on_registered(self, found: Registered) -> None:
        self._lease_runs_from(self._round_began)
        self._epoch.registered(found)
        self._drain_is_known = False
        self._in_loop(self._admit_runs)

    def _admit_runs(self) -> None:
        """In one step of the event loop: in between, requests that came before would count as set aside."""
        self._demand.registered = True
        self._open_gate()

    def _on_ledger_unavailable(self) -> None:
        """Plain tasks do not need the ledger, so messages are fetched although it does not know this worker yet. While
        it is unavailable, no other node can ask it which workers are dead."""
        self._demand.registered = True

    def _on_new_epoch(self, epoch: str) -> None:
        """The carrier claims this worker's runs before its next turn, so a turn is requested now."""
        if self._epoch.can_claim(epoch):
            self._in_loop(self._turns.request_even_if_empty)
            self._wake.wait(0.1)
        else:
            self._registered = False

    def _begin_round(self) -> None:
        if self._slots() != self._registered_slots:  # the execution pool has grown or shrunk
            self._register()
        if self._notices.draining and not self._drain_is_known:
            self._publisher.publish(self._ledger.drain(self._node.worker))
            self._drain_is_known = True

    def _renew_lease(self) -> None:
        runs = [(run.run_id, run.fence or "") for run in list(self._settlement.runs.values()) if not run.void]
        sent = deadline.now()
        void = self._ledger.heartbeat(self._node.worker, int(self._node.settings.lease_seconds * 1000), runs)
        self._lease_runs_from(sent)
        if void:
            # Until the event loop hears of it, a run may have started here again, with a new fence. That is not void.
            lost = [run for run in runs if run[0] in void]
            self._in_loop(lambda: self._settlement.lease_lost(lost))

    def _lease_runs_from(self, sent: float) -> None:
        if self._lease_deadline is not None:
            self._lease_deadline.heartbeat(sent)

    # -- sweeps -------------------------------------------------------------------------------------

    def _may_sweep(self) -> bool:
        """Not while outcomes are unreported: a sweep could recover a run that is over."""
        return not self._ledger_is_down()

    def _on_swept(self, swept: Sweep) -> None:
        self._in_loop(lambda: self._due_times.due_in(swept.due))
        self._strays.take_in(swept.strays)
        self._look_for_queues()

    # -- notices ------------------------------------------------------------------------------------

    def _end_round(self) -> None:
        """Delivers the notices. Each is removed when the ledger has taken it: if a call fails, the next round repeats
        it."""
        self._cancel_revoked()
        self._finish_discarded()
        self._place_strays()
        while self._notices.timed_out:
            self._ledger.time_out(self._notices.timed_out[0])
            self._notices.timed_out.popleft()
        while self._notices.unreadable:
            self._settlement.report(self._notices.unreadable.popleft())

    def _cancel_revoked(self) -> None:
        revoked = self._notices.revoked
        while revoked or self._cancelling:
            if not self._cancelling:
                self._cancelling = [revoked.popleft() for _ in range(min(len(revoked), 100))]
            endings, grants = self._ledger.cancel(self._node.worker, self._cancels, "revoked", self._cancelling)
            self._cancels += 1
            self._cancelling = []
            self._publisher.end(endings)
            self._publisher.publish(grants)

    def _finish_discarded(self) -> None:
        if self._notices.discarded:
            messages = list(self._notices.discarded)
            self._publisher.publish(self._ledger.confirm_end_of_messages(messages))
            for _ in messages:
                self._notices.discarded.popleft()

    def _place_strays(self) -> None:
        waiting = self._notices.strays
        while waiting:
            asked = [waiting[number] for number in range(min(len(waiting), 32))]
            answers, grants = self._ledger.accept_strays(self._node.worker, [message for message, _ in asked])
            self._publisher.publish(grants)
            for (_, then), answer in zip(asked, answers, strict=True):
                waiting.popleft()
                then(answer)

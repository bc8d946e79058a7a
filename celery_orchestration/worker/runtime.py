"""The orchestration of one worker: the one place that builds its parts and connects them.

It is built when the worker is set up (so that mistakes show before anything runs), connected with every broker
connection, and stopped after the execution pool is down. The bootsteps call it in the worker's main thread, which runs
the event loop.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state as celery_state

from celery_orchestration.errors import LedgerError
from celery_orchestration.job import queues
from celery_orchestration.job.limits import CANNOT_INTERRUPT
from celery_orchestration.job.pool import pool_problems
from celery_orchestration.ledger import Presence
from celery_orchestration.node.left_stores import LeftStores, has_stores
from celery_orchestration.node.presence import Node
from celery_orchestration.node.publisher import Publisher
from celery_orchestration.worker import custom, internals, startup_checks
from celery_orchestration.worker.carrier import TurnCarrier
from celery_orchestration.worker.consuming import Consuming
from celery_orchestration.worker.deadline import Deadline
from celery_orchestration.worker.drain import Drain
from celery_orchestration.worker.epoch import Epoch
from celery_orchestration.worker.fetch.demand import Demand
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.transport import make_reliable
from celery_orchestration.worker.gate import Gate
from celery_orchestration.worker.heartbeat import WorkerHeartbeat
from celery_orchestration.worker.job_request import gates
from celery_orchestration.worker.limits import Limits
from celery_orchestration.worker.loop import DirectLoop, HubLoop, InLoop
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.reports import Reports
from celery_orchestration.worker.served_queues import ServedQueues
from celery_orchestration.worker.slots import CountedSlots, SemaphoreSlots, Slots
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.strays import Strays
from celery_orchestration.worker.supervised import Supervised
from celery_orchestration.worker.watchdog import Watchdog

logger = get_logger(__name__)

#: Seconds that a worker that stops has to report outcomes and returned runs.
STOP_SECONDS = 5.0


class WorkerRuntime(Node):
    # Built with the first connection to the broker.
    in_loop: InLoop
    publisher: Publisher
    consuming: Consuming
    gate: Gate
    epoch: Epoch
    carrier: TurnCarrier
    heartbeat: WorkerHeartbeat
    strays: Strays
    reports: Reports
    drain: Drain
    watchdog: Watchdog

    def __init__(self, controller: Any) -> None:
        """`controller`: Celery's worker."""
        super().__init__(controller.app)
        self.controller = controller
        if self.settings.strict_priority:
            options = self.app.conf.broker_transport_options or {}
            self.app.conf.broker_transport_options = {"queue_order_strategy": queues.STRICT, **options}
        for name in self.jobs:
            custom.check(self.app.tasks[name])
        self.queues = ServedQueues(self.app, self.destinations)
        stops = {name for name, job in self.jobs.items() if job.on_lease_lost == "stop"}
        startup_checks.check_pool_can_stop(controller.pool_cls, self.kind, stops & self._jobs_here())
        # Here, because it has to be made before the execution pool is forked.
        self._deadline = Deadline(self.settings) if stops else None
        self._state = GateState()
        self._loop: HubLoop | DirectLoop | None = None
        self._consumer: Any = None
        self._running = False
        #: Messages of tasks that this worker has received, plain ones included.
        self.received = 0
        #: When a cold shutdown began, by the monotonic clock.
        self._cold_since: float | None = None
        #: For reliable fetch. None: kombu fetches messages in its own way.
        self.fetcher: Fetcher | None = None
        # Slots that an autoscaler may add are counted, too: it decides by the messages that were fetched.
        bounds = self.settings.read_ahead_seconds, lambda: self.slots
        self.demand = Demand(*bounds)
        #: None where the broker is not Redis.
        self.left_stores: LeftStores | None = None
        if has_stores(self.app):
            if self.settings.fetch == "reliable":
                self.demand = self.fetcher = Fetcher(self.worker, controller.hostname, self.store_names, *bounds)
            self.left_stores = LeftStores(self, self.fetcher)

    @property
    def kind(self) -> str:
        """The execution pool, by the name of its module in Celery."""
        return str(self.controller.pool_cls.__module__.rpartition(".")[2])

    def _jobs_here(self) -> set[str]:
        return startup_checks.jobs_served(self.destinations, self.presence().queues)

    # -- a connection to the broker -----------------------------------------------------------------

    def before_connecting(self, consumer: Any) -> None:
        fetcher = self.fetcher
        if fetcher is not None:
            internals.consumer.consume_with(consumer, lambda connection: make_reliable(connection, fetcher))
            internals.pool.on_code_ended(consumer.pool, fetcher.wake)
        else:
            internals.pool.on_code_ended(consumer.pool, self._code_ended)

    def _code_ended(self) -> None:
        """From any thread."""
        if self._loop is not None:
            self.consuming.code_ended()

    def connected(self, consumer: Any) -> None:
        first = self._loop is None
        if self._loop is None:
            self._build(consumer)
        else:
            self._loop.schedule_again()
            self.gate.reconnected()
        gate = self.gate
        internals.consumer.on_refused_messages(consumer, gate.settlement.message_refused, self.strays.message_came)
        self.consuming.connected()
        self.demand.is_set_aside = gate.admission.has_set_aside
        consumer.on_task_message.update((gate.message_received, self._count, self.demand.received))
        if first:
            self._check_jobs()
            self._start_threads()
            self._running = True

    def disconnect(self) -> None:
        if self._loop is not None:
            self.consuming.disconnect(self.gate.admission.hand_back)

    def register_with_hub(self) -> None:
        if self._loop is not None:
            self._loop.register()
            self.consuming.register()

    def _count(self, request: Any) -> None:
        self.received += 1

    # -- the parts are built, and connected with each other -----------------------------------------

    def _build(self, consumer: Any) -> None:
        self._consumer = consumer
        loop = self._loop = HubLoop(consumer.hub) if consumer.hub else DirectLoop(consumer.timer)
        self.in_loop = InLoop(loop, self._state)
        self.publisher = Publisher(self.app, self.ledger, self.accept, self.send_event)
        self._notices = Notices(wake=self._wake_heartbeat)
        self.consuming = Consuming(
            self.app,
            self.settings,
            consumer,
            self.queues,
            self._state,
            loop,
            self.in_loop,
            self.demand,
            self.fetcher,
            self.publisher,
            slots=lambda: self.slots,
            register_again=self._register_again,
        )
        self.gate = gates[consumer.hostname] = self._new_gate(consumer, loop)
        settlement = self.gate.settlement
        self.epoch = Epoch(self.worker, settlement, self.in_loop, self.jobs_disabled)
        self.carrier = TurnCarrier(
            self.ledger,
            self.worker,
            self.settings.mode,
            self._state,
            loop,
            self.in_loop,
            self.epoch,
            self.gate.turns,
            open_gate=self.gate.open,
            close_gate=self.gate.close,
            register_again=self._register_again,
        )
        self.strays = Strays(
            self._state,
            loop,
            self.in_loop,
            consumer,
            lambda: self.consuming.consumers,
            self._notices,
            self.default_queue,
            self.accept,
        )
        self.heartbeat = self._new_heartbeat()
        self.watchdog = Watchdog(self.settings.lease_seconds, self._heartbeat_silent_for, self._replace_heartbeat)
        self.reports = Reports(
            self.ledger, self.worker, self.controller.hostname, self.app.timezone, lambda: self.carrier.down
        )
        self.drain = Drain(
            self.ledger,
            self.worker,
            self.controller,
            self.settings.drain_seconds,
            settlement,
            self._notices,
            wait_until_reported=self.gate.turns.wait_until_reported,
            close_broker=self.consuming.close_broker,
            stop_heartbeat=self._stop_heartbeat,
        )
        self._hook_into_celery(consumer)

    def _new_gate(self, consumer: Any, loop: HubLoop | DirectLoop) -> Gate:
        return Gate(
            state=self._state,
            loop=loop,
            in_loop=self.in_loop,
            slots=self._new_slots(consumer.pool),
            consumer=consumer,
            app=self.app,
            accept=self.accept,
            jobs=self,
            strict_priority=self.settings.strict_priority,
            granted_queues=self.consuming,
            publisher=self.publisher,
            notices=self._notices,
            deadline=self._deadline,
            limits=Limits(loop, self.in_loop) if self.kind in CANNOT_INTERRUPT else None,
            ledger_address=self.ledger.address,
            carry=lambda batch: self.carrier.carry(batch),  # noqa: PLW0108  (the carrier and the drain are built later)
            register_again=self._register_again,
            jobs_disabled=self.jobs_disabled,
            begin_drain=lambda: self.drain.begin(),  # noqa: PLW0108
            hurry_drain=lambda: self.drain.hurry(),  # noqa: PLW0108
        )

    def _new_slots(self, pool: Any) -> Slots:
        controller = self.controller
        if controller.semaphore is not None and controller.process_task == controller._process_task_sem:
            return SemaphoreSlots(controller)
        return CountedSlots(lambda: internals.pool.size_of(pool) or controller.concurrency)

    def _new_heartbeat(self, replaces: WorkerHeartbeat | None = None) -> WorkerHeartbeat:
        return WorkerHeartbeat(
            self,
            self.publisher,
            self.left_stores,
            self.gate.settlement,
            self.gate.turns,
            self.gate.due_times,
            self.epoch,
            self._notices,
            self.in_loop,
            self.demand,
            self.strays,
            self._deadline,
            open_gate=self.gate.open,
            slots=lambda: self.slots,
            ledger_is_down=lambda: self.carrier.down,
            look_for_queues=self.consuming.look_for_queues,
            replaces=replaces,
        )

    # The watchdog may replace the heartbeat, so other parts call it through these methods and do not keep it.

    def _register_again(self) -> None:
        """The ledger lacks something of this worker. From any thread."""
        self.heartbeat.register_soon()

    def _wake_heartbeat(self) -> None:
        self.heartbeat.wake()

    def _heartbeat_silent_for(self) -> float:
        return self.heartbeat.silent_for()

    def _hook_into_celery(self, consumer: Any) -> None:
        pool, controller, gate = consumer.pool, self.controller, self.gate
        internals.consumer.before_cold_shutdown(controller, self._cold_shutdown)
        internals.pool.guard_flush(pool, gate.settlement.in_pool, gate.pool_flushed)
        internals.pool.watch_exits(pool)
        internals.pool.keep_partial_reads(pool)
        internals.pool.before_begin(controller, self.consuming.may_begin)
        internals.redis.silence_returned_warnings(queues.is_granted)
        # These hooks exist once in a process, which has several workers in some tests.
        internals.control.show_more_queues(lambda consumer: _runtime_of(consumer).consuming.active_queues())
        internals.control.report_waiting(lambda consumer: consumer.hostname in gates and _runtime_of(consumer).reports)
        internals.control.on_revoke(lambda consumer, *what: gates[consumer.hostname].settlement.revoked(*what))

    def _check_jobs(self) -> None:
        if problem := startup_checks.bypasses_gate(self.app, self.jobs):
            self.give_up(problem)
        startup_checks.warn_of_time_limits(self.app, self.kind, self.jobs, self._jobs_here(), self.presence().queues)
        startup_checks.warn_of_other_scheduler(self.app, self.jobs)
        for mismatch in pool_problems(self.settings.pools, self.jobs):
            logger.warning("%s", mismatch)

    def _start_threads(self) -> None:
        supervised = Supervised.of_environment(self.ledger, self.settings, self.drain.hurry)
        threads = self.carrier, self.heartbeat, self.publisher, self.watchdog, self.drain, self.left_stores, supervised
        for thread in threads:
            if thread is not None:
                thread.start()

    def _replace_heartbeat(self) -> None:
        """Replaces the heartbeat that hangs. If its thread ever goes on, it ends."""
        stuck = self.heartbeat
        stuck.stop()
        self.heartbeat = self._new_heartbeat(stuck)
        self.heartbeat.start()

    # -- what others ask ----------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        """Whether the event loop is down for good."""
        return self._state.stopping

    def presence(self) -> Presence:
        return self.as_present(self.controller.hostname, self.kind, self.slots, self.queues.served)

    @property
    def slots(self) -> int:
        """How many runs it can have at once: the size to which the execution pool may grow, or else its own size."""
        controller = self.controller
        return int(controller.max_concurrency or internals.pool.size_of(controller.pool) or controller.concurrency)

    def send_event(self, type: str, id: str, **fields: Any) -> None:
        def send() -> None:
            dispatcher = self._consumer.event_dispatcher
            if dispatcher and dispatcher.enabled:
                dispatcher.send(type, uuid=id, **fields)

        self.in_loop(send)

    def give_up(self, why: str) -> None:
        """This worker may not use the ledger, which turned out only after it had started. So it stops."""
        logger.critical("%s", why)
        celery_state.should_stop = 1

    # -- the worker stops ---------------------------------------------------------------------------

    def _cold_shutdown(self) -> None:
        """In a signal handler."""
        self._cold_since = monotonic()
        self.gate.begin_drain()

    def close(self) -> None:
        """The worker begins to stop: nothing more is admitted, running code may end."""
        if self._running:
            self.gate.begin_drain()
            self.gate.stop()
            self.carrier.give_to_thread()
            cannot_kill = not internals.pool.can_kill(self.controller.pool)
            if self._cold_since is not None and self.gate.settlement.runs and cannot_kill:
                # Celery could not cancel them. It sleeps through its soft shutdown before it closes. On gevent it does
                # not sleep (a signal handler must not block there), and would wait for the tasks forever.
                self.drain.hurry_at(self._cold_since + (self.app.conf.worker_soft_shutdown_timeout or 0))

    def _stop_heartbeat(self, seconds: float) -> None:
        self.heartbeat.stop()
        self.heartbeat.join(seconds)

    def stop(self) -> None:
        """The execution pool is down."""
        if not self._running:
            return None
        if not self.gate.settlement.code_is_gone():
            self.drain.end_process()
            return self.heartbeat.stop()
        self.drain.over()
        deadline = monotonic() + STOP_SECONDS
        self.gate.settlement.interrupt_all()
        if not self.gate.turns.wait_until_reported(deadline):
            logger.error("The ledger does not answer: outcomes are lost, their runs will be recovered and run again")
        self.watchdog.stop()
        if self.left_stores is not None:
            self.left_stores.stop()
        self.carrier.stop()
        self._stop_heartbeat(max(0.1, deadline - monotonic()))
        try:
            self.publisher.publish(self.heartbeat.leave())
        except LedgerError as exc:
            logger.error("Cannot sign off from the ledger: %s", exc)
        self.publisher.stop()
        self.publisher.join(max(0.1, deadline - monotonic()))
        self.publisher.give_up()
        gates.pop(self.controller.hostname, None)
        return None


def _runtime_of(consumer: Any) -> WorkerRuntime:
    runtime: WorkerRuntime = consumer.controller.orchestration
    return runtime

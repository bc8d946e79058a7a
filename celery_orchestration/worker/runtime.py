"""The worker's side of the orchestration: one object that owns its parts and knows their order.

Built when the worker is set up (so that mistakes show before anything runs), connected with every broker connection,
stopped after the execution pool is down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from celery.utils.log import get_logger
from celery.worker import state

from celery_orchestration.errors import ConfigurationError, LedgerError
from celery_orchestration.job import queues
from celery_orchestration.job.app import SCHEDULER, limits_of
from celery_orchestration.job.limits import CANNOT_INTERRUPT, sentences, soft_sentence
from celery_orchestration.job.pool import pool_problems
from celery_orchestration.ledger import Presence
from celery_orchestration.node.presence import Node
from celery_orchestration.node.publisher import Publisher
from celery_orchestration.worker import custom, internals
from celery_orchestration.worker.consuming import Consuming
from celery_orchestration.worker.deadline import Deadline
from celery_orchestration.worker.drain import Drain
from celery_orchestration.worker.epoch import Epoch
from celery_orchestration.worker.fetch.demand import Demand
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.recovery import Recovery, has_stores
from celery_orchestration.worker.gate import Gate
from celery_orchestration.worker.heartbeat import WorkerHeartbeat
from celery_orchestration.worker.limits import Limits
from celery_orchestration.worker.loop import DirectLoop, HubLoop
from celery_orchestration.worker.reports import Reports
from celery_orchestration.worker.request import OrchestratedRequest, gates
from celery_orchestration.worker.slots import CountedSlots, SemaphoreSlots
from celery_orchestration.worker.strays import Strays
from celery_orchestration.worker.supervised import Supervised
from celery_orchestration.worker.turns import Turns
from celery_orchestration.worker.watchdog import Watchdog

logger = get_logger(__name__)

#: Seconds to get outcomes and returned runs told when the worker stops.
STOP_SECONDS = 5.0


class WorkerRuntime(Node):
    gate: Gate
    turns: Turns
    heartbeat: WorkerHeartbeat
    watchdog: Watchdog
    drain: Drain
    strays: Strays
    reports: Reports
    recovery: Recovery | None

    def __init__(self, controller: Any) -> None:
        super().__init__(controller.app)
        self.controller = controller
        self.epoch = Epoch(self)
        if self.settings.strict_priority:
            options = self.app.conf.broker_transport_options or {}
            self.app.conf.broker_transport_options = {"queue_order_strategy": queues.STRICT, **options}
        for name in self.jobs:
            custom.check(self.app.tasks[name])
        self.consuming = Consuming(self)
        stopped = [name for name, job in self.jobs.items() if job.on_lease_lost == "stop"]
        self._check_pool_can_stop(stopped)
        #: Before the execution pool is forked.
        self.deadline = Deadline(self.settings) if stopped else None
        self._loop: HubLoop | DirectLoop | None = None
        self._consumer: Any = None
        self._running = False
        #: Messages of tasks that this worker has received, plain ones included.
        self.received = 0
        #: When a cold shutdown began, by the monotonic clock.
        self._cold_since: float | None = None
        #: How messages are fetched; None: as kombu does it.
        self.fetcher: Fetcher | None = None
        # What an autoscaler may add counts as slots: it looks at what was fetched.
        self.demand = Demand(self.settings.read_ahead_seconds, lambda: self.slots)
        if has_stores(self.app):
            if self.settings.fetch == "reliable":
                self.demand = self.fetcher = self._new_fetcher()
            self.recovery = Recovery(self, self.fetcher)

    def _new_fetcher(self) -> Fetcher:
        read_ahead = self.settings.read_ahead_seconds
        return Fetcher(self.worker, self.controller.hostname, self.store_names, read_ahead, lambda: self.slots)

    @property
    def kind(self) -> str:
        """The execution pool, by the name of its module in Celery."""
        return str(self.controller.pool_cls.__module__.rpartition(".")[2])

    def _check_pool_can_stop(self, jobs: list[str]) -> None:
        if internals.can_kill(self.controller.pool_cls):
            return
        here = sorted(self._jobs_served() & set(jobs))
        if here:
            raise ConfigurationError(
                f"on_lease_lost='stop' needs an execution pool that can end a run's process (prefork), "
                f"not {CANNOT_INTERRUPT.get(self.kind, self.kind)}: {', '.join(here)}. Serve their queues with "
                "-P prefork, or write on_lease_lost='continue'"
            )

    def _jobs_served(self) -> set[str]:
        """Jobs that are sent to the queues of this worker."""
        served = self.presence().queues
        return {job for queue, jobs in self.destinations.items() if queue in served for job in jobs}

    def check_scheduler(self) -> None:
        """Says which jobs Celery's own beat, or another one, would never run."""
        ours = self.app.conf.beat_scheduler == SCHEDULER
        never = [name for name, job in self.jobs.items() if job.mode == "continuous" and not ours]
        if never:
            logger.warning(
                "These jobs are continuous, which only a beat with -S %s, or with that as app.conf.beat_scheduler, "
                "keeps going: %s",
                SCHEDULER,
                ", ".join(never),
            )

    def check_pools(self) -> None:
        """Says which jobs have a pool that nobody runs workers for, and which pools no job uses."""
        for problem in pool_problems(self.settings.pools, self.jobs):
            logger.warning("%s", problem)

    def check_strategies(self) -> None:
        """A job that would never come to the gate is not to run at all."""
        bypassing = [name for name in self.jobs if not custom.is_gated(self.app.tasks[name])]
        if bypassing:
            self.give_up(
                "Jobs would run without asking the gate, because a base class has a start_strategy of its own that "
                f"does not call super().start_strategy(): {', '.join(bypassing)}"
            )

    def check_limits(self) -> None:
        """Says which tasks have limits that the execution pool does not keep."""
        limits, served = limits_of(self.app), self.presence().queues
        plain = queues.destinations(self.app, [name for name in limits if name not in self.jobs])
        jobs_here = {job: limits[job] for job in self._jobs_served() & limits.keys()}
        plain_here = {name: limits[name] for queue in served for name in plain.get(queue, ())}
        soft = soft_sentence(self.kind, {**jobs_here, **plain_here})
        for sentence in [*sentences(self.kind, jobs_here, plain_here), *([soft] if soft else [])]:
            logger.warning("The %s", sentence)

    # -- a connection to the broker -----------------------------------------------------------------

    def connected(self, consumer: Any) -> None:
        self._consumer = consumer
        first = self._loop is None
        if self._loop is None:
            self._start(consumer)
        else:
            self._loop.schedule_again()
            self.gate.connected(consumer)
        internals.hear_refused_messages(consumer, self.gate.refused_message, self.strays.came)
        internals.contain_errors(consumer, self._failed)
        self.consuming.connected(consumer)
        consumer.on_task_message.add(self.gate.reserved)
        consumer.on_task_message.add(self._count)
        self.demand.is_set_aside = self.gate.has_set_aside
        consumer.on_task_message.add(self.demand.received)
        if first:
            self.check_strategies()
            self.check_limits()
            self.check_scheduler()
            self.check_pools()
            supervised = Supervised.of_environment(self.ledger, self.settings, self.drain.hurry)
            threads = self.turns, self.heartbeat, self.publisher, self.watchdog, self.drain, self.recovery, supervised
            for thread in threads:
                if thread is not None:
                    thread.start()
            self._running = True

    def _count(self, request: Any) -> None:
        self.received += 1

    def _failed(self, message: Any, exc: Exception) -> None:
        """Nothing that a message contains, and nothing that a user's class makes of it, is to end the worker."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        logger.error("A message of task %r, id %r, is rejected: %r", headers.get("task"), headers.get("id"), exc)
        try:
            self._consumer.on_invalid_task(None, message, exc)
            if isinstance(headers.get("id"), str):
                self.app.backend.mark_as_failure(headers["id"], exc)
        except Exception as trouble:
            logger.error("Its sender could not be told: %r", trouble)
        if not message.acknowledged:
            message.reject_log_error(logger, self._consumer.connection_errors)

    def _start(self, consumer: Any) -> None:
        pool, controller = consumer.pool, self.controller
        self._loop = HubLoop(consumer.hub) if consumer.hub else DirectLoop(consumer.timer)
        if controller.semaphore is not None and controller.process_task == controller._process_task_sem:
            slots: Any = SemaphoreSlots(controller)
        else:
            slots = CountedSlots(lambda: internals.size_of(pool) or controller.concurrency)
        self.gate = gates[consumer.hostname] = Gate(self, consumer, self._loop, slots)
        if self.kind in CANNOT_INTERRUPT:
            self.gate.limits = Limits(self, self._loop)
        self.turns, self.heartbeat, self.publisher = Turns(self, self._loop), WorkerHeartbeat(self), Publisher(self)
        self.watchdog = Watchdog(self)
        self.strays = Strays(self, self._loop)
        self.reports = Reports(self)
        self.drain = Drain(self)
        internals.before_cold_shutdown(controller, self._cold_shutdown)
        internals.guard_flush(pool, self.gate.in_pool, self._flushed)
        internals.watch_exits(pool)
        internals.before_beginning(controller, self.consuming.may_begin)
        internals.say_nothing_of_returned(queues.is_granted)
        internals.show_more_queues(lambda consumer: gates[consumer.hostname]._runtime.consuming.active_queues())
        internals.report_waiting(lambda consumer: (gate := gates.get(consumer.hostname)) and gate._runtime.reports)
        internals.hear_revokes(lambda consumer, *what: gates[consumer.hostname].revoked(*what))

    def _flushed(self, lost: list[OrchestratedRequest]) -> None:
        self.gate.drop_reserved()
        self.gate.returned(lost)

    def register_with_hub(self) -> None:
        if self._loop is not None:
            self._loop.register()
            self.consuming.register()

    @property
    def loop(self) -> HubLoop | DirectLoop:
        """Once the worker has connected."""
        assert self._loop is not None
        return self._loop

    @property
    def connection_errors(self) -> Any:
        return self._consumer.connection_errors

    def take_in(self, messages: list[bytes]) -> None:
        """From any thread: messages that came to workers without their job."""
        if messages:
            self.in_loop(lambda: self.strays.take_in(messages, self._consumer))

    def in_loop(self, function: Callable[[], None]) -> None:
        """From any thread: in the worker's event loop, or right here when the loop is down already."""
        if self.gate.stopping or self._loop is None or self._loop.inside():
            function()
        else:
            self._loop.call(function)

    def replace_heartbeat(self) -> None:
        """Should the one that is stuck ever go on, it ends."""
        stuck = self.heartbeat
        stuck.stop()
        self.heartbeat = WorkerHeartbeat(self, stuck)
        self.heartbeat.start()

    @property
    def stopping(self) -> bool:
        """Whether the event loop is down for good."""
        return self._running and self.gate.stopping

    # -- what others ask ----------------------------------------------------------------------------

    def presence(self) -> Presence:
        return self.as_present(self.controller.hostname, self.kind, self.slots, self.consuming.served)

    @property
    def slots(self) -> int:
        """How many runs it can have at once: as many as the execution pool may grow to by itself, or has grown to."""
        controller = self.controller
        return int(controller.max_concurrency or internals.size_of(controller.pool) or controller.concurrency)

    def send_event(self, type: str, id: str, **fields: Any) -> None:
        def send() -> None:
            dispatcher = self._consumer.event_dispatcher
            if dispatcher and dispatcher.enabled:
                dispatcher.send(type, uuid=id, **fields)

        self.in_loop(send)

    def give_up(self, why: str) -> None:
        """The ledger must not be used by this worker, and it turned out only now."""
        logger.critical("%s", why)
        state.should_stop = 1

    # -- the worker stops ---------------------------------------------------------------------------

    def _cold_shutdown(self) -> None:
        """In a signal handler."""
        self._cold_since = monotonic()
        self.gate.begin_drain()

    def close(self) -> None:
        """The worker begins to stop: nothing more is admitted, what runs may end."""
        if self._running:
            self.gate.begin_drain()
            self.gate.stop()
            self.turns.give_to_thread()
            cold = self._cold_since is not None
            if cold and self.gate.runs and not internals.can_kill(self.controller.pool):
                self._end_after_soft_shutdown()  # Celery could not cancel them

    def _end_after_soft_shutdown(self) -> None:
        """Celery sleeps through its soft shutdown before it closes. On gevent it cannot (its signal handler must not
        block there), and would wait for the tasks without an end."""
        began = self._cold_since or 0.0
        left = (self.app.conf.worker_soft_shutdown_timeout or 0) - (monotonic() - began)
        if left <= 0:
            return self.drain.hurry()
        timer = threading.Timer(left, self.drain.hurry)
        timer.daemon = True
        return timer.start()

    def stop(self) -> None:
        """The execution pool is down."""
        if not self._running:
            return None
        if not self.gate.code_is_gone():
            self.drain.end_process()
            return self.heartbeat.stop()
        self.drain.over()
        deadline = monotonic() + STOP_SECONDS
        self.gate.return_all()
        if not self.gate.wait_told(deadline):
            logger.error("The ledger does not answer: outcomes are lost, their runs will be recovered and run again")
        self.watchdog.stop()
        if self.recovery is not None:
            self.recovery.stop()
        self.turns.stop()
        self.heartbeat.stop()
        self.heartbeat.join(max(0.1, deadline - monotonic()))
        try:
            self.publisher.publish(self.heartbeat.leave())
        except LedgerError as exc:
            logger.error("Leaving without telling the ledger: %s", exc)
        self.publisher.stop()
        self.publisher.join(max(0.1, deadline - monotonic()))
        self.publisher.give_up()
        gates.pop(self.controller.hostname, None)
        return None

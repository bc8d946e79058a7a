"""How a worker consumes from its queues.

Celery's own message consumer has the user's queues and the pools' queues, as if they had been named with ``-Q``. Remote
control adds, cancels and lists them like other queues. Only the granted queues have a channel of their own, so that a
handed-over run never waits behind a backlog. Remote control of the granted queues is here.

Everything here happens in the worker's event loop, except :meth:`Consuming.look_for_queues` and
:meth:`Consuming.close_broker`, which any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from celery import Celery
from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.worker.request import task_ready

from celery_orchestration.job import queues
from celery_orchestration.job.settings import Settings
from celery_orchestration.worker import internals
from celery_orchestration.worker.fetch.channel import ReliableChannel
from celery_orchestration.worker.fetch.demand import Demand
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.loop import InLoop, Loop
from celery_orchestration.worker.prefetch import Prefetch, Refused, StrictPrefetch
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.served_queues import ServedQueues
from celery_orchestration.worker.state import GateState

logger = get_logger(__name__)

#: Seconds between checks whether the broker has a new queue that this worker would serve. The sender of the first run
#: there tells all workers (:func:`.queues.announce`), so this is for workers that missed it. RabbitMQ logs an error for
#: each queue that it does not have: there the worker checks when a connection is made, and rarely after that.
LOOK_EVERY, LOOK_EVERY_AMQP = 5.0, 600.0
#: For this many seconds after a store was seen to be open, it counts as open.
CONFIRMED_SECONDS = 2.0


class FindsQueues(Protocol):
    def look_for(self, queues: list[str], found: Callable[[list[str]], None]) -> None:
        """Calls `found(queues)`, in some thread, with those of the queues that the broker has."""


class Consuming:
    def __init__(
        self,
        app: Celery,
        settings: Settings,
        consumer: Any,
        served: ServedQueues,
        state: GateState,
        loop: Loop,
        in_loop: InLoop,
        demand: Demand,
        fetcher: Fetcher | None,
        publisher: FindsQueues,
        *,
        slots: Callable[[], int],
        register_again: Callable[[], None],
    ) -> None:
        """`consumer`: Celery's consumer. `fetcher`: None if kombu fetches messages in its own way. `slots()`: how many
        runs the worker can have at once. `register_again()` tells the ledger that the queues have changed."""
        self._app = app
        self._settings = settings
        self._consumer = consumer
        self._served = served
        self._state = state
        self._loop = loop
        self._in_loop = in_loop
        self._demand = demand
        self._fetcher = fetcher
        self._publisher = publisher
        self._slots = slots
        self._register_again = register_again
        #: kombu's consumer of the granted queues, on a channel of its own.
        self._granted_consumer: Any = None
        #: Tells RabbitMQ how many messages to send; None: Celery does.
        self._prefetch: Prefetch | None = None
        #: Why this worker cannot tell RabbitMQ how many messages to send; '' if it can, or need not.
        self.prefetch_refused = ""
        #: Whether this worker takes messages from the granted queues now.
        self._taking = True
        self._look_at = 0.0

    @property
    def granted(self) -> list[str]:
        """The granted queues that this worker serves."""
        return self._served.granted

    @property
    def consumers(self) -> list[Any]:
        """kombu's consumers of this connection."""
        consumers = getattr(self._consumer, "task_consumer", None), self._granted_consumer
        return [one for one in consumers if one is not None]

    # -- a connection to the broker -----------------------------------------------------------------

    def code_ended(self) -> None:
        """Code in the execution pool has ended, so there may be room for more messages. From any thread."""
        if self._prefetch is not None:
            self._prefetch.wake()

    def connected(self) -> None:
        self._granted_consumer, self._taking = None, True
        internals.consumer.contain_errors(self._consumer, self._message_failed)
        self._takes_tasks(self._consumer.task_consumer.channel)
        self._bound_fetching()
        internals.consumer.on_queue_changes(self._consumer, self._adding, self._changed)
        self._serve_granted()
        self._look_at = 0.0

    def _bound_fetching(self) -> None:
        """Limits fetching: no message is fetched that could run elsewhere sooner. Under strict priority, no message is
        fetched while all slots are busy, because a higher one may come."""
        consumer, settings = self._consumer, self._settings
        if internals.consumer.is_amqp(consumer.connection):
            if settings.fetch == "reliable" or settings.strict_priority:
                self._bound_prefetch()
            else:
                self.prefetch_refused = "orchestration_fetch is 'celery'"
        elif settings.strict_priority:
            channel = consumer.task_consumer.channel
            internals.redis.fetch_only_while(channel, lambda: len(internals.consumer.requests_here()) < self._slots())

    def _bound_prefetch(self) -> None:
        consumer, state = self._consumer, self._state
        common = (consumer, self._demand, self._loop, lambda: state.stopping or state.draining)
        if not internals.amqp.can_bound_prefetch(consumer):
            self.prefetch_refused = "quorum queues have a prefetch count for each consumer, which cannot be changed"
        else:
            try:
                strict = self._settings.strict_priority
                prefetch = StrictPrefetch(*common, slots=self._slots) if strict else Prefetch(*common)
                prefetch.begin()
            except Refused as exc:
                self.prefetch_refused = str(exc)
            else:
                self._prefetch, self.prefetch_refused = prefetch, ""
                return
        logger.warning("Messages are prefetched as Celery does it: %s", self.prefetch_refused)
        if self._settings.strict_priority:
            # One message more than slots. Otherwise the next message of a higher queue would come too late.
            internals.amqp.prefetch_per_queue(consumer.task_consumer.channel, self._slots() + 1)
            consumer.qos.callback = noop

    def register(self) -> None:
        """Registers with the event loop, on every connection."""
        if self._prefetch is not None:
            self._prefetch.register()

    def _message_failed(self, message: Any, exc: Exception) -> None:
        """A message could not be read. It is rejected: neither its content nor the user's class that reads it may end
        the worker."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        logger.error("A message of task %r, id %r, is rejected: %r", headers.get("task"), headers.get("id"), exc)
        try:
            self._consumer.on_invalid_task(None, message, exc)
            if isinstance(headers.get("id"), str):
                self._app.backend.mark_as_failure(headers["id"], exc)
        except Exception as error:
            logger.error("The failure of task id %r could not be stored as its result: %r", headers.get("id"), error)
        if not message.acknowledged:
            message.reject_log_error(logger, self._consumer.connection_errors)

    @staticmethod
    def _takes_tasks(channel: Any) -> None:
        if isinstance(channel, ReliableChannel):
            channel.takes_tasks = True

    def _open_channel(self) -> Any:
        consumer = self._consumer
        channel = consumer.connection.channel()
        self._takes_tasks(channel)
        together = internals.amqp.prefetch_is_shared(consumer)
        channel.basic_qos(0, consumer.qos.value, together)
        granted_consumer = consumer.app.amqp.Consumer(
            channel, queues=[], accept=self._app.conf.accept_content, on_decode_error=consumer.on_decode_error
        )
        granted_consumer.on_message = consumer.create_task_handler()
        set_celerys_count = consumer.qos.callback

        def set_both_counts(prefetch_count: int) -> Any:
            granted_consumer.qos(prefetch_count=prefetch_count, apply_global=together)
            return set_celerys_count(prefetch_count=prefetch_count)

        consumer.qos.callback = set_both_counts
        return granted_consumer

    def _serve_granted(self) -> None:
        """Consumes from the granted queues that this worker serves now, and from no others."""
        wanted = self.granted if self._taking else []
        if wanted and self._granted_consumer is None:
            self._granted_consumer = self._open_channel()
        if self._granted_consumer is None:
            return
        for name in [queue.name for queue in self._granted_consumer.queues if queue.name not in wanted]:
            self._granted_consumer.cancel_by_queue(name)
        for name in wanted:
            if not self._granted_consumer.consuming_from(name):
                self._granted_consumer.add_queue(queues.declared(self._app, name))
        self._granted_consumer.consume()

    def take_granted(self, yes: bool) -> None:
        """Starts or stops taking messages of runs that were handed over."""
        self._taking = yes
        self._serve_granted()

    def may_begin(self, request: Any) -> bool:
        """Whether a plain task may begin. It may not if this worker was suspended for so long that the message went
        back to its queue. (The gate checks that for jobs.)"""
        fetcher, channel = self._fetcher, request.message.channel
        if fetcher is None or not isinstance(channel, ReliableChannel) or isinstance(request, OrchestratedRequest):
            return True
        now = monotonic()
        if now - fetcher.confirmed_at < CONFIRMED_SECONDS:
            return True
        try:
            has_store = channel.has_store()
        except Exception as exc:
            logger.warning("The broker cannot be asked whether %s may begin: %r", request, exc)
            has_store = False  # the connection is lost, so the broker will deliver the message again
        if has_store:
            fetcher.confirmed_at = now
        else:
            logger.warning("%s does not begin here: its message is back in its queue", request)
        return has_store

    def _stop_fetching(self) -> None:
        """Messages that were fetched and not begun go back to their queues. Messages of tasks that the execution pool
        has stay until the task has ended."""
        fetcher = self._fetcher
        channels = [one.channel for one in self.consumers if isinstance(one.channel, ReliableChannel)]
        if fetcher is None or not channels:
            return
        requests = [request for request in fetcher.requests() if internals.pool.is_with_pool(request)]
        kept = {request.message.delivery_tag for request in requests}
        for channel in channels:
            try:
                channel.stop_looking()
                if self._state.stopping:
                    channel.give_back_all_but(kept)
            except Exception as exc:
                logger.warning("Messages that were not begun go back only when the connection is closed: %r", exc)

    def _hand_back_plain(self) -> None:
        """Plain tasks without a slot go back to their queues. Otherwise RabbitMQ would give them to other workers only
        when the tasks that run here have ended."""
        for request in reversed(self._demand.requests()):
            stays = isinstance(request, OrchestratedRequest) or internals.pool.is_with_pool(request)
            if stays or request.acknowledged or request.message.acknowledged:
                continue
            try:
                task_ready(request)
                request.message.requeue()
                request.acknowledged = True
            except Exception as exc:
                logger.warning("%s goes back only when the connection is closed: %r", request, exc)

    def disconnect(self, hand_back_jobs: Callable[[], None]) -> None:
        """`hand_back_jobs()` sends messages of jobs that were not begun back to their queues."""
        if self._prefetch is not None:
            self._prefetch.end()
            self._prefetch = None
        self._stop_fetching()
        if self._state.stopping and self._consumer.connection is not None:
            # Celery keeps the connection until the pool has ended. Until then, no message should wait here.
            internals.redis.stop_fetching(self._consumer.connection, self.consumers)
            hand_back_jobs()
            if internals.consumer.is_amqp(self._consumer.connection):
                self._hand_back_plain()
        granted_consumer, self._granted_consumer = self._granted_consumer, None
        if granted_consumer is not None:
            try:
                granted_consumer.cancel()
                # Before the other channels: one of them sends back a message that Redis delivers meanwhile.
                granted_consumer.channel.close()
            except Exception as exc:
                logger.debug("The consumer of the granted queues could not be cancelled: %r", exc)

    def close_broker(self) -> None:
        """The process is about to end: messages that were fetched go back to the broker. From any thread."""
        internals.redis.stop_fetching(self._consumer.connection, self.consumers)
        self._consumer.connection.close()

    # -- remote control -----------------------------------------------------------------------------

    def active_queues(self) -> list[dict[str, Any]]:
        """The granted queues, as ``inspect active_queues`` shows queues."""
        return [dict(queues.declared(self._app, name).as_dict(recurse=True)) for name in self.granted]

    def _adding(self, name: str) -> bool:
        """``add_consumer`` was called. Returns whether Celery is not to add the queue, because it is a granted one."""
        self._served.add(name)
        if name in self.granted:
            return True
        if queues.pool_of(name) and queues.can_be_used(self._app, name):
            queues.declared(self._app, name)  # as senders declare it
        return False

    def _changed(self, name: str, cancelled: bool) -> None:
        """``add_consumer`` or ``cancel_consumer`` was carried out."""
        if cancelled:
            self._served.cancel(name)
        self._serve_granted()
        self._register_again()

    # -- queues that come later ---------------------------------------------------------------------

    def look_for_queues(self) -> None:
        """Checks from time to time whether the broker has a new queue that this worker would serve. From any thread."""
        names = self._served.to_come
        connection = getattr(self._consumer, "connection", None)
        if not names or connection is None or monotonic() < self._look_at:
            return
        self._look_at = monotonic() + (LOOK_EVERY_AMQP if internals.consumer.is_amqp(connection) else LOOK_EVERY)
        self._publisher.look_for(names, self._queues_found)

    def _queues_found(self, names: list[str]) -> None:
        self._in_loop(lambda: self.begin(names))

    def begin(self, names: list[str]) -> None:
        """These queues are in use now: serves those that this worker waited for."""
        if self._state.stopping or self._state.draining:
            return
        for name in names:
            if name in self._served.to_come:
                logger.info("Queue %s has come into use: this worker serves it too", name)
                self._consumer.add_task_queue(name)

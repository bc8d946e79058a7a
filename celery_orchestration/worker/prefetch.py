"""Limits how many messages RabbitMQ sends this worker: no more than its slots can use soon.

RabbitMQ sends messages until the number of unacknowledged ones reaches the channel's prefetch count. Celery sets that
count once, to four for each slot. Usually a task is acknowledged when it begins. So a worker whose slots are all busy
would get four more messages for each of them, which would wait there although another worker is idle. Messages that
were sent cannot be taken back, so the count must be right beforehand.

:class:`Prefetch` keeps the count at the number of messages that are here, plus those that the slots can use, as with a
Redis broker (:class:`~.fetch.demand.Demand`). It never exceeds Celery's own count, which grows with the number of tasks
that have an ETA, and with the execution pool. The count is lowered before an acknowledgement is sent, on the same
channel: RabbitMQ handles both in that order, and sends nothing in between.

A count of 0 would mean no limit. So, to make RabbitMQ send nothing, the worker always holds one unacknowledged message
of its own, the placeholder. It comes from a queue of this connection alone, and the count is one higher because of it.

:class:`StrictPrefetch` (``orchestration_strict_priority``): RabbitMQ knows no order of queues. While a slot is free and
messages may be waiting, the worker asks for one message at a time, from its queues in their order. Only when all of
them are empty does it let RabbitMQ send one message for each free slot.

Quorum queues have no count for a whole channel, and theirs cannot be changed: there Celery's own count stays.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

from celery.utils import uuid
from celery.utils.log import get_logger
from celery.worker import state

from celery_orchestration.job import queues
from celery_orchestration.worker import internals
from celery_orchestration.worker.fetch.amount import MOST
from celery_orchestration.worker.fetch.demand import Demand
from celery_orchestration.worker.loop import Loop

logger = get_logger(__name__)

#: Seconds after which the count is adjusted in any case.
ADJUST_EVERY = 1.0
#: RabbitMQ closes a channel that has not acknowledged a message for half an hour (``consumer_timeout``; after 3.11 our
#: queue has its own). Seconds after which the placeholder is returned and delivered again: if that lets no other
#: message in, and in any case.
RENEW_AFTER, RENEW_AT_LAST = 60.0, 1200.0
#: Seconds to wait for the placeholder, and milliseconds for which RabbitMQ allows it to stay unacknowledged.
PLACEHOLDER_SECONDS, PLACEHOLDER_TIMEOUT_MS = 5.0, 30 * 24 * 3600 * 1000


class Refused(Exception):
    """The broker refuses a call that bounding the prefetch count needs."""


class Prefetch:
    """The prefetch count of one connection to the broker. Used in the worker's event loop; under gevent in any
    greenlet, because it never waits."""

    def __init__(self, consumer: Any, demand: Demand, loop: Loop, stopping: Callable[[], bool]) -> None:
        self._consumer = consumer
        self._channel = consumer.task_consumer.channel
        self._demand = demand
        self._loop = loop
        self._stopping = stopping
        #: Delivery tags of the messages that are here, without the placeholder.
        self._held: set[int] = set()
        #: Celery's count; 0: no limit.
        self._celerys_count: int = consumer.qos.value
        #: The count that was set last.
        self._count = 0
        self._seen: tuple[int, ...] = ()
        self._placeholder = 0
        self._placeholder_came = 0.0
        #: Whether an adjustment is due because code has ended.
        self._woken = False
        self.has_ended = False

    def begin(self) -> None:
        """Call this before anything is consumed. Raises Refused."""
        self._hold_placeholder()
        internals.amqp.watch_deliveries(self._channel, self._held.add, self._leaving)
        self._consumer.qos.callback = self._celery_sets_count
        self._adjust()
        self._adjust_later()

    def end(self) -> None:
        self.has_ended = True
        if self._consumer.hub:
            self._consumer.hub.on_tick.discard(self.tick)

    def register(self) -> None:
        if self._consumer.hub:
            self._consumer.hub.on_tick.add(self.tick)

    def wake(self) -> None:
        """Code in the pool has ended: adjusts the count soon. From any thread."""
        if self.has_ended or self._woken:
            return
        self._woken = True
        if self._consumer.hub:
            self._loop.call(self._adjust_after_end)
        else:
            self._loop.later(0, self._adjust_after_end)  # gevent's own greenlet must not write to a socket

    def _adjust_after_end(self) -> None:
        self._woken = False
        try:
            self._adjust()
        except self._consumer.connection_errors as exc:
            self._lost(exc)

    def tick(self) -> None:
        """Called before the event loop waits."""
        seen = (len(state.reserved_requests), len(state.active_requests), len(self._held))
        if seen != self._seen:
            self._seen = seen
            self._adjust()

    # -- the placeholder ----------------------------------------------------------------------------

    def _hold_placeholder(self) -> None:
        connection, name = self._consumer.connection, f"{self._consumer.hostname}.{uuid()}.celery.placeholder"
        arguments = {"x-consumer-timeout": PLACEHOLDER_TIMEOUT_MS}
        trial = connection.channel()  # the broker closes it if it refuses something
        try:
            trial.queue_declare(name, exclusive=True, auto_delete=False, arguments=arguments)
            trial.basic_publish(
                trial.prepare_message(b"placeholder", properties={"delivery_mode": 1}), routing_key=name
            )
            placeholder = trial.basic_get(name)
            if placeholder is None:
                raise Refused("a message that this worker sends to its own queue does not arrive")
            trial.basic_reject(placeholder.delivery_tag, requeue=True)
            trial.close()
        except connection.channel_errors as exc:
            raise Refused(str(exc)) from exc
        internals.amqp.set_prefetch(self._channel, 1)
        self._channel.basic_consume(name, callback=self._placeholder_is_here)
        deadline = monotonic() + PLACEHOLDER_SECONDS
        while not self._placeholder:
            connection.drain_events(timeout=max(0.1, deadline - monotonic()))

    def _placeholder_is_here(self, raw: Any) -> None:
        self._placeholder, self._placeholder_came = raw.delivery_tag, monotonic()

    def _renew_placeholder(self) -> None:
        age = monotonic() - self._placeholder_came
        is_open = self._count > len(self._held) + 1
        if self._placeholder and age > (RENEW_AFTER if is_open else RENEW_AT_LAST):
            tag, self._placeholder = self._placeholder, 0
            self._channel.basic_reject(tag, requeue=True)

    # -- the count ----------------------------------------------------------------------------------

    def _celery_sets_count(self, prefetch_count: int) -> None:
        self._celerys_count = prefetch_count
        self._adjust()

    def _leaving(self, tag: int) -> None:
        self._held.discard(tag)
        if not self.has_ended:
            self._adjust()

    def _adjust_later(self) -> None:
        self._loop.later(ADJUST_EVERY, self._adjust_regularly)

    def _adjust_regularly(self) -> None:
        if not self.has_ended:
            self._adjust_and_renew()
            self._adjust_later()

    def _adjust_and_renew(self) -> None:
        try:
            self._adjust()
            self._renew_placeholder()
        except self._consumer.connection_errors as exc:
            self._lost(exc)

    def _lost(self, exc: Exception) -> None:
        """The connection is lost. Celery notices that itself when it reads from it."""
        logger.debug("The number of messages that the broker may send cannot be set: %r", exc)

    def _adjust(self) -> None:
        if not self.has_ended:
            self._set_count(self.wanted(self._room()))

    def _room(self) -> int:
        return max(0, self._celerys_count - len(self._held)) if self._celerys_count else MOST

    def wanted(self, room: int) -> int:
        """How many more messages this worker can use, at most `room`."""
        return self._demand.wanted(room, by_halves=False)

    def _set_count(self, more: int) -> None:
        total = len(self._held) + more + 1
        if total != self._count:
            internals.amqp.set_prefetch(self._channel, total)
            self._count = total


class StrictPrefetch(Prefetch):
    #: Whether all queues were empty: RabbitMQ may send new messages.
    _all_empty = False
    #: The queues that have not been asked yet; None: no question is under way.
    _to_ask: list[str] | None = None

    def __init__(self, *args: Any, slots: Callable[[], int]) -> None:
        super().__init__(*args)
        self._slots = slots

    def begin(self) -> None:
        super().begin()
        self._consumer.on_task_message.add(self._received)

    def end(self) -> None:
        super().end()
        self._consumer.on_task_message.discard(self._received)

    def _received(self, request: Any) -> None:
        """A slot may be taken now. Then the queues are asked again when a slot is free: messages may wait by then."""
        self._adjust()

    def wanted(self, room: int) -> int:
        free = min(room, self._slots() - len(internals.consumer.requests_here()))
        if free <= 0 or self._stopping():
            self._all_empty = False
            return 0
        if self._all_empty:
            return free
        if self._to_ask is None:
            self._ask_first()
        return 0

    def _ask_first(self) -> None:
        consumer = self._consumer.task_consumer
        names = [queue.name for queue in consumer.queues if consumer.consuming_from(queue.name)]
        if names:
            self._to_ask = sorted(names, key=queues.rank_of)
            self._ask_next()

    def _ask_next(self) -> None:
        if self._to_ask:
            internals.amqp.pull(self._consumer.task_consumer, self._to_ask.pop(0), self._answered)
        else:
            self._to_ask, self._all_empty = None, True
            self._adjust()

    def _answered(self, found: bool) -> None:
        if self.has_ended:
            return
        if found:
            self._to_ask = None
            self._adjust()
        else:
            self._ask_next()

"""kombu's Redis channel, fetching into a store.

A channel fetches when its poller calls :meth:`~ReliableChannel.look`. If a fetch brings fewer messages than wanted, all
lists are empty. Then the channel asks Redis to report new messages (:class:`~.link.Link`). It looks again after such a
report, perhaps a moment later (``misses.py``), or after some seconds in any case.

Channels whose consumers all take messages without acknowledging them (replies, events) fetch as kombu does.

Everything here happens in the thread that polls: the worker's event loop, or a greenlet.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from celery.utils.log import get_logger
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle, round_robin_cycle
from redis.exceptions import ConnectionError, ResponseError

from celery_orchestration.node.stores import FETCH, key_of, new_id, number_of
from celery_orchestration.worker.fetch.link import Link
from celery_orchestration.worker.fetch.message import FIELD, NotAMessageError
from celery_orchestration.worker.fetch.misses import Misses
from celery_orchestration.worker.fetch.store_channel import StoreChannel

if TYPE_CHECKING:
    from celery_orchestration.worker.fetch.fetcher import Fetcher

logger = get_logger(__name__)

#: Seconds after which a channel looks without a report, and if Redis does not report at all.
LOOK_ANYWAY, POLL = 5.0, 0.1
#: Errors of a Redis that fails over, restarts or cannot write now: the worker reconnects.
PASSING = ("READONLY", "NOREPLICAS", "MISCONF", "LOADING", "MASTERDOWN", "BUSY", "OOM")
#: At most this many messages are fetched at once by a channel that takes no tasks.
MOST_OTHERS = 16


class ReliableChannel(StoreChannel):
    """A mixin. It stands before one of kombu's Redis channels in the order of classes."""

    #: Whether this is where the worker takes its tasks from.
    takes_tasks = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: The number of the message that was fetched last.
        self._last_number = 0
        #: How many messages the current fetch has asked for; 0 if there is none.
        self._asked_for = 0
        #: Fetched messages with their fields in the store, to be delivered.
        self._inbox: deque[tuple[str, bytes]] = deque()
        #: Queues whose consumer does not acknowledge.
        self._without_acks: set[str] = set()
        #: When it looks for messages next, by the monotonic clock.
        self._look_at = 0.0
        self._misses = Misses()
        #: The lists that the last fetch read.
        self._keys: list[str] = []
        #: Whether it fetches into a store: it has a consumer that acknowledges.
        self.is_reliable = False
        super().__init__(*args, **kwargs)
        self.handlers["FETCH"] = self.receive  # type: ignore[attr-defined]

    # -- consumers ----------------------------------------------------------------------------------

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        (self._without_acks.add if no_ack else self._without_acks.discard)(queue)
        consumed = super().basic_consume(queue, no_ack, *args, **kwargs)  # type: ignore[misc]
        self._queues_changed()
        return consumed

    def _basic_cancel(self, consumer_tag: str) -> Any:
        cancelled = super()._basic_cancel(consumer_tag)  # type: ignore[misc]
        self._queues_changed()
        return cancelled

    def _queues_changed(self) -> None:
        self._look_at = 0.0
        acknowledged = [queue for queue in self.active_queues if queue not in self._without_acks]  # type: ignore[attr-defined]
        # A channel with a store stays reliable: acknowledgements may still come.
        self.is_reliable = bool(acknowledged) or self._link is not None

    def _get(self, queue: str) -> Any:
        """For basic_get, which Celery's worker does not use."""
        raise NotImplementedError("channels of a worker with reliable fetch only have consumers")

    # -- fetching -----------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When it looks next, by the monotonic clock."""
        waits = self._link is not None and self._link.waits
        return monotonic() + LOOK_ANYWAY if waits else self._look_at

    def look(self) -> None:
        """Sends acknowledgements, and asks for messages."""
        if self._inbox:
            self._deliver_all()
        if self._is_stuck:
            raise ConnectionError("messages could not be given back")
        link = self._link
        if link is None:
            if not self._fetcher.registered:
                self._look_at = monotonic() + POLL
                return
            link = self._connect()
        if self._acks:
            self._send_acks(link)
        now = monotonic()
        if self._asked_for or link.waits:
            if now - self._sent_at > (self.health_check_interval or 25):  # type: ignore[attr-defined]
                raise ConnectionError("the broker does not answer")
        elif now >= self._look_at:
            wanted = self._wanted()
            if wanted > 0:
                self._ask(link, wanted)
        link.flush()

    def _connect(self) -> Link:
        fetcher = self._fetcher
        self._link = link = Link(self.pool, self._invalidated)  # type: ignore[attr-defined]
        self._store = new_id()
        fetcher.open.add(self._store)  # before others see it
        self.stores.open(self._store, fetcher.worker, fetcher.name)
        if link.refusal:
            fetcher.cannot_track(link.refusal)
        self.connection.cycle.add_link(self, link)  # type: ignore[attr-defined]
        return link

    def _wanted(self) -> int:
        qos = self.qos  # type: ignore[attr-defined]
        if not self.active_queues or not qos.can_consume():  # type: ignore[attr-defined]
            return 0  # broadcast queues have no lists
        if "can_consume" in vars(qos) or not self._knows_order():
            return 1  # other code decides about each message: its QoS, or its order of queues
        room: int | None = qos.can_consume_max_estimate()
        if self.takes_tasks:
            return self._fetcher.wanted(room)
        return MOST_OTHERS if room is None else min(room, MOST_OTHERS)

    def _knows_order(self) -> bool:
        rotate = type(self._queue_cycle).rotate  # type: ignore[attr-defined]
        return rotate in (round_robin_cycle.rotate, priority_cycle.rotate)

    def _ask(self, link: Link, wanted: int) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))  # type: ignore[attr-defined]
        first = [queue for queue in queues if self._fetcher.served_first(queue)]
        prefix: str = self.global_keyprefix  # type: ignore[attr-defined]
        steps = self.priority_steps  # type: ignore[attr-defined]
        self._keys = [
            prefix + self._q_for_pri(queue, step)  # type: ignore[attr-defined]
            for queue in [*first, *(queue for queue in queues if queue not in first)]
            for step in steps
        ]
        rotates = type(self._queue_cycle).rotate is round_robin_cycle.rotate  # type: ignore[attr-defined]
        arguments = (
            *(2 + len(self._keys), self._names.open, self._names.store(self._store), *self._keys),
            *(self._store, wanted, self._last_number, len(steps), len(first), int(rotates)),
        )
        self._asked_for = wanted
        self._fetcher.coming += wanted
        self._sent_at = monotonic()
        link.call(lambda reply: self._fetched(link, reply, arguments), "EVALSHA", FETCH.sha, *arguments)

    def _fetched(self, link: Link, reply: Any, arguments: tuple[Any, ...]) -> None:
        if isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT"):
            link.call(lambda reply: self._fetched(link, reply, ()), "EVAL", FETCH.text, *arguments)
            return link.flush()
        wanted, self._asked_for = self._asked_for, 0
        self._fetcher.coming -= wanted
        if isinstance(reply, Exception):
            self._refused(reply)
        found = list(zip(reply[1::2], reply[2::2], strict=True))
        self._inbox.extend((field.decode("utf-8", "surrogateescape"), message) for field, message in found)
        self._fetcher.confirmed_at = self._sent_at
        if found:
            self._last_number = number_of(self._inbox[-1][0])
        self._misses.looked(bool(found))
        if len(found) == wanted:
            self._look_at = 0.0
        elif link.tracks:
            self._listen(link)
        else:
            self._look_at = monotonic() + POLL
        return self._deliver_all()

    def _refused(self, error: Exception) -> NoReturn:
        if str(error).startswith("SEALED"):
            logger.warning(
                "This worker was suspended or cut off for longer than its lease (or the broker was emptied): messages "
                "that it had fetched and not begun are back in their queues. It reconnects to the broker"
            )
            raise ConnectionError("the store is sealed")
        if str(error).startswith(PASSING):
            raise ConnectionError(str(error))
        raise ResponseError(str(error))

    def _listen(self, link: Link) -> None:
        """Asks Redis to report when one of the empty lists gets a message, and whether all are still empty."""
        self._sent_at = monotonic()
        link.call(_ignore, "CLIENT", "CACHING", "YES")
        link.call(self._listening, "EXISTS", *self._keys)
        link.flush()

    def _listening(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
        self._look_at = monotonic() + (self._misses.back_off() if reply else LOOK_ANYWAY)

    def _invalidated(self) -> None:
        self._misses.heard()
        self._look_at = monotonic() + self._misses.back_off()

    def receive(self) -> None:
        if self._link is not None:
            self._link.receive()

    def _deliver_all(self) -> None:
        while self._inbox:
            field, message = self._inbox.popleft()
            self._deliver_one(field, message)

    def _deliver_one(self, field: str, message: bytes) -> None:
        connection, prefix = self.connection, self.global_keyprefix  # type: ignore[attr-defined]
        queue = key_of(field).removeprefix(prefix).rsplit(self.sep, 1)[0]  # type: ignore[attr-defined]
        self._queue_cycle.rotate(queue)  # type: ignore[attr-defined]
        if queue not in connection._callbacks:
            self.give_back([field])  # its consumer was cancelled meanwhile
            return
        try:
            payload = loads(message.decode())
            payload[FIELD] = field
        except Exception as exc:
            self._drop(queue, field, message, exc)
            return
        if queue in self._without_acks:
            self.acknowledge(field)
        try:
            connection._deliver(payload, queue)
        except NotAMessageError as exc:
            self._drop(queue, field, message, exc)

    def _drop(self, queue: str, field: str, message: bytes, why: Exception) -> None:
        """It does not go back to its queue: every worker would fetch it again at once, and fail again."""
        logger.critical("Queue %s has an entry that is no message (%r); it is dropped: %r", queue, why, message[:4096])
        self.acknowledge(field)

    def _forget_fetches(self, fetcher: Fetcher) -> None:
        fetcher.coming -= self._asked_for
        self._asked_for = 0
        self._inbox.clear()


def _ignore(reply: Any) -> None:
    pass

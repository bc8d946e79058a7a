"""kombu's Redis channel, fetching into a store.

A channel fetches by itself whenever its poller asks it to :meth:`~ReliableChannel.look`. A fetch that came back short
means that all lists were empty: then Redis is asked to say when that changes, and the channel looks again after that
(:class:`~.link.Link`), or after some seconds in any case. Of many idle workers that all hear of one message, one gets
it; the others wait a random moment before they look the next time, longer the more often they came too late.

Channels that only have consumers without acknowledgements (replies, events) fetch as ever.
"""

from __future__ import annotations

import os
import random
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from celery.utils.log import get_logger
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle, round_robin_cycle
from redis import Redis
from redis.exceptions import ConnectionError, RedisError, ResponseError

from celery_orchestration.node.stores import FETCH, Stores, key_of, new_id, number_of
from celery_orchestration.worker.fetch.link import Link

if TYPE_CHECKING:
    from celery_orchestration.worker.fetch.fetcher import Fetcher

logger = get_logger(__name__)

#: Seconds after which a channel looks although it heard nothing, and where it cannot hear.
LOOK_ANYWAY, POLL = 5.0, 0.1
#: Errors of a Redis that fails over, restarts or cannot write for now: the worker connects again.
PASSING = ("READONLY", "NOREPLICAS", "MISCONF", "LOADING", "MASTERDOWN", "BUSY", "OOM")
#: Seconds that a channel which came too late waits at most before it looks again: at first, and in the end.
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.002, 0.1
#: Seconds after which it is forgotten that it came too late: where messages are rare, nobody waits for one.
FORGET_MISSES = 1.0
#: Most messages that channels which take no tasks fetch at once.
MOST_OTHERS = 16
#: Seconds for a call on a store, unless the transport options say otherwise.
SOCKET_TIMEOUT, CONNECT_TIMEOUT = 5.0, 3.0


#: Where a payload says under which field the store has it.
FIELD = "store-field"


class NotAMessageError(Exception):
    """What was in a queue cannot be read as a message."""


class FetchedMessage(virtual.Message):  # type: ignore[misc]
    """Its delivery tag is its field in the store. The tag that kombu gave it when it was sent stays in its properties:
    it is the same in every delivery, so that a message which comes again can be told from a new call. Clients in other
    languages may leave it out."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        try:
            payload["properties"].setdefault("delivery_tag", None)
            super().__init__(payload, channel, **kwargs)
        except Exception as exc:
            raise NotAMessageError(str(exc)) from exc
        self.delivery_tag: str = payload.get(FIELD, self.delivery_tag)


class StoreQoS(kombu_redis.QoS):  # type: ignore[misc]
    """Deliveries are counted here, and kept in the channel's store. Restoring what *other* workers left in kombu's own
    place is kombu's: some may work without stores."""

    def append(self, message: Any, delivery_tag: str) -> None:
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        virtual.QoS.ack(self, delivery_tag)
        self.channel.acknowledge(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        virtual.QoS.ack(self, delivery_tag)
        if requeue:
            self.channel.give_back([delivery_tag], last=True)
        else:
            self.channel.acknowledge(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        self._flush()
        fields = list(self._delivered)
        self._delivered.clear()
        self.channel.give_back(fields)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """When the channel was not closed: at the end of the process."""
        self._on_collect.cancel()
        self.channel.end_store()


class ReliableChannel:
    """Before one of kombu's Redis channels in the order of classes."""

    QoS = StoreQoS
    Message = FetchedMessage
    #: Whether this is where the worker takes its tasks from.
    takes_tasks = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pid = os.getpid()
        self._store = ""
        self._link: Link | None = None
        self._last_number = 0
        self._asked_for = 0
        self._inbox: deque[tuple[str, bytes]] = deque()
        self._acks: deque[str] = deque()
        #: Acknowledgements that were sent on the link and not answered yet.
        self._sent_acks: deque[list[str]] = deque()
        #: Whether messages could not be given back: they would lie in the store for as long as it is open.
        self._is_stuck = False
        self._without_acks: set[str] = set()
        self._look_at = 0.0
        self._sent_at = 0.0
        #: How often in a row it was told of a message and came too late, and when it was last.
        self._misses = 0
        self._missed_at = 0.0
        self._was_told = False
        self._keys: list[str] = []
        #: Whether it fetches into a store: it has a consumer that acknowledges.
        self.is_reliable = False
        super().__init__(*args, **kwargs)
        self.handlers["FETCH"] = self.receive  # type: ignore[attr-defined]

    @property
    def _fetcher(self) -> Fetcher:
        fetcher: Fetcher = self.connection.fetcher  # type: ignore[attr-defined]
        return fetcher

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        if not asynchronous:
            for name, seconds in (("socket_timeout", SOCKET_TIMEOUT), ("socket_connect_timeout", CONNECT_TIMEOUT)):
                if params.get(name, seconds) is None:
                    params[name] = seconds
        return params

    @property
    def stores(self) -> Stores:
        """On connections of their own, which wait for replies: for any thread."""
        return Stores(Redis(connection_pool=self.pool), self._names)  # type: ignore[attr-defined]

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
        #: Once it has a store it looks on: acknowledgements may still come.
        self.is_reliable = bool(acknowledged) or self._link is not None

    def _get(self, queue: str) -> Any:
        """For basic_get, which Celery's worker does not use."""
        raise NotImplementedError("channels of a worker with reliable fetch only have consumers")

    # -- fetching -----------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        """When it wants to look, by the monotonic clock."""
        waits = self._link is not None and self._link.waits
        return monotonic() + LOOK_ANYWAY if waits else self._look_at

    def look(self) -> None:
        """Sends what there is to send: acknowledgements, and a question for messages."""
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
            return 1  # somebody else counts
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
            self._misses = 0
        elif self._was_told:
            self._misses += 1
            self._missed_at = monotonic()
        self._was_told = False
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
                "This worker stood still, or was cut off, for longer than its lease (or the broker was emptied): what "
                "it had fetched and not begun is back in its queue. It connects to the broker again"
            )
            raise ConnectionError("the store is sealed")
        if str(error).startswith(PASSING):
            raise ConnectionError(str(error))
        raise ResponseError(str(error))

    def _listen(self, link: Link) -> None:
        """Redis says when one of the lists that were empty gets a message, if they still are."""
        self._sent_at = monotonic()
        link.call(_ignore, "CLIENT", "CACHING", "YES")
        link.call(self._listening, "EXISTS", *self._keys)
        link.flush()

    def _listening(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._refused(reply)
        self._look_at = monotonic() + (self._back_off() if reply else LOOK_ANYWAY)

    def _invalidated(self) -> None:
        self._was_told = True
        self._look_at = monotonic() + self._back_off()

    def _back_off(self) -> float:
        if monotonic() - self._missed_at > FORGET_MISSES:
            self._misses = 0
        if not self._misses:
            return 0.0
        return random.uniform(0, min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** min(self._misses, 16)))

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
        """Back in its queue it would stop every worker there: it would be fetched again at once."""
        logger.critical("Queue %s has something that is no message (%r); it is dropped: %r", queue, why, message[:4096])
        self.acknowledge(field)

    # -- acknowledging ------------------------------------------------------------------------------

    def acknowledge(self, field: str) -> None:
        """Together with others, before the event loop waits again; or at once where there is no loop."""
        if os.getpid() != self._pid or not self._store:
            return
        self._acks.append(field)
        cycle = getattr(self.connection, "cycle", None)  # type: ignore[attr-defined]
        if self._link is None or cycle is None or not cycle.ticks_in(threading.get_ident()):
            self._acknowledge_now()

    def _take_acks(self) -> list[str]:
        taken = []
        while self._acks:
            try:
                taken.append(self._acks.popleft())
            except IndexError:
                break  # another thread took it
        return taken

    def _acknowledge_now(self) -> None:
        fields = self._take_acks()
        if fields:
            try:
                self.stores.acknowledge(self._store, fields)
            except (RedisError, OSError):
                self._acks.extend(fields)  # for the end of the store
                raise

    def _send_acks(self, link: Link) -> None:
        fields = self._take_acks()
        if fields:
            self._sent_at = monotonic() if not link.waits else self._sent_at
            self._sent_acks.append(fields)
            link.call(self._acknowledged, "HDEL", self._names.store(self._store), *fields)

    def _acknowledged(self, reply: Any) -> None:
        if isinstance(reply, Exception):
            raise ConnectionError(f"the broker refuses acknowledgements: {reply}")
        self._sent_acks.popleft()

    def _take_unanswered_acks(self) -> list[str]:
        """The link may have failed: these may or may not have reached Redis. To acknowledge again does no harm."""
        return [*(field for fields in self._sent_acks for field in fields), *self._take_acks()]

    def give_back(self, fields: list[str], *, last: bool = False) -> None:
        if os.getpid() == self._pid and self._store and fields:
            try:
                self.stores.give_back(self._store, fields, last=last)
            except (RedisError, OSError):
                self._is_stuck = True
                raise

    def stop_looking(self) -> None:
        """The event loop ends: acknowledgements are made at once."""
        if self._link is not None:
            self.connection.cycle.stop_ticking()  # type: ignore[attr-defined]
            self._acks.extend(self._take_unanswered_acks())
            self._acknowledge_now()

    def give_back_all_but(self, kept: set[str]) -> None:
        """The worker stops: what it has not begun is for others from now on, and not only when the rest has ended."""
        store = self._store
        if not store:
            return
        fields = [field for field in self.stores.fields(store) if field not in kept]
        self.stores.give_back(store, fields)
        for field in fields:
            virtual.QoS.ack(self.qos, field)  # type: ignore[attr-defined]

    def has_store(self) -> bool:
        """Whether its store is open: asks Redis."""
        return bool(self._store) and self.stores.is_open(self._store)

    # -- it closes ----------------------------------------------------------------------------------

    def end_store(self) -> None:
        """Everything that is not acknowledged goes back; should that fail now, later by the recovery."""
        if os.getpid() != self._pid:
            return
        link, self._link = self._link, None
        store, self._store = self._store, ""
        self._is_stuck = False
        fetcher: Fetcher | None = getattr(self.connection, "fetcher", None)  # type: ignore[attr-defined]
        if link is not None:
            link.close()
        if not store or fetcher is None:
            return
        fetcher.coming -= self._asked_for
        self._asked_for = 0
        self._inbox.clear()
        fields = self._take_unanswered_acks()
        self._sent_acks.clear()
        try:
            if fields:
                self.stores.acknowledge(store, fields)
            self.stores.end(store)
        except (RedisError, OSError) as exc:
            if fields:
                fetcher.acknowledged[store] = fields
            logger.warning("Messages that were fetched are still in store %s: %r; they go back later", store, exc)
        finally:
            fetcher.open.discard(store)

    def close(self) -> None:
        cycle = getattr(self.connection, "cycle", None)  # type: ignore[attr-defined]
        if cycle is not None and not self.closed:  # type: ignore[attr-defined]
            cycle.remove_link(self)
        self.end_store()
        super().close()  # type: ignore[misc]

    @property
    def _names(self) -> Any:
        return self._fetcher.names

    def _after_fork(self) -> None:
        """In a child: the connection is the parent's."""
        link, self._link = self._link, None
        self._store = ""
        if link is not None:
            link.close()
        super()._after_fork()  # type: ignore[misc]


def _ignore(reply: Any) -> None:
    pass

"""The store of a channel: messages are acknowledged there, or given back to their queues.

Used in the worker's event loop; :meth:`StoreChannel.acknowledge` and :meth:`StoreChannel.give_back` may be called from
any thread. A child process that inherits a channel leaves its store alone.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.utils.log import get_logger
from kombu.transport import virtual
from redis import Redis
from redis.exceptions import ConnectionError, RedisError

from celery_orchestration.node.stores import TIMEOUTS, Stores
from celery_orchestration.worker.fetch.link import Link
from celery_orchestration.worker.fetch.message import FetchedMessage, StoreQoS

if TYPE_CHECKING:
    from celery_orchestration.worker.fetch.fetcher import Fetcher

logger = get_logger(__name__)


class StoreChannel:
    """A mixin. It stands before one of kombu's Redis channels in the order of classes."""

    QoS = StoreQoS
    Message = FetchedMessage

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pid = os.getpid()
        #: The id of its store; '' while it has none.
        self._store = ""
        self._link: Link | None = None
        #: When a command that expects an answer was last sent on the link, by the monotonic clock.
        self._sent_at = 0.0
        #: Fields of messages that are to be acknowledged.
        self._acks: deque[str] = deque()
        #: Acknowledgements that were sent on the link and not answered yet.
        self._sent_acks: deque[list[str]] = deque()
        #: Whether messages could not be given back: they would stay in the store for as long as it is open.
        self._is_stuck = False
        super().__init__(*args, **kwargs)

    @property
    def _fetcher(self) -> Fetcher:
        fetcher: Fetcher = self.connection.fetcher  # type: ignore[attr-defined]
        return fetcher

    @property
    def _names(self) -> Any:
        return self._fetcher.names

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous)  # type: ignore[misc]
        if not asynchronous:
            for name, seconds in TIMEOUTS.items():
                if params.get(name, seconds) is None:
                    params[name] = seconds
        return params

    @property
    def stores(self) -> Stores:
        """The stores, on other connections than the link. Calls wait for the reply. For any thread."""
        return Stores(Redis(connection_pool=self.pool), self._names)  # type: ignore[attr-defined]

    # -- acknowledging ------------------------------------------------------------------------------

    def acknowledge(self, field: str) -> None:
        """The message is acknowledged together with others, before the event loop waits again; without an event loop,
        at once."""
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
                self._acks.extend(fields)  # the end of the store acknowledges them
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
        """Includes those that were sent: if the link has failed, they may not have reached Redis. To acknowledge twice
        does no harm."""
        return [*(field for fields in self._sent_acks for field in fields), *self._take_acks()]

    def give_back(self, fields: list[str], *, last: bool = False) -> None:
        if os.getpid() == self._pid and self._store and fields:
            try:
                self.stores.give_back(self._store, fields, last=last)
            except (RedisError, OSError):
                self._is_stuck = True
                raise

    def stop_looking(self) -> None:
        """The event loop ends: from now on, messages are acknowledged at once."""
        if self._link is not None:
            self.connection.cycle.stop_ticking()  # type: ignore[attr-defined]
            self._acks.extend(self._take_unanswered_acks())
            self._acknowledge_now()

    def give_back_all_but(self, kept: set[str]) -> None:
        """The worker stops: other workers get the messages that it has not begun, without waiting for the end of its
        tasks."""
        store = self._store
        if not store:
            return
        fields = [field for field in self.stores.fields(store) if field not in kept]
        self.stores.give_back(store, fields)
        for field in fields:
            virtual.QoS.ack(self.qos, field)  # type: ignore[attr-defined]

    def has_store(self) -> bool:
        """Asks Redis whether its store is open."""
        return bool(self._store) and self.stores.is_open(self._store)

    # -- the end of the store -----------------------------------------------------------------------

    def end_store(self) -> None:
        """Every message that is not acknowledged goes back now; if that fails, the recovery gives it back later."""
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
        self._forget_fetches(fetcher)
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

    def _forget_fetches(self, fetcher: Fetcher) -> None:
        """The store ends: messages that were asked for will not come."""

    def _after_fork(self) -> None:
        """In a child process: the connection and the store belong to the parent."""
        link, self._link = self._link, None
        self._store = ""
        if link is not None:
            link.close()
        super()._after_fork()  # type: ignore[misc]

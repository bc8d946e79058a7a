"""Gives back the messages of workers that are gone. Every worker and scheduler does so after each of its sweeps.

It has a thread and connections of its own: a broker that does not answer must not delay the renewal of a lease.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Protocol

from celery import Celery
from celery.utils.log import get_logger
from kombu.transport import redis as kombu_redis
from redis import Redis

from celery_orchestration.node.backoff import Backoff
from celery_orchestration.node.presence import Node
from celery_orchestration.node.stores import TIMEOUTS, Store, Stores

logger = get_logger(__name__)

#: kombu's transports whose messages may be in stores. ``worker/fetch/transport.py`` has one of ours for each.
TRANSPORTS = (kombu_redis.Transport, kombu_redis.SentinelTransport)


class OwnStores(Protocol):
    """What a worker knows about its own stores."""

    #: The ids of its open stores.
    open: set[str]
    #: By id of a store that could not be ended: the messages that were acknowledged there.
    acknowledged: dict[str, list[str]]


class LeftStores(threading.Thread):
    def __init__(self, node: Node, own_stores: OwnStores | None = None) -> None:
        """`own_stores`: None if the node has no stores itself."""
        super().__init__(name="orchestration-left-stores", daemon=True)
        self._node = node
        self._own_stores = own_stores
        self._ledger = node.ledger.new_connection()
        self._swept = threading.Event()
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait)
        self._connection: Any = None
        self._stores: Stores | None = None

    def swept(self) -> None:
        """The ledger was swept: it knows which workers are gone."""
        self._swept.set()

    def stop(self) -> None:
        self._stopped.set()
        self._swept.set()

    def run(self) -> None:
        while not self._stopped.is_set():
            self._swept.wait()
            self._swept.clear()
            if self._stopped.is_set():
                break
            try:
                self._give_back_left_stores()
            except Exception as exc:
                self._disconnect()
                self._backoff.failed(lambda _, exc=exc: _log(exc))  # type: ignore[misc]
            else:
                self._backoff.succeeded()
        self._disconnect()
        self._ledger.close()

    def _give_back_left_stores(self) -> None:
        stores = self._connected()
        found = stores.all()  # before the ledger is asked: a worker registers before it opens a store
        ours = self._own_stores.open.copy() if self._own_stores is not None else set()
        workers = {store.worker for store in found} - {self._node.worker}
        gone = (
            self._ledger.find_gone_workers(int(self._node.settings.lease_seconds * 1000), workers) if workers else set()
        )
        for store in found:
            left_over = store.worker == self._node.worker and store.id not in ours
            if store.sealed or left_over or store.worker in gone:
                self._give_back(stores, store)

    def _give_back(self, stores: Stores, store: Store) -> None:
        acknowledged = self._own_stores.acknowledged if self._own_stores is not None else {}
        if store.id in acknowledged:
            stores.acknowledge(store.id, acknowledged[store.id])
        moved = stores.end(store.id)
        acknowledged.pop(store.id, None)
        if moved and store.worker != self._node.worker:
            logger.warning("Messages that %s had fetched and not begun go back to their queues: %d", store.name, moved)

    def _connected(self) -> Stores:
        if self._stores is None:
            self._connection = self._node.app.connection_for_read()
            options = self._connection.transport_options or {}
            limits = {name: seconds for name, seconds in TIMEOUTS.items() if options.get(name) is None}
            # Before a channel is made, which asks the broker for an answer.
            self._connection.transport_options = {**options, **limits}
            channel = self._connection.default_channel
            self._stores = Stores(Redis(connection_pool=channel.pool), self._node.store_names)
        return self._stores

    def _disconnect(self) -> None:
        connection, self._connection, self._stores = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


def _log(exc: Exception) -> None:
    logger.error("Cannot look for messages that dead workers have fetched, trying again: %r", exc)


def has_stores(app: Celery) -> bool:
    """Whether workers on this app's broker may have stores there. Does not connect."""
    return app.connection_for_read().get_transport_cls() in TRANSPORTS

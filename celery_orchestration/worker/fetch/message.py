"""Messages that were fetched into a store, and the QoS that counts, acknowledges and returns them."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

#: The key of a payload that names the message's field in the store.
FIELD = "store-field"


class NotAMessageError(Exception):
    """An entry of a queue cannot be read as a message."""


class FetchedMessage(virtual.Message):  # type: ignore[misc]
    """A message whose delivery tag is its field in the store. The tag that kombu gave it when it was sent stays in its
    properties. That tag is the same in every delivery, so it tells a redelivery from a new call. Clients in other
    languages may leave it out."""

    def __init__(self, payload: dict[str, Any], channel: Any = None, **kwargs: Any) -> None:
        try:
            payload["properties"].setdefault("delivery_tag", None)
            super().__init__(payload, channel, **kwargs)
        except Exception as exc:
            raise NotAMessageError(str(exc)) from exc
        self.delivery_tag: str = payload.get(FIELD, self.delivery_tag)


class StoreQoS(kombu_redis.QoS):  # type: ignore[misc]
    """Counts deliveries in this process; the channel's store keeps the messages. Some workers may have no stores: kombu
    itself still restores the messages that these have left in its own hash."""

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
        """Called at the end of the process if the channel was not closed."""
        self._on_collect.cancel()
        self.channel.end_store()

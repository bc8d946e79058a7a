"""Messages that were fetched into a store, and how kombu's channel counts, acknowledges and returns them."""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

#: Where a payload says under which field the store has it.
FIELD = "store-field"


class NotAMessageError(Exception):
    """An entry of a queue cannot be read as a message."""


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
    """Deliveries are counted here, and kept in the channel's store. kombu itself restores messages that *other* workers
    left where it keeps them: some workers may have no stores."""

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

"""A Celery message kept verbatim: taken in, kept in the ledger, published again.

The body is never deserialised here. What a published copy needs besides (which grant it belongs to, where the message
came from first) travels in one header that is taken off again on arrival, before a task can see it.
"""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from kombu import Producer, Queue
from kombu.message import Message
from kombu.utils import json as kombu_json

#: Header of a message that belongs to a run the ledger knows: {"publication"}; of a handed-over one also {"grant",
#: "exchange", "routing_key"}.
HEADER = "orchestration"
#: Header of a copy whose run has been received by a worker before: it sends no second ``task-received`` event.
RECEIVED = "orchestration_received"
#: Where a task finds its fence: among the properties, which unlike headers are not copied into its retries.
FENCE = "orchestration_fence"
#: Its run and the publication that is of (``lua/lib/identity.lua``).
RUN, PUBLICATION = "orchestration_run", "orchestration_publication"
#: And when it was admitted, by the machine's monotonic clock.
ADMITTED = "orchestration_admitted"
#: And what it has waited for, if its caller is traced (``tracing.py``).
WAITS = "orchestration_waits"

#: Version 7 of a UUID begins with the time at which it was made: 48 bits, in ms.
_TIMED_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_LENGTH = struct.Struct(">I")
#: Properties that belong to the message. Others belong to one delivery of it, and its time to live to the first queue.
PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "timestamp", "type", "app_id")


def new_message_id() -> str:
    """A UUID that also says when the message was sent, by the sender's clock."""
    rest = os.urandom(10).hex()
    at = f"{int(time.time() * 1000):012x}"
    return f"{at[:8]}-{at[8:]}-7{rest[:3]}-{'89ab'[int(rest[3], 16) % 4]}{rest[4:7]}-{rest[7:19]}"


def sent_ms(message_id: object) -> int | None:
    """When the message of such an id was sent; None if its id is of another kind."""
    found = _TIMED_ID.fullmatch(message_id) if isinstance(message_id, str) else None
    return int(found[1] + found[2], 16) if found else None


@dataclass(frozen=True, slots=True)
class Envelope:
    headers: dict[str, Any]
    properties: dict[str, Any]
    content_type: str | None
    content_encoding: str | None
    exchange: str
    routing_key: str
    body: bytes

    @classmethod
    def of(cls, message: Message, origin: Mapping[str, Any] | None = None, publication: str = "") -> Envelope:
        """`origin`: exchange and routing key of the first delivery, if this one was a hand-over."""
        where = origin or message.delivery_info or {}
        body = message.body
        headers = {key: value for key, value in message.headers.items() if key != HEADER}
        if publication:
            headers[HEADER] = {"publication": publication}
        return cls(
            headers=headers,
            properties={name: message.properties[name] for name in PROPERTIES if name in message.properties},
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            exchange=where.get("exchange") or "",
            routing_key=where.get("routing_key") or "",
            body=body.encode() if isinstance(body, str) else bytes(body or b""),
        )

    def pack(self) -> bytes:
        head = [
            self.headers,
            self.properties,
            self.content_type,
            self.content_encoding,
            self.exchange,
            self.routing_key,
        ]
        try:
            text = json.dumps([*head, None])
        except TypeError:
            # AMQP has times, decimals and bytes, too. They get a mark that no header can have, whatever it looks like.
            mark = uuid4().hex
            text = json.dumps([*head, mark], default=lambda value: {mark: kombu_json.dumps(value)})
        packed = text.encode()
        return _LENGTH.pack(len(packed)) + packed + self.body

    @classmethod
    def unpack(cls, data: bytes) -> Envelope:
        (length,) = _LENGTH.unpack_from(data)
        text = data[4 : 4 + length].decode()
        *head, mark = json.loads(text)
        if mark:
            *head, _ = json.loads(text, object_hook=lambda it: kombu_json.loads(it[mark]) if mark in it else it)
        headers, properties, content_type, content_encoding, exchange, routing_key = head
        return cls(headers, properties, content_type, content_encoding, exchange, routing_key, data[4 + length :])

    def retried(self, retries: int) -> Envelope:
        """The message of a later attempt, to be made at once."""
        return replace(self, headers={**self._as_new(), "retries": retries, "eta": None})

    def received(self) -> Envelope:
        return replace(self, headers={**self.headers, RECEIVED: True})

    def _as_new(self) -> dict[str, Any]:
        return {key: value for key, value in self.headers.items() if key != RECEIVED}

    def renamed(self, task: str, queue: str) -> Envelope:
        """The same call of another task, as if it had come through that queue."""
        if "task" not in self.headers:
            raise ValueError("a message of Celery's protocol 1 cannot become one of another task")
        return replace(self, headers={**self.headers, "task": task}, exchange="", routing_key=queue)

    def again(self, id: str) -> Envelope:
        """The message of a run that is to be made once more, from the beginning, under this id."""
        headers = {**self._as_new(), "id": id, "retries": 0, "eta": None, "expires": None}
        if headers.get("root_id") == self.headers.get("id"):
            headers["root_id"] = id
        return replace(self, headers=headers, properties={**self.properties, "correlation_id": id})

    def publish(self, producer: Producer, queue: Queue, grant: str) -> None:
        """Straight into one queue, whatever exchange it came through first. Without a grant it goes to the gate."""
        headers = dict(self.headers)
        compression = headers.pop("compression", None)  # the body was decompressed on arrival
        headers[HEADER] = {"publication": "", **(headers.get(HEADER) or {})}
        if grant:
            headers[HEADER] |= {"grant": grant, "exchange": self.exchange, "routing_key": self.routing_key}
        producer.publish(
            self.body,
            exchange="",
            routing_key=queue.name,
            declare=[queue],
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            compression=compression,
            headers=headers,
            **self.properties,
        )

    def as_message(self, accept: Any) -> Message:
        """As if it had just been delivered. It has no channel: there is nothing to acknowledge."""
        headers = {HEADER: {"publication": ""}, **self.headers}
        headers.pop("compression", None)
        return Message(
            body=self.body,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            delivery_info={"exchange": self.exchange, "routing_key": self.routing_key, "redelivered": False},
            properties=dict(self.properties),
            headers=headers,
            accept=accept,
        )

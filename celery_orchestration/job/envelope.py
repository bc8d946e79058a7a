"""A Celery message that the ledger keeps unchanged and that is published again later.

The body is never deserialised here. A published copy carries its grant and the origin of the message in one header,
which is removed on arrival, before a task can see it.
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

#: Header of a message whose run the ledger knows: {"publication"}. A handed-over message also has {"grant", "exchange",
#: "routing_key"}.
HEADER = "orchestration"
#: Header of a copy whose run a worker has received before: it sends no second ``task-received`` event.
RECEIVED = "orchestration_received"
#: Property with the run's fence. Celery copies headers into retries, but not properties.
FENCE = "orchestration_fence"
#: Properties with the run's id and its publication (``lua/lib/identity.lua``).
RUN, PUBLICATION = "orchestration_run", "orchestration_publication"
#: Property with the time of its admission, by the machine's monotonic clock.
ADMITTED = "orchestration_admitted"
#: Property with the run's waits, if its caller is traced (``tracing.py``).
WAITS = "orchestration_waits"

#: A UUID of version 7 begins with the time of its creation: 48 bits, in ms.
_TIMED_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_LENGTH = struct.Struct(">I")
#: Properties that belong to the message. Others belong to one delivery, and its time to live to the first queue.
PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "timestamp", "type", "app_id")


def new_message_id() -> str:
    """A UUID that contains the time of sending, by the sender's clock."""
    rest = os.urandom(10).hex()
    at = f"{int(time.time() * 1000):012x}"
    return f"{at[:8]}-{at[8:]}-7{rest[:3]}-{'89ab'[int(rest[3], 16) % 4]}{rest[4:7]}-{rest[7:19]}"


def sent_ms(message_id: object) -> int | None:
    """When the message with this id was sent; None if the id does not contain a time."""
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
            # AMQP also has times, decimals and bytes. They get a marker that no header value can have.
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
        """The message of a later attempt that is due at once."""
        return replace(self, headers={**self._as_new(), "retries": retries, "eta": None})

    def received(self) -> Envelope:
        return replace(self, headers={**self.headers, RECEIVED: True})

    def _as_new(self) -> dict[str, Any]:
        return {key: value for key, value in self.headers.items() if key != RECEIVED}

    def renamed(self, task: str, queue: str) -> Envelope:
        """The same call with another task name, as if it had come through that queue."""
        if "task" not in self.headers:
            raise ValueError("a message of Celery's protocol 1 cannot become one of another task")
        return replace(self, headers={**self.headers, "task": task}, exchange="", routing_key=queue)

    def again(self, id: str) -> Envelope:
        """The message of a run that starts again from the beginning, with this id."""
        headers = {**self._as_new(), "id": id, "retries": 0, "eta": None, "expires": None}
        if headers.get("root_id") == self.headers.get("id"):
            headers["root_id"] = id
        return replace(self, headers=headers, properties={**self.properties, "correlation_id": id})

    def publish(self, producer: Producer, queue: Queue, grant: str) -> None:
        """Publish to one queue, whatever exchange it came through first. Without a grant it goes to the gate."""
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
        """The message as if it had just been delivered. It has no channel, because there is nothing to acknowledge."""
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

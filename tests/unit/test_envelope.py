"""A Celery message that is kept and published again equals the original one."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Producer, Queue
from kombu.compression import compress
from kombu.message import Message

from celery_orchestration.job.envelope import HEADER, Envelope


class Explosive:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def connection() -> Iterator[Connection]:
    with Connection("memory://", transport_options={"polling_interval": 0}) as connection:
        yield connection


@pytest.fixture
def queue() -> Queue:
    return Queue(f"queue-{uuid.uuid4().hex}")  # the transport keeps queues for the whole process


def send(connection: Connection, queue: Queue, body: Any, **options: Any) -> Message:
    """Publish a message as Celery does and take it from the queue again."""
    bound = queue(connection.default_channel)
    bound.declare()
    Producer(connection.default_channel).publish(body, routing_key=queue.name, **options)
    return taken(connection, queue)


def taken(connection: Connection, queue: Queue) -> Message:
    message = queue(connection.default_channel).get(no_ack=True)
    assert message is not None
    return message


def again(connection: Connection, queue: Queue, message: Message, grant: str = "7") -> Message:
    """Kept, read again, published and delivered: the steps of a hand-over."""
    kept = Envelope.unpack(Envelope.of(message).pack())
    kept.publish(Producer(connection.default_channel), queue, grant)
    return taken(connection, queue)


def own_headers(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.headers.items() if key != HEADER}


OF_THE_MESSAGE = (
    "correlation_id",
    "reply_to",
    "priority",
    "delivery_mode",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)


def assert_same(first: Message, second: Message) -> None:
    assert second.body == first.body
    assert (second.content_type, second.content_encoding) == (first.content_type, first.content_encoding)
    assert own_headers(second) == own_headers(first)
    for name in OF_THE_MESSAGE:
        assert second.properties.get(name) == first.properties.get(name), name


@pytest.mark.parametrize("serializer", ["json", "pickle", "raw"])
@pytest.mark.parametrize("compression", [None, "gzip", "bzip2", "zlib"])
def test_a_message_is_published_as_it_came(connection, queue, serializer, compression):
    body = b"\x00\xff raw" if serializer == "raw" else [[1, "zwei", "drei \u2603"], {"four": None}, {"chord": None}]
    message = send(
        connection,
        queue,
        body,
        serializer=serializer,
        compression=compression,
        headers={"task": "shop.job", "id": "run-1", "eta": None, "retries": 2, "stamps": {"a": [1, {"b": True}]}},
        correlation_id="run-1",
        reply_to="client",
        priority=3,
        delivery_mode=1,
        message_id="message-1",
        timestamp=1_700_000_000,
        type="job",
        app_id="shop",
    )
    assert all(message.properties.get(name) is not None for name in OF_THE_MESSAGE)
    copy = again(connection, queue, message)
    assert_same(message, copy)
    assert ("compression" in copy.headers) == (compression is not None)
    # Handed over twice, it is still the same: the received message is kept again.
    assert_same(message, again(connection, queue, copy))


def test_where_it_came_from_travels_in_one_header(connection, queue):
    message = send(connection, queue, {}, headers={"task": "shop.job"})
    message.delivery_info.update(exchange="topics", routing_key="shop.eu")
    copy = again(connection, queue, message, grant="12")
    assert copy.headers[HEADER] == {
        "publication": "",
        "grant": "12",
        "exchange": "topics",
        "routing_key": "shop.eu",
    }
    second = Envelope.of(copy, origin=copy.headers[HEADER])
    assert HEADER not in second.headers
    assert (second.exchange, second.routing_key) == ("topics", "shop.eu")


def test_a_time_to_live_belongs_to_the_first_queue(connection, queue):
    message = send(connection, queue, {}, expiration=60)
    assert message.properties["expiration"] == "60000"
    assert "expiration" not in again(connection, queue, message).properties


def test_pickled_content_is_never_unpickled_by_us(connection, queue, tmp_path):
    trace = tmp_path / "unpickled"
    body = pickle.dumps(Explosive(trace))
    message = send(connection, queue, body, content_type="application/x-python-serialize", content_encoding="binary")
    copy = again(connection, queue, message)
    assert copy.body == body
    assert Envelope.of(copy).as_message(accept={"application/json"}).body == body
    assert not trace.exists()
    pickle.loads(body)
    assert trace.exists()  # it would have been noticed


def test_content_that_nobody_can_read_passes_through(connection, queue):
    message = send(connection, queue, b"\x80\x00{[", content_type="application/json", content_encoding="utf-8")
    assert again(connection, queue, message).body == b"\x80\x00{["


def test_a_message_of_protocol_1_has_its_task_in_the_body(connection, queue):
    app = Celery("shop", set_as_current=False)
    made = app.amqp.as_task_v1("run-1", "shop.job", args=(1,), kwargs={"x": 2})
    message = send(connection, queue, made.body, serializer="json", headers=made.headers, **made.properties)
    copy = again(connection, queue, message)
    assert_same(message, copy)
    assert own_headers(copy) == {}
    assert (copy.payload["task"], copy.payload["id"], copy.payload["args"]) == ("shop.job", "run-1", [1])
    assert Envelope.of(copy).as_message(accept={"application/json"}).payload["kwargs"] == {"x": 2}


def test_headers_of_amqp_survive():
    headers = {
        "x-death": [{"count": 2, "time": datetime(2024, 5, 1, 12, tzinfo=timezone.utc), "queue": "q"}],
        "binary": b"\xff\x00",
        "text": b"bytes",
        "number": Decimal("1.50"),
        "naive": datetime(2024, 5, 1, 12),
        "nothing": None,
        "yes": True,
        "long": 2**62,
    }
    properties = {"timestamp": datetime(2024, 5, 1), "priority": 9, "cluster_id": "", "correlation_id": "run-1"}
    envelope = Envelope.of(Message(body=b"{}", headers=headers, properties=properties))
    kept = Envelope.unpack(envelope.pack())
    assert kept == envelope
    assert kept.headers == headers
    assert kept.properties == {key: properties[key] for key in ("timestamp", "priority", "correlation_id")}


@pytest.mark.parametrize(
    "body", ["t\u00e9xt \u2603", b"bytes", bytearray(b"array"), memoryview(b"view"), None, "", b""]
)
def test_a_body_of_any_kind_is_kept_as_bytes(body):
    kept = Envelope.of(Message(body=body)).body
    expected = body.encode() if isinstance(body, str) else bytes(body or b"")
    assert type(kept) is bytes
    assert kept == expected


def test_a_handed_over_message_is_read_as_if_just_delivered():
    packed, compression = compress(b"[[], {}, {}]", "gzip")
    arrived = Message(
        body=packed,
        headers={"task": "shop.job", "compression": compression},
        content_type="application/json",
        content_encoding="utf-8",
        properties={"correlation_id": "run-1"},
        delivery_info={"exchange": "", "routing_key": "celery", "consumer_tag": "1", "redelivered": True},
    )
    message = Envelope.unpack(Envelope.of(arrived).pack()).as_message(accept={"application/json"})
    assert message.payload == [[], {}, {}]
    assert message.errors == []
    assert message.channel is None
    assert message.delivery_info == {"exchange": "", "routing_key": "celery", "redelivered": False}
    assert message.properties == {"correlation_id": "run-1"}


texts = st.text(st.characters(codec="utf-8"))
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts | st.binary()
times = st.datetimes(timezones=st.none() | st.just(timezone.utc))
values = st.recursive(
    scalars | times,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(texts, inner)
        | st.fixed_dictionaries({"__type__": texts | st.just("bytes"), "__value__": inner})
    ),
    max_leaves=8,
)


@given(
    headers=st.dictionaries(texts, values, max_size=5),
    properties=st.fixed_dictionaries({}, optional=dict.fromkeys(OF_THE_MESSAGE, scalars)),
    content_type=st.none() | texts,
    content_encoding=st.none() | texts,
    exchange=texts,
    routing_key=texts,
    body=st.binary(),
)
def test_whatever_is_packed_is_unpacked_the_same(**parts: Any) -> None:
    envelope = Envelope(**parts)
    assert Envelope.unpack(envelope.pack()) == envelope


@pytest.mark.parametrize("kind", ["circle", "datetime", None])
@pytest.mark.parametrize("beside", ["text", b"bytes", datetime(2024, 5, 1), uuid.UUID(int=7)])
def test_a_header_that_looks_like_kombus_encoding_survives(kind, beside):
    headers = {"shape": {"__type__": kind, "__value__": 3}, "beside": [beside, {"__type__": "bytes"}]}
    envelope = Envelope.of(Message(body=b"{}", headers=headers))
    assert Envelope.unpack(envelope.pack()) == envelope

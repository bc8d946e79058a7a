"""The commands that a consuming connection sends to Redis while there is nothing to fetch."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Producer, Queue

from celery_orchestration.node.stores import Names
from celery_orchestration.worker.fetch.channel import LOOK_ANYWAY
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.transport import make_reliable


@pytest.fixture
def connection(redis_server):
    fetcher = Fetcher("idle", "idle@test", Names.of("idle"), 1.0, lambda: 1)
    fetcher.registered = True
    with make_reliable(Connection(redis_server.url(0)), fetcher) as connection:
        yield connection


def drain(connection, seconds):
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(TimeoutError):
            connection.drain_events(timeout=left)


def fetches(server):
    stats = server.client(0).info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_an_idle_worker_does_not_poll_and_hears_of_the_next_message(connection, redis_server):
    got = []

    def receive(body, message):
        message.ack()
        got.append(body)

    Consumer(connection, [Queue("idle")], callbacks=[receive]).consume()
    drain(connection, 1)  # it has looked, and waits for a notification
    before = fetches(redis_server)
    drain(connection, LOOK_ANYWAY)
    assert fetches(redis_server) - before <= 2  # it looks now and then in any case
    with Connection(redis_server.url(0)) as other:
        Producer(other).publish("hello", routing_key="idle")
    connection.drain_events(timeout=LOOK_ANYWAY)
    for _ in range(3):
        with suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
    assert got == ["hello"]

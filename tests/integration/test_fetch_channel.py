"""A channel with a store, in kombu's event loop, when its connection fails. A real Redis."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
import redis
from kombu import Connection, Consumer, Producer, Queue
from kombu.asynchronous import Hub

from celery_orchestration.node import left_stores
from celery_orchestration.node.left_stores import LeftStores
from celery_orchestration.node.stores import Names, Stores
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.transport import make_reliable
from support.wait import until

NAMES = Names.of("shop")


class Worker:
    def __init__(self, url):
        self.fetcher = Fetcher("w1", "w1@host", NAMES, 1.0, lambda: 4)
        self.fetcher.registered = True
        self.connection = make_reliable(Connection(url), self.fetcher)
        self.hub = Hub()
        self.connection.register_with_event_loop(self.hub)
        self.received = []
        self.consumer = Consumer(self.connection, [Queue("celery")], on_message=self.received.append)
        self.consumer.consume()

    def turn(self):
        self.hub.call_later(0.05, lambda: None)
        self.hub.run_once()

    def receive(self, count):
        def received():
            self.turn()
            return len(self.received) >= count

        until(received)

    def close(self):
        self.connection.close()
        self.hub.close()


@pytest.fixture
def client(redis_server):
    return redis.Redis(port=redis_server.port)


@pytest.fixture
def worker(redis_server):
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    worker = Worker(url)
    with Connection(url) as connection:
        for number in range(3):
            Producer(connection).publish({"number": number}, routing_key="celery")
    worker.receive(3)
    yield worker
    worker.close()


def looking_on(connect, own_stores=None):
    """Who looks for stores of workers that are gone, without its thread."""
    node = SimpleNamespace(
        worker="w1",
        store_names=NAMES,
        app=SimpleNamespace(connection_for_read=connect),
        ledger=SimpleNamespace(new_connection=lambda: None),
    )
    return LeftStores(node, own_stores)


def queued(client):
    return [json.loads(raw) for raw in client.lrange("celery", 0, -1)]


def test_an_acknowledged_message_does_not_come_back_if_the_acknowledgement_is_lost(worker, client):
    client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    for message in worker.received[:2]:
        message.ack()
    worker.turn()  # sent, and not executed
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_unpause()
    worker.connection.close()
    assert len(queued(client)) == 1
    assert Stores(client, NAMES).all() == []


def test_an_acknowledged_message_does_not_come_back_if_redis_was_down(worker, client):
    client.execute_command("ACL", "SETUSER", "default", "-hdel")
    for message in worker.received[:2]:
        message.ack()
    with pytest.raises(worker.connection.connection_errors):
        until(worker.turn)
    worker.connection.close()
    assert (queued(client), len(Stores(client, NAMES).all())) == ([], 1)

    client.execute_command("ACL", "SETUSER", "default", "+hdel")
    url = f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"
    recovery = looking_on(lambda: Connection(url), worker.fetcher)
    recovery._give_back_left_stores()
    recovery._disconnect()
    assert len(queued(client)) == 1
    assert Stores(client, NAMES).all() == []


def test_acknowledgements_under_way_are_not_given_back_by_a_worker_that_stops(worker, client):
    client.execute_command("CLIENT", "PAUSE", 2_000, "WRITE")
    for message in worker.received[:2]:
        message.ack()
    worker.turn()
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_unpause()
    channel = worker.consumer.channel
    channel.stop_looking()
    channel.give_back_all_but(set())
    assert len(queued(client)) == 1


def test_a_channel_that_could_not_give_a_message_back_connects_again(worker, client):
    client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
    with pytest.raises(redis.RedisError):
        worker.received[0].requeue()
    client.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")
    with pytest.raises(worker.connection.connection_errors):
        until(worker.turn)
    worker.connection.close()
    assert len(queued(client)) == 3


@pytest.mark.parametrize("connected", [False, True])
def test_a_broker_that_does_not_answer_cannot_hold_up_who_looks_for_left_stores(redis_server, monkeypatch, connected):
    monkeypatch.setattr(left_stores, "TIMEOUTS", {"socket_timeout": 0.2, "socket_connect_timeout": 0.2})
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    looking = looking_on(lambda: Connection(url, connect_timeout=0.5))
    if connected:
        looking._give_back_left_stores()
    redis_server.client().execute_command("CLIENT", "PAUSE", 60_000, "ALL")
    ended: list[Exception] = []

    def look():
        try:
            looking._give_back_left_stores()
        except Exception as exc:
            ended.append(exc)

    threading.Thread(target=look, daemon=True).start()
    until(lambda: ended, 10)


def test_who_looks_for_left_stores_keeps_to_the_limits_in_the_settings(redis_server):
    limits = {"socket_timeout": 7.0, "socket_connect_timeout": None}
    url = f"redis://127.0.0.1:{redis_server.port}/0"
    looking = looking_on(lambda: Connection(url, transport_options=limits))
    looking._give_back_left_stores()
    used = looking._connection.default_channel.pool.connection_kwargs
    assert (used["socket_timeout"], used["socket_connect_timeout"]) == (7.0, 3.0)
    assert limits["socket_connect_timeout"] is None, "they belong to the app"
    looking._disconnect()

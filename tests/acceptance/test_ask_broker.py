"""Questions to the broker: how many messages its queues have, and which unknown workers serve them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from celery import Celery
from kombu.transport.redis import Channel

from celery_orchestration.job.app import settings_of
from celery_orchestration.operate import broker as ask
from celery_orchestration.operate.broker import Stranger
from support.workers import Broker, WorkerProcess, close_app

PLAIN, JOBS = "support.apps.plain", "support.apps.jobs"


@pytest.fixture
def app_of() -> Iterator[Callable[..., Celery]]:
    apps: list[Celery] = []

    def make(url: str, **conf: object) -> Celery:
        app = Celery("asks", broker=url, set_as_current=False)
        app.conf.update(conf)
        apps.append(app)
        return app

    yield make
    for app in apps:
        close_app(app)


def send(app: Celery, queue: str, times: int, **options: object) -> None:
    for _ in range(times):
        app.send_task("x", queue=queue, **options)


def test_depths_of_all_queues(broker: Broker, app_of: Callable[..., Celery]) -> None:
    app = app_of(broker.broker_url)
    send(app, "some", 3)
    send(app, "one", 1)
    found = ask.depths(app, ["none", "some", "never", "one", "some"])
    assert found == ask.Depths({"none": 0, "some": 3, "never": 0, "one": 1})
    assert list(ask.depths(app, []).messages) == []


def test_messages_of_every_priority_are_counted_under_the_prefix_of_the_team(
    redis_broker: Broker, app_of: Callable[..., Celery]
) -> None:
    """Fails if kombu changes the names of its lists."""
    app = app_of(redis_broker.broker_url, broker_transport_options={"global_keyprefix": "team:"})
    for priority in range(10):
        send(app, "some", 2, priority=priority)
    client = redis_broker.redis.client(0)
    assert client.llen("team:some") > 0
    assert len(list(client.scan_iter("team:some*"))) == len(Channel.priority_steps)
    client.set("team:odd", "no list")
    before = client.info("commandstats")["cmdstat_llen"]["calls"]
    assert ask.depths(app, ["some", "odd"]).messages == {"some": 20, "odd": None}
    assert client.info("commandstats")["cmdstat_llen"]["calls"] == before + 2 * len(Channel.priority_steps)
    assert ask.depths(app_of(redis_broker.broker_url), ["some"]).messages == {"some": 0}


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
@pytest.mark.parametrize("silent", [False, True], ids=["refused", "silent"])
def test_a_broker_that_does_not_answer_is_reported_in_time(
    app_of: Callable[..., Celery], scheme: str, silent: bool
) -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        if silent:
            there.listen(16)
        app = app_of(f"{scheme}://user:secret@127.0.0.1:{there.getsockname()[1]}//")
        began = time.monotonic()
        found = ask.depths(app, ["some"])
        assert time.monotonic() - began < 10
        assert found.messages == {"some": None}
        assert str(found.problem).startswith(f"the broker at {scheme}://user:**@127.0.0.1:")
        assert "does not answer" in str(found.problem)
        assert "secret" not in str(found.problem)
        began = time.monotonic()
        nobody, problem = ask.strangers(app, (), ["some"], "jobs")
        assert time.monotonic() - began < 20
        assert nobody == []
        assert "does not answer" in str(problem)


@pytest.mark.parametrize("url", ["nonsense://there", "redis://there:port/0"])
def test_an_unreadable_address_is_reported(app_of: Callable[..., Celery], url: str) -> None:
    app = app_of(url)
    assert ask.depths(app, ["some"]).messages == {"some": None}
    assert ask.depths(app, ["some"]).problem
    assert ask.kind(app) in ("", "redis")


def test_the_other_address_of_a_list_is_asked(redis_broker: Broker, app_of: Callable[..., Celery]) -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        app = app_of(f"redis://127.0.0.1:{there.getsockname()[1]}/0;{redis_broker.broker_url}")
        assert ask.depths(app, ["some"]) == ask.Depths({"some": 0})


@pytest.mark.slow
def test_workers_that_the_ledger_does_not_know_are_found(
    broker: Broker,
    worker: Callable[..., WorkerProcess],
    load_app: Callable[..., ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = worker(broker, PLAIN, pool="solo", queues=["celery", "default.low", "others"], ready=False)
    elsewhere = worker(broker, PLAIN, pool="solo", queues=["elsewhere"], ready=False)
    known = worker(broker, JOBS, pool="threads")
    plain.wait_ready()
    elsewhere.wait_ready()
    app = load_app(broker, JOBS).app
    queues, namespace = {"celery", "default.low", "default.high"}, settings_of(app).namespace
    found, problem = ask.strangers(app, {known.hostname}, queues, namespace)
    assert (found, problem) == ([Stranger(plain.hostname, ("celery", "default.low"))], None)
    assert ask.strangers(app, {plain.hostname}, queues, namespace) == ([], None), "one of our own that just starts"
    found, _ = ask.strangers(app, {plain.hostname}, queues, "another")
    assert found == [Stranger(known.hostname, tuple(sorted(queues)), namespace)], "its own queues are known, too"
    assert set(ask.answers(app, "ping").replies) == {w.hostname for w in (plain, elsewhere, known)}
    monkeypatch.setattr(ask, "ANSWER_SECONDS", 4.0)
    began = time.monotonic()
    assert ask.answers(app, "ping", [known.hostname]).replies == {known.hostname: {"ok": "pong"}}
    assert time.monotonic() - began < ask.ANSWER_SECONDS, "it does not wait for others"

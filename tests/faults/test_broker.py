"""The broker goes away and comes back. Every run that was sent ends, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from support.invariants import status_of
from support.proxy import DroppingProxy
from support.servers import RedisServer
from support.stage import Stage
from support.wait import stays, until
from support.workers import Broker

#: Of the faults app, in seconds.
LEASE = 3

Away = Callable[[], AbstractContextManager[None]]


def confirmed(stage: Stage) -> None:
    """The client's messages are on the broker's disk, so that a later loss would be our fault."""
    stage.app.conf.broker_transport_options = {"confirm_publish": True}


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_rabbitmq_is_restarted_under_load(stage_on: Callable[..., Stage], rabbitmq_broker: Broker, kill: bool) -> None:
    stage = stage_on(rabbitmq_broker)
    confirmed(stage)
    jobs = stage.jobs
    for _ in range(2):
        stage.worker(concurrency=3)
    for _ in range(40):
        stage.send(jobs.free, 0.05)
        stage.send(jobs.pair, 0.05)
        stage.send(jobs.exclusive, 0.05)
        stage.send(jobs.fetch)
        stage.send(jobs.process)
    until(lambda: len(stage.history.ended()) > 20, 30, "runs end")
    until(lambda: status_of(stage.app).waiting, message="and others wait")
    rabbitmq_broker.rabbit.restart(kill=kill)
    assert len(stage.history.ended()) < len(stage.sent), "it was restarted under load"
    for _ in range(10):
        stage.send(jobs.exclusive, 0.01)
        stage.send(jobs.free)

    def all_ready() -> bool:
        stage.publish_again_what_was_lost()
        return all(result.ready() for result in stage.sent)

    until(all_ready, 60, "everything ends", poll=0.5)
    stage.all_well()
    stage.ran_once(stage.sent)


@pytest.fixture(params=["redis", "rabbitmq"])
def leaving(
    request: pytest.FixtureRequest, redis_server: RedisServer, stage_on: Callable[..., Stage], monkeypatch: Any
) -> tuple[Stage, Away]:
    """Yields a stage, and a context in which its broker is away while the ledger is available."""
    env = {"CELERY_ORCHESTRATION_REDIS_URL": redis_server.url(0)}
    monkeypatch.setenv(*env.copy().popitem())
    if request.param == "redis":
        proxy: DroppingProxy = request.getfixturevalue("proxy")
        broker = Broker("redis", proxy.url(), redis_server.url(1), redis_server.url(0), redis_server)

        @contextmanager
        def away() -> Iterator[None]:
            proxy.refuse()
            yield
            proxy.accept()
    else:
        found: Broker = request.getfixturevalue("rabbitmq_broker")
        broker = replace(found, ledger_url=redis_server.url(0))

        @contextmanager
        def away() -> Iterator[None]:
            found.rabbit.kill()
            yield
            found.rabbit.start()

    return stage_on(broker, env=env), away


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_broker_that_is_away_longer_than_a_lease_takes_no_run_with_it(leaving: tuple[Stage, Away], pool: str) -> None:
    stage, away = leaving
    if stage.broker.rabbit:
        confirmed(stage)
    process = stage.worker(pool, concurrency=3)
    jobs = stage.jobs
    running = [stage.send(jobs.held, "first"), stage.send(jobs.held_free, "last")]
    for result in running:
        stage.started(result)
    waiting = [stage.send(jobs.held, "first") for _ in range(3)]
    stage.wait_waiting(3)
    with away():
        process.wait_for_log("Connection to broker lost")
        # The ledger has all of them, and the lease is renewed.
        stays(lambda: [status_of(stage.app).waiting, status_of(stage.app).running] == [3, 2], LEASE + 1, poll=0.3)
        assert all(run.reason for run in status_of(stage.app).waits)
        stage.release("first")
        until(stage.history.ended, message="code does not need a broker")
    until(lambda: all(result.ready() for result in waiting), 60, "those that waited end", poll=0.2)
    stage.release("last")
    stage.all_well(timeout=40)
    stage.ran_once(stage.sent)
    assert [span.start.attempt for span in stage.history.spans()] == [0] * 5
    assert "lease was lost" not in process.log()

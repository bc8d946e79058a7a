"""Pools while workers and supervisors are killed at random: nothing is lost, and no place is held twice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from support.history import History
from support.pools import MODULE, PoolStage, is_alive
from support.processes import ManagedProcess
from support.proxy import DroppingProxy
from support.verbs import asked, make_known
from support.wait import until
from support.workers import Broker

#: Seconds of the whole test, between two kills of workers, and between two kills of supervisors.
SECONDS, WORKER_EVERY, SUPERVISOR_EVERY = 30.0, 3.0, 8.0


@pytest.fixture
def stage(
    redis_broker: Broker,
    worker: Any,
    load_app: Any,
    history: History,
    tmp_path: Path,
    reported: Callable[[ManagedProcess], None],
) -> Iterator[PoolStage]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    table = PoolStage.table_in(scratch, images={"min": 3, "max": 3})
    stage = PoolStage(redis_broker, worker, load_app, history, scratch, MODULE, {**table, "TEST_DRAIN": "2"})
    stage.reported = reported
    yield stage
    for process in stage.supervisors:
        process.cleanup()


@pytest.mark.timeout(240)
def test_every_run_is_accounted_for_and_the_pool_is_at_full_strength_soon_after(stage: PoolStage):
    chance = random.Random(13)
    both = {name: stage.supervisor(name) for name in ("a", "b")}
    stage.wait_live(3)
    ends, next_worker, next_supervisor = monotonic() + SECONDS, 0.0, monotonic() + SUPERVISOR_EVERY
    while monotonic() < ends:
        stage.send(stage.jobs.resize, 0.05)
        sleep(0.05)  # the load: at most 20 a second
        places = stage.places()
        assert len(places) <= 3
        if monotonic() >= next_worker and (live := stage.live()):
            next_worker = monotonic() + WORKER_EVERY
            victim = chance.choice(live)["pid"]
            if is_alive(victim):
                os.kill(victim, signal.SIGKILL)
        if monotonic() >= next_supervisor:
            next_supervisor = monotonic() + SUPERVISOR_EVERY
            name = chance.choice("ab")
            both[name].kill(whole=False)
            both[name].start()
    stage.wait_live(3, timeout=30)
    for result in stage.sent:
        result.get(timeout=60)
    until(lambda: len(stage.places()) == 3)
    for process in both.values():
        process.stop()
    assert stage.places() == {}
    ran = {span.run for span in stage.history.spans() if span.end is not None}
    assert {result.id for result in stage.sent} <= ran
    left = [line for process in both.values() for line in process.pids()]
    assert left == []


def test_when_redis_was_emptied_supervisors_fill_the_ledger_again_and_workers_stay(stage: PoolStage):
    supervisor = stage.supervisor("a")
    before = {one["name"]: one["pid"] for one in stage.wait_live(3)}
    held = stage.places()
    stage.broker.redis.client().flushall()
    until(lambda: stage.places() == held, 20, "the places are there again")
    until(lambda: {one["name"]: one["pid"] for one in stage.live()} == before, 20, "the workers are the same")
    assert stage.send(stage.jobs.resize).get(timeout=30) is None
    assert "died" not in supervisor.log()


def test_while_redis_is_away_workers_stay_as_they_are(stage: PoolStage):
    supervisor = stage.supervisor("a")
    before = {one["pid"] for one in stage.wait_live(3)}
    stage.broker.redis.stop()
    supervisor.wait_for_log("does not answer")
    sleep(4)  # longer than a lease
    assert all(map(is_alive, before))
    stage.broker.redis.start()
    until(lambda: {one["pid"] for one in stage.live()} == before, 30, "the workers are the same")
    assert supervisor.log().count("does not answer") < 5


VERBS = ["read_pools", "renew_places", "claim_place", "holds_place", "scale_pool", "leave_place"]


@pytest.mark.parametrize("verb", VERBS)
def test_a_lost_reply_changes_nothing(stage: PoolStage, proxy: DroppingProxy, verb: str):
    """The replies to the first three calls of each verb: the pool has its workers, grows, shrinks, and leaves nothing
    behind."""
    client = stage.broker.redis.client()
    make_known(client, verb)  # otherwise the reply that the script is unknown would be lost
    lost = proxy.lose_reply(asked(verb), times=3)
    env = {"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0), **stage.table_in(stage.scratch, images={"min": 1, "max": 2})}
    supervisor = stage.supervisor("a", env=env)
    stage.wait_live(1)
    runs = [stage.send(stage.jobs.resize, 0.5) for _ in range(60)]
    stage.wait_live(2)
    for run in runs:
        run.get(timeout=60)
    stage.wait_live(1)
    until(lambda: len(stage.places()) == 1)
    supervisor.stop()
    assert stage.places() == {}
    assert len([span for span in stage.history.spans() if span.end is not None]) == len(runs)
    assert lost.lost, f"{verb} was never called"

"""The order of runs: between queues, while waiting, and past a backlog; and which worker serves which queue."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.history import History, most_at_once, overlaps
from support.invariants import status_of, waiting
from support.wait import stays, until
from support.workers import Broker, WorkerProcess

APP = "support.apps.configured"
JOBS = "support.apps.jobs"
NAME = f"{APP}.{{}}".format

StartWorker = Callable[..., WorkerProcess]
LoadApp = Callable[..., ModuleType]


def conf(**settings: Any) -> dict[str, str]:
    return {"TEST_CONF": json.dumps(settings)}


def starts(history: History, *names: str) -> list[str]:
    """The jobs in the order in which their runs started."""
    return [event.job for event in history.started() if event.job in names]


# -- strict priority


@pytest.mark.slow
def test_under_strict_priority_high_runs_go_before_a_thousand_low_ones(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    env = conf(orchestration_strict_priority=True)
    worker(broker, APP, concurrency=1, env=env)
    jobs = load_app(broker, APP, env=env)
    gate = tmp_path / "go"
    jobs.low.delay(until=str(gate))
    until(history.started)
    with jobs.app.producer_pool.acquire(block=True) as producer:
        for _ in range(1000):
            jobs.low.apply_async((0.005,), producer=producer, ignore_result=True)
        results = [jobs.high.apply_async((0.005,), producer=producer) for _ in range(10)]
    gate.touch()
    for result in results:
        result.get(timeout=30)
    order = starts(history, NAME("low"), NAME("high"))[1:]
    last_high = max(index for index, job in enumerate(order) if job == NAME("high"))
    assert last_high - 9 <= 1, order[: last_high + 1]


def test_under_strict_priority_low_runs_run_when_nothing_higher_is_there(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp
) -> None:
    env = conf(orchestration_strict_priority=True)
    worker(redis_broker, APP, concurrency=1, env=env)
    jobs = load_app(redis_broker, APP, env=env)
    assert [jobs.low.delay(note=n).get(timeout=30) for n in range(3)] == [0, 1, 2]
    assert jobs.plain.delay(note="plain").get(timeout=30) == "plain"


# -- rank while waiting


def test_waiting_runs_start_in_the_order_of_their_priority(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    worker(redis_broker, APP)
    jobs = load_app(redis_broker, APP)
    gate = tmp_path / "go"
    jobs.exclusive.delay(until=str(gate))
    until(history.started)
    priorities = ["low", "normal", "high", "critical"]
    results = []
    for round_ in range(2):
        for priority in priorities:
            results.append(jobs.exclusive.apply_async((0, f"{priority} {round_}"), priority=priority))
            until(lambda: waiting(jobs.app) == len(results))
    waits = status_of(jobs.app).waits
    assert [run.priority for run in waits] == [p for p in reversed(priorities) for _ in range(2)]
    gate.touch()
    for result in results:
        result.get(timeout=30)
    order = [event.note for event in history.started()][1:]
    assert order == [f"{priority} {round_}" for priority in reversed(priorities) for round_ in range(2)]


# -- handing over


@pytest.mark.parametrize("backlog", ["free", "plain"])
def test_a_handed_over_run_does_not_stand_behind_a_backlog(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path, backlog: str
) -> None:
    # The worker that ends the first run does not serve the queue of the second, which has to be published.
    worker(broker, APP, name="other", concurrency=1, queues=["elsewhere"])
    worker(broker, APP, name="busy", concurrency=1)
    jobs = load_app(broker, APP)
    gate = tmp_path / "go"
    jobs.exclusive.apply_async(kwargs={"until": str(gate)}, queue="elsewhere")
    until(history.started)
    second = jobs.exclusive.delay(note="second")
    until(lambda: waiting(jobs.app) == 1)
    for _ in range(200):
        getattr(jobs, backlog).delay(0.02)
    until(lambda: history.started(NAME(backlog)))
    gate.touch()
    assert second.get(timeout=30) == "second"
    assert len(history.started(NAME(backlog))) < 150


@pytest.mark.slow
def test_a_handed_over_run_does_not_wait_in_a_busy_worker_while_another_has_slots_free(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    worker(broker, APP, name="other", pool="threads", concurrency=6, queues=["elsewhere"])
    worker(broker, APP, name="busy", concurrency=1, queues=["default.high"])
    jobs = load_app(broker, APP)
    gate, never = tmp_path / "go", tmp_path / "never"
    jobs.high.delay(until=str(never))
    for number in range(6):
        jobs.keyed.apply_async((number,), {"until": str(gate)}, queue="elsewhere")
    until(lambda: len(history.started()) == 7)
    worker(broker, APP, name="idle", pool="threads", concurrency=6)
    results = [jobs.keyed.delay(number) for number in range(6)]
    until(lambda: waiting(jobs.app) == 6)
    gate.touch()
    until(lambda: all(result.ready() for result in results), 20, "all have run, none of them only after 30 s")


def test_a_job_on_the_users_route_goes_back_to_its_own_queue(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    """Through a topic exchange, so that neither the exchange nor the routing key names the queue."""
    queue = {"exchange": "topics", "exchange_type": "topic", "routing_key": "shop.#"}
    env = conf(
        task_queues={"celery": {"exchange": "celery", "routing_key": "celery"}, "own": queue},
        task_routes={NAME("where"): {"queue": "own", "routing_key": "shop.eu"}},
    )
    worker(broker, APP, name="other", concurrency=1, queues=["elsewhere"], env=env)
    worker(broker, APP, name="own", concurrency=1, queues=["own"], env=env)
    jobs = load_app(broker, APP, env=env)
    gate = tmp_path / "go"
    first = jobs.where.apply_async(kwargs={"until": str(gate)}, queue="elsewhere", exchange="", routing_key="elsewhere")
    until(history.started)
    second = jobs.where.delay()
    [run] = until(lambda: status_of(jobs.app).waits)
    assert (run.id, run.queue) == (second.id, "own")
    gate.touch()
    assert first.get(timeout=30) == ["", "elsewhere"]
    assert second.get(timeout=30) == ["topics", "shop.eu"]
    by_worker = {event.run: event.worker.partition("-")[0] for event in history.started()}
    assert by_worker == {first.id: "other", second.id: "own"}


# -- who serves what


def test_a_worker_serves_only_the_queues_it_was_given(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    worker(redis_broker, APP, queues=["images.low", "default.high"])
    jobs = load_app(redis_broker, APP)
    unserved = [jobs.exclusive.delay(), jobs.low.delay(), jobs.plain.delay()]
    assert jobs.image.delay(note=1).get(timeout=30) == 1
    assert jobs.high.delay(note=2).get(timeout=30) == 2
    stays(lambda: len(history.started()) == 2, 0.3)
    [found] = status_of(jobs.app).workers
    assert sorted(found.queues) == ["default.granted", "default.high", "images.granted", "images.low"]
    assert not any(result.ready() for result in unserved)


@pytest.mark.slow
def test_a_waiting_run_that_no_worker_serves_is_a_problem(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    images, jobs, first, second = _two_images(redis_broker, worker, load_app, history, tmp_path)
    worker(redis_broker, APP, name="default")
    until(lambda: status_of(jobs.app).problems == [])
    images.signal(15)  # a warm shutdown: the first run may end, the second one is not begun
    images.wait_for_log("Warm shutdown")
    # Its earlier requests to the broker must have been answered: see the test after this one.
    client = redis_broker.redis.client()
    until(lambda: sum("b" in other["flags"] for other in client.client_list()) <= 2)
    (tmp_path / "go").touch()
    first.get(timeout=30)
    images.stop()
    problem = until(lambda: [found for found in status_of(jobs.app).problems if "handed over" in found])
    assert re.fullmatch(r"no live worker serves queue images\.\w+, where runs wait to be handed over.*", problem[0])
    worker(redis_broker, APP, name="images", queues=["images.low"])
    assert second.get(timeout=30) == "second"
    until(lambda: status_of(jobs.app).problems == [])


@pytest.mark.slow
def test_a_run_that_is_handed_over_while_its_worker_stops_is_not_lost_on_the_way(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    """Redis gives it to the worker that asked last: the one that stops."""
    env = conf(broker_transport_options={"polling_interval": 3})  # how long kombu lets Redis wait for a message
    images, _, first, second = _two_images(redis_broker, worker, load_app, history, tmp_path, env)
    images.signal(15)
    images.wait_for_log("Warm shutdown")
    (tmp_path / "go").touch()
    first.get(timeout=30)
    images.stop(timeout=30)
    worker(redis_broker, APP, name="images", queues=["images.low"])
    assert second.get(timeout=30) == "second"


def _two_images(
    redis_broker: Broker,
    worker: StartWorker,
    load_app: LoadApp,
    history: History,
    tmp_path: Path,
    env: dict[str, str] | None = None,
) -> tuple[WorkerProcess, ModuleType, Any, Any]:
    """A worker of the pool "images" with a run that ends on "go", and another run that waits for it."""
    images = worker(redis_broker, APP, name="images", queues=["images.low"], env=env)
    jobs = load_app(redis_broker, APP)
    first = jobs.image.delay(until=str(tmp_path / "go"))
    until(history.started)
    second = jobs.image.delay(note="second")
    until(lambda: waiting(jobs.app) == 1)
    return images, jobs, first, second


def test_a_job_whose_queue_no_worker_serves_is_a_problem(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp
) -> None:
    worker(redis_broker, APP)
    jobs = load_app(redis_broker, APP)
    jobs.image.delay()
    problem = f"no live worker serves queue images.low, where {NAME('image')} is sent"
    until(lambda: status_of(jobs.app).problems == [problem])  # a worker may be ready before it has registered


# -- keys


def test_a_cap_counts_per_key(redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History) -> None:
    worker(redis_broker, JOBS, concurrency=4)
    jobs = load_app(redis_broker, JOBS)
    results = [jobs.per_tenant.delay(tenant, 0.2) for _ in range(3) for tenant in "ab"]
    # By name it is the same key as by position.
    results += [jobs.per_tenant.delay(tenant="a", seconds=0.2), jobs.per_tenant.delay(seconds=0.2, tenant="b")]
    for result in results:
        result.get(timeout=30)
    events = history.events()
    for tenant in "ab":
        of_tenant = [event for event in events if event.note == tenant]
        assert len(of_tenant) == 8
        assert most_at_once(of_tenant, {f"{JOBS}.per_tenant"}) == 1
    assert overlaps(events, {f"{JOBS}.per_tenant"}, {f"{JOBS}.per_tenant"})

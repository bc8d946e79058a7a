"""enforce, observe and off, by setting or by environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_orchestration.job.envelope import HEADER
from celery_orchestration.operate import JobStatus
from support.history import History
from support.invariants import status_of
from support.servers import RabbitServer, RedisServer
from support.wait import stays, until
from support.workers import Broker, WorkerProcess, run_celery

APP = "support.apps.configured"
NAME = f"{APP}.{{}}".format

StartWorker = Callable[..., WorkerProcess]
LoadApp = Callable[..., ModuleType]


def env(mode: str | None = None, **settings: Any) -> dict[str, str]:
    """`mode` is set in the environment, `conf` in the app's settings."""
    variables = {"TEST_CONF": json.dumps(settings)}
    return variables if mode is None else {**variables, "CELERY_ORCHESTRATION_MODE": mode}


def job(jobs: ModuleType, name: str) -> JobStatus:
    return next(job for job in status_of(jobs.app).jobs if job.name == NAME(name))


# -- enforce


@pytest.mark.parametrize("chosen", [env(), env("enforce", orchestration_mode="off")], ids=["by default", "environment"])
def test_enforcing_runs_wait(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path, chosen: Any
) -> None:
    worker(redis_broker, APP, concurrency=2, env=chosen)
    jobs = load_app(redis_broker, APP)
    gate = tmp_path / "go"
    for _ in range(2):
        jobs.exclusive.delay(until=str(gate))
    until(lambda: status_of(jobs.app).waiting == 1)
    until(lambda: len(history.started()) == 1)


# -- observe


@pytest.mark.parametrize(
    "chosen",
    [env(orchestration_mode="observe"), env("observe", orchestration_mode="enforce")],
    ids=["setting", "environment"],
)
def test_observing_everything_runs_at_once_and_what_would_have_waited_is_recorded(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path, chosen: Any
) -> None:
    worker(redis_broker, APP, concurrency=3, env=chosen)
    jobs = load_app(redis_broker, APP)
    gate = tmp_path / "go"
    results = [jobs.exclusive.delay(until=str(gate)) for _ in range(3)]
    until(lambda: len(history.started()) == 3)
    found = status_of(jobs.app)
    assert (found.running, found.waiting) == (3, 0)
    assert [worker.mode for worker in found.workers] == ["observe"]
    [(reason, count)] = job(jobs, "exclusive").would_have_waited.items()
    assert reason == f"room of {NAME('exclusive')}"
    assert count == 2
    gate.touch()
    for result in results:
        result.get(timeout=30)
    shown = run_celery(APP, "orchestration", "status", broker=redis_broker).stdout
    assert f"would have waited 2 times for room of {NAME('exclusive')}" in " ".join(shown.split())
    assert job(jobs, "free").would_have_waited == {}


def test_runs_left_waiting_are_let_go_when_an_observing_worker_comes(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    jobs = _with_waiting_runs(redis_broker, worker, load_app, history, tmp_path)
    worker(redis_broker, APP, name="observing", concurrency=4, env=env("observe"))
    until(lambda: len(history.started()) == 4, 20, "everything runs at once")
    assert status_of(jobs.app).waiting == 0


def test_runs_left_waiting_are_let_go_when_an_observing_worker_has_something_to_do(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    jobs = _with_waiting_runs(redis_broker, worker, load_app, history, tmp_path)
    worker(redis_broker, APP, name="observing", concurrency=4, env=env("observe"))

    def all_run_at_once() -> bool:
        jobs.free.delay()  # it may go to either worker
        return len(history.started(NAME("exclusive"))) == 4

    until(all_run_at_once)
    assert status_of(jobs.app).waiting == 0


def _with_waiting_runs(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> ModuleType:
    """One run on an enforcing worker, and three that wait for it."""
    worker(redis_broker, APP, name="enforcing", concurrency=2, queues=["celery"])
    jobs = load_app(redis_broker, APP)
    for _ in range(4):
        jobs.exclusive.delay(until=str(tmp_path / "go"))
    until(lambda: status_of(jobs.app).waiting == 3)
    until(lambda: len(history.started()) == 1)
    return jobs


# -- off


@pytest.mark.parametrize(
    "chosen", [env(orchestration_mode="off"), env("off", orchestration_mode="enforce")], ids=["setting", "environment"]
)
def test_off_jobs_are_plain_tasks_and_there_is_no_ledger(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path, chosen: Any
) -> None:
    process = worker(redis_broker, APP, concurrency=3, env=chosen)
    jobs = load_app(redis_broker, APP, env=chosen)
    gate = tmp_path / "go"
    results = [jobs.exclusive.delay(note=n, until=str(gate)) for n in range(3)]
    until(lambda: len(history.started()) == 3)
    assert [event.fence for event in history.started()] == [None] * 3
    gate.touch()
    assert [result.get(timeout=30) for result in results] == [0, 1, 2]
    assert redis_broker.redis.client().keys("*{*}:*") == []
    assert "Orchestration is off: jobs run as plain tasks" in process.log()


def test_off_our_queues_are_served_all_the_same(redis_broker: Broker, worker: StartWorker, load_app: LoadApp) -> None:
    """Producers may still route to them, and runs may have been handed over just before."""
    worker(redis_broker, APP, env=env("off"))
    jobs = load_app(redis_broker, APP)
    assert jobs.high.delay(note=1).get(timeout=30) == 1
    assert jobs.exclusive.apply_async(kwargs={"note": 2}, priority="critical").get(timeout=30) == 2
    handed_over = {HEADER: {"grant": "5", "exchange": "", "routing_key": "celery"}}
    result = jobs.where.apply_async(queue="default.granted", headers=handed_over)
    assert result.get(timeout=30) == ["", "celery"]


def test_off_the_queues_chosen_with_q_are_kept_to(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    worker(redis_broker, APP, queues=["celery"], env=env("off"))
    jobs = load_app(redis_broker, APP)
    jobs.high.delay()
    jobs.exclusive.delay().get(timeout=30)
    stays(lambda: not history.started(NAME("high")), 0.3)


def test_off_needs_no_redis_at_all(
    rabbit_server: RabbitServer,
    rabbit_url: str,
    redis_server: RedisServer,
    worker: StartWorker,
    load_app: LoadApp,
    history: History,
) -> None:
    broker = Broker("rabbitmq", rabbit_url, "disabled://", "", redis_server, rabbit_server)
    redis_server.kill()
    worker(broker, APP, env=env("off"))
    jobs = load_app(broker, APP, env=env("off"))
    jobs.exclusive.delay()
    jobs.high.delay()
    until(lambda: {event.job for event in history.ended()} == {NAME("exclusive"), NAME("high")})

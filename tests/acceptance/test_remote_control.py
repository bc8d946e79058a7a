"""Celery's own remote control, and the tools that read it, treat queues and runs of jobs like others."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from support.history import History
from support.invariants import status_of, waiting
from support.proxy import DroppingProxy
from support.wait import stays, until
from support.workers import Broker, WorkerProcess

APP = "support.apps.configured"

StartWorker = Callable[..., WorkerProcess]
LoadApp = Callable[..., ModuleType]


def conf(**settings: Any) -> dict[str, str]:
    return {"TEST_CONF": json.dumps(settings)}


def active_queues(jobs: ModuleType) -> dict[str, list[str]]:
    """By the worker's short name."""
    said = jobs.app.control.inspect(timeout=2).active_queues() or {}
    return {name.partition("@")[0]: sorted(queue["name"] for queue in found) for name, found in said.items()}


def served(jobs: ModuleType) -> list[str]:
    """By the ledger's record of the only worker."""
    [found] = status_of(jobs.app).workers
    return sorted(found.queues)


# -- queues


def test_remote_control_lists_cancels_and_adds_the_pools_queues(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    worker(broker, APP)
    jobs = load_app(broker, APP)
    all_of_them = ["celery", "default.granted", "default.high", "default.low"]
    [(name, found)] = until(lambda: active_queues(jobs)).items()
    assert found == all_of_them, "the queues that jobs are sent to, and no more"
    assert served(jobs) == all_of_them

    jobs.app.control.cancel_consumer("default.high")
    until(lambda: active_queues(jobs) == {name: ["celery", "default.granted", "default.low"]})
    until(lambda: served(jobs) == ["celery", "default.granted", "default.low"])
    held = jobs.high.delay(note="held")
    assert jobs.low.delay(note="low").get(timeout=30) == "low"
    stays(lambda: not held.ready(), 2)  # and it does not count as a queue that has come into use

    jobs.app.control.add_consumer("default.high")
    assert held.get(timeout=30) == "held"
    until(lambda: served(jobs) == all_of_them)

    jobs.app.control.cancel_consumer("default.granted")
    until(lambda: active_queues(jobs) == {name: ["celery", "default.high", "default.low"]})
    jobs.app.control.add_consumer("images.low")  # with it, runs of its pool may be handed over here
    until(lambda: "images.granted" in served(jobs))
    assert jobs.image.delay(note="image").get(timeout=30) == "image"


def test_a_queue_that_gets_its_first_run_later_is_served(
    broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    jobs = load_app(broker, APP)
    early = jobs.free.apply_async(kwargs={"note": "early"}, priority="critical")  # before any worker is alive
    process = worker(broker, APP)
    assert early.get(timeout=30) == "early"
    until(lambda: "default.critical" in served(jobs))
    later = jobs.free.apply_async(kwargs={"note": "later"}, priority="normal")
    assert later.get(timeout=30) == "later"
    process.wait_for_log("Queue default.critical has come into use")


def test_quorum_queues_are_quorum_queues_throughout(
    rabbitmq_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    env = conf(task_default_queue_type="quorum", task_default_exchange_type="topic", task_default_routing_key="celery")
    process = worker(rabbitmq_broker, APP, concurrency=1, env=env)
    worker(rabbitmq_broker, APP, name="images", concurrency=1, queues=["images.low"], env=env)
    jobs = load_app(rabbitmq_broker, APP, env=env)
    first = jobs.exclusive.delay(until=str(tmp_path / "go"))
    until(history.started)
    second = jobs.exclusive.apply_async(kwargs={"note": "second"}, priority="high")
    (tmp_path / "go").touch()
    assert (first.get(timeout=30), second.get(timeout=30)) == (None, "second")
    assert jobs.image.apply_async(kwargs={"note": "image"}, countdown=1).get(timeout=30) == "image"
    queues = [q for found in jobs.app.control.inspect(timeout=2).active_queues().values() for q in found]
    expected = {"celery", "default.granted", "default.high", "default.low", "images.granted", "images.low"}
    assert {queue["name"] for queue in queues} == expected
    assert all(queue["queue_arguments"] == {"x-queue-type": "quorum"} for queue in queues)
    assert "direct exchange" not in process.log()


# -- runs


def test_inspect_shows_runs_that_wait_in_the_ledger(
    redis_broker: Broker,
    proxy: DroppingProxy,
    worker: StartWorker,
    load_app: LoadApp,
    history: History,
    tmp_path: Path,
) -> None:
    """Each run is reported by one worker, in Celery's own form; and a slow Redis does not delay Celery's own answer."""
    env = {"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0)}
    workers = [worker(redis_broker, APP, name=name, concurrency=1, env=env) for name in ("one", "two")]
    jobs = load_app(redis_broker, APP)
    running = jobs.exclusive.delay(until=str(tmp_path / "go"))
    until(history.started)
    held = jobs.exclusive.apply_async(args=(0, "held"))
    later = jobs.free.apply_async(kwargs={"note": "later"}, countdown=600)
    until(lambda: (status_of(jobs.app).waiting, status_of(jobs.app).later) == (1, 1))
    inspect = jobs.app.control.inspect(timeout=5, limit=len(workers))

    def told(answers: dict[str, list[Any]] | None) -> list[Any]:
        assert set(answers or {}) == {process.hostname for process in workers}
        return [one for found in (answers or {}).values() for one in found]

    [info] = told(inspect.reserved())
    assert (info["id"], info["name"], info["args"]) == (held.id, jobs.exclusive.name, "(0, 'held')")
    assert info["delivery_info"]["routing_key"] == "celery"
    [scheduled] = told(inspect.scheduled())
    assert scheduled["request"]["id"] == later.id
    assert 500 < datetime.fromisoformat(scheduled["eta"]).timestamp() - time.time() < 600
    asked = inspect.query_task([held.id, later.id, running.id, "none"])
    states = [(id, state) for found in asked.values() for id, (state, _) in found.items()]
    assert sorted(states) == sorted([(held.id, "reserved"), (later.id, "scheduled"), (running.id, "active")])

    proxy.delay(2)
    until(lambda: told(inspect.reserved()) == [])
    assert [info["id"] for info in told(inspect.active())] == [running.id]
    proxy.delay(0)
    until(lambda: [info["id"] for info in told(inspect.reserved())] == [held.id])
    (tmp_path / "go").touch()
    assert held.get(timeout=20) == "held"
    until(lambda: told(inspect.reserved()) == [])


# -- events


def test_every_run_is_received_once(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, tmp_path: Path
) -> None:
    """Also runs that wait, are published again, and are shared among busy workers."""
    env = conf(worker_send_task_events=True)
    worker(redis_broker, APP, name="other", concurrency=1, queues=["elsewhere"], env=env)
    worker(redis_broker, APP, name="one", concurrency=1, env=env)
    worker(redis_broker, APP, name="two", concurrency=1, env=env)
    jobs = load_app(redis_broker, APP)
    events: list[tuple[str, str]] = []
    with jobs.app.connection_for_read() as connection:
        receiver = jobs.app.events.Receiver(
            connection, handlers={"*": lambda event: events.append((event["type"], event.get("uuid", "")))}
        )
        with receiver.consumer_context() as (connection_, *_):
            gate = tmp_path / "go"
            runs: list[Any] = []

            def heard() -> bool:
                with contextlib.suppress(TimeoutError):
                    connection_.drain_events(timeout=0.5)
                return {run.id for run in runs} <= {id for type, id in events if type == "task-succeeded"}

            until(lambda: heard() and events, 30, "a heartbeat: from now on all is heard")
            first = jobs.exclusive.apply_async(kwargs={"until": str(gate)}, queue="elsewhere")
            until(history.started)
            runs += [jobs.exclusive.delay(0.3) for _ in range(6)] + [jobs.keyed.delay("a", 0.1) for _ in range(4)]
            runs += [jobs.free.apply_async((0.3,), countdown=1) for _ in range(4)]
            until(lambda: waiting(jobs.app) >= 6)
            gate.touch()
            until(heard, 60)
            end = time.monotonic() + 2
            while time.monotonic() < end:  # late copies
                heard()
    received = [id for type, id in events if type == "task-received"]
    assert sorted(received) == sorted(run.id for run in [first, *runs])

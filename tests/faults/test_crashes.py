"""A task that only inherits is run as often as in Celery: once, however its process or its worker ends. The run has
failed, with Celery's WorkerLostError. It is in the history, and is kept as a dead letter."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from celery.exceptions import WorkerLostError

from celery_orchestration.operate import Orchestration
from support.invariants import status_of
from support.stage import Stage
from support.wait import stays, until
from support.workers import WorkerProcess

APP = "support.apps.drain"


@pytest.fixture
def stage(stage_on, redis_broker) -> Stage:
    return stage_on(redis_broker, APP)


def is_draining(stage: Stage) -> bool:
    return any(worker.state == "draining" for worker in status_of(stage.app).workers)


def kill_process(stage: Stage, process: WorkerProcess, pid: int) -> None:
    process.kill_child(pid)


def kill_worker(stage: Stage, process: WorkerProcess, pid: int) -> None:
    process.kill()


def kill_draining_worker(stage: Stage, process: WorkerProcess, pid: int) -> None:
    process.signal(signal.SIGTERM)
    until(lambda: is_draining(stage))
    process.kill()


def let_drain_seconds_pass(stage: Stage, process: WorkerProcess, pid: int) -> None:
    process.signal(signal.SIGTERM)


def shut_down_cold(stage: Stage, process: WorkerProcess, pid: int) -> None:
    process.signal(signal.SIGTERM)
    time.sleep(0.3)
    process.signal(signal.SIGQUIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "end"),
    [
        ("prefork", kill_process),
        ("prefork", kill_worker),
        ("prefork", kill_draining_worker),
        ("prefork", let_drain_seconds_pass),
        ("prefork", shut_down_cold),
        ("threads", kill_worker),
        ("threads", let_drain_seconds_pass),
    ],
)
def test_a_task_without_written_options_is_run_once(
    stage: Stage, pool: str, end: Callable[[Stage, WorkerProcess, int], None]
) -> None:
    drains = {"TEST_DRAIN": "1"} if end is let_drain_seconds_pass else {}
    doomed = stage.worker(pool, env=drains)
    lost = stage.send(stage.jobs.held_free, "lost", link_error=stage.jobs.noted.si("errback"))
    pid = stage.started(lost).start.pid
    stage.worker(pool, env=drains)
    end(stage, doomed, pid)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=30)
    until(lambda: [event.note for event in stage.history.started(stage.jobs.noted.name)] == [["errback"]])
    stays(lambda: len(stage.starts(lost)) == 1, 0.5)

    orchestration = Orchestration(stage.app)
    (letter,) = until(lambda: orchestration.dead_letters(stage.jobs.held_free.name))
    assert letter.id == lost.id
    assert [(run.id, run.outcome) for run in orchestration.history(stage.jobs.held_free.name)] == [(lost.id, "crashed")]
    stage.release("lost")
    assert orchestration.requeue(lost.id).runs == {lost.id: lost.id}
    stage.started(lost, 2)
    until(lambda: orchestration.dead_letters() == [] and not status_of(stage.app).runs)

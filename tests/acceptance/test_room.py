"""Room is free when the code is gone, not when its end was announced; and a run that lost its lease is void.

User code continues for a moment after a time limit, a revoke or a lost lease was announced. In these tests it continues
for longer, and records how long it lived.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery.result import AsyncResult

from celery_orchestration.operate import Orchestration
from support.history import Event
from support.invariants import all_ended, status_of
from support.stage import FAULTS, Stage
from support.wait import stays, until
from support.workers import Broker

ROOM = "support.apps.room"
NAME = f"{ROOM}.{{}}".format


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, ROOM)


def all_well(stage: Stage, **options: Any) -> None:
    """Checks the invariants. Killed code ended when it was last seen alive."""
    stage.workers[0].deaths.update(stage.jobs.lives(stage.scratch))
    stage.all_well(**options)


def callbacks(stage: Stage) -> dict[str, Any]:
    return {"link": stage.jobs.noted.si("link"), "link_error": stage.jobs.blamed.s()}


def called_back(stage: Stage) -> list[Event]:
    return [*stage.history.started(f"{FAULTS}.noted"), *stage.history.started(NAME("blamed"))]


def endured(stage: Stage, result: AsyncResult) -> bool:
    return (stage.scratch / f"endured-{result.id}").exists()


# -- time limits


def test_a_run_over_its_hard_limit_keeps_its_room_until_its_process_is_gone(stage):
    """Its code ignores both the soft limit and SIGTERM."""
    for _ in range(2):
        stage.worker()
    deaf = stage.send(stage.jobs.deaf, **callbacks(stage))
    first = stage.started(deaf)
    waits = [stage.send(stage.jobs.deaf, 0) for _ in range(2)]
    stage.wait_waiting(2)
    assert isinstance(deaf.get(timeout=30, propagate=False), TimeLimitExceeded)
    assert [result.get(timeout=30) for result in waits] == ["in time"] * 2
    all_well(stage)
    assert first.start.monotonic + 1 < stage.jobs.lives(stage.scratch)[first.start.pid]
    assert {event.note for event in called_back(stage)} == {deaf.id}
    assert not endured(stage, deaf)


@pytest.mark.slow
def test_a_run_that_goes_back_to_the_broker_at_its_time_limit_is_gone_before_it_comes_again(stage):
    """With acks_late and without acks_on_failure_or_timeout."""
    for _ in range(2):
        stage.worker()
    requeued = stage.send(stage.jobs.deaf_once)
    first = stage.started(requeued)
    waits = stage.send(stage.jobs.deaf_once)
    stage.wait_waiting(1)
    second = stage.started(requeued, 2)
    assert second.start.monotonic > stage.jobs.lives(stage.scratch)[first.start.pid] > first.start.monotonic + 1
    until(lambda: len(stage.starts(waits)) == 2)
    all_well(stage)


@pytest.mark.slow
def test_a_run_that_cleans_up_after_its_soft_limit_keeps_its_room_and_is_not_retried(stage):
    """Although a recurring job is retried on any exception."""
    stage.worker()
    over = stage.send(stage.jobs.tidy)
    stage.started(over)
    waits = stage.send(stage.jobs.tidy, 0)
    stage.wait_waiting(1)
    assert isinstance(over.get(timeout=30, propagate=False), SoftTimeLimitExceeded)
    assert waits.get(timeout=30) == "in time"
    all_well(stage)
    stage.ran_once([over, waits])


# -- revoke(terminate=True)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=pytest.mark.slow)])
def test_a_terminated_run_keeps_its_room_until_its_code_is_gone(stage, pool):
    for _ in range(2):
        stage.worker(pool)
    terminated = stage.send(stage.jobs.enduring, **callbacks(stage))
    stage.started(terminated)
    next_one = stage.send(stage.jobs.enduring, 0)
    stage.wait_waiting(1)
    terminated.revoke(terminate=True)
    until(lambda: terminated.state == "REVOKED", 30, "that is announced at once")
    assert not endured(stage, terminated)
    stage.started(next_one)
    assert endured(stage, terminated)
    next_one.revoke(terminate=True)
    all_well(stage)
    stage.ran_once(stage.sent)


def test_a_run_is_killed_with_the_signal_that_was_asked_for(stage):
    stage.worker()
    killed = stage.send(stage.jobs.enduring, 60, **callbacks(stage))
    first = stage.started(killed)
    waits = stage.send(stage.jobs.deaf, 0)
    next_one = stage.send(stage.jobs.enduring, 60)
    stage.wait_waiting(1)
    killed.revoke(terminate=True, signal="SIGKILL")
    stage.started(next_one)
    next_one.revoke(terminate=True, signal="SIGKILL")
    all_well(stage)
    assert [result.state for result in (killed, waits, next_one)] == ["REVOKED", "SUCCESS", "REVOKED"]
    assert first.start.pid in stage.jobs.lives(stage.scratch)
    assert called_back(stage) == []
    stage.ran_once([killed, next_one])


def test_a_run_that_its_execution_pool_cannot_terminate_keeps_its_room(stage):
    """Threads: it runs to its end."""
    stage.worker("threads")
    running = stage.send(stage.jobs.held, "running")
    stage.started(running)
    waits = stage.send(stage.jobs.held, "running")
    stage.wait_waiting(1)
    running.revoke(terminate=True)
    # Commands are executed in order: when this one was answered, the revoke had arrived.
    assert stage.app.control.ping(timeout=2, destination=[stage.workers[0].hostname])
    assert stage.starts(waits) == []
    assert status_of(stage.app).waiting == 1
    stage.release("running")
    stage.all_well()
    stage.ran_once([running, waits])


# -- a lost lease


def void_runs(stage: Stage, *kinds: str) -> tuple[dict[str, AsyncResult], set[str]]:
    """Runs of these jobs that continued to their end after their lease was lost; other runs of them have started since.

    Their main process was stopped, so that nobody could notify them. It does not serve the queue to which they might
    send something, so that such a message would be noticed. Returns their results and the void executions.
    """
    zombie = stage.worker(concurrency=len(kinds), queues=["own"])
    runs = {kind: stage.send(getattr(stage.jobs, kind), queue="own", **callbacks(stage)) for kind in kinds}
    firsts = {kind: stage.started(result) for kind, result in runs.items()}
    stage.worker(concurrency=len(kinds) + 1, queues=["own", "celery"])
    zombie.pause(whole=False)
    for kind, result in runs.items():
        stage.started(result, 2)
        (stage.scratch / f"{kind}.{firsts[kind].start.pid}").touch()
    until(lambda: all(stage.starts(result)[0].end for result in runs.values()), message="the void ones end")

    def nothing_came_of_them() -> bool:
        untouched = {result.state for result in runs.values()} == {"PENDING"}
        return untouched and not called_back(stage) and status_of(stage.app).waiting == 0

    stays(nothing_came_of_them, 0.7)
    zombie.resume()
    until(lambda: len(status_of(stage.app).workers) == 2, message="it is back")
    for kind in kinds:
        stage.release(kind)
    all_ended(runs.values())
    return runs, {first.start.execution for first in firsts.values()}


@pytest.mark.slow
def test_a_void_run_stores_nothing_and_calls_nobody(stage):
    """Whether it returns, raises or retries."""
    runs, void = void_runs(stage, "returning", "raising", "retrying")
    fences = {kind: [span.start.fence for span in stage.starts(result)] for kind, result in runs.items()}
    assert runs["returning"].result == fences["returning"][1]
    assert runs["raising"].result.args == (fences["raising"][1],)
    assert runs["retrying"].result == fences["retrying"][2]
    assert [span.start.attempt for span in stage.starts(runs["retrying"])] == [0, 0, 1]
    all_well(stage, void=void)
    until(lambda: len(called_back(stage)) >= 3)
    assert [event.note for event in called_back(stage)] == [["link"], ["link"], runs["raising"].id]


@pytest.mark.slow
def test_a_void_run_does_not_replace_itself(stage):
    runs, void = void_runs(stage, "replacing")
    all_well(stage, void=void)
    fence = stage.starts(runs["replacing"])[1].start.fence
    assert [event.note for event in called_back(stage)] == [["replacement", fence], ["link"]]


@pytest.mark.slow
def test_a_void_run_that_ignores_signals_stores_nothing(stage):
    """The first heartbeat after the loss voids it; it continues for a while and then succeeds."""
    zombie = stage.worker()
    lost = stage.send(stage.jobs.enduring, 1, **callbacks(stage))
    first = stage.started(lost)
    waits = stage.send(stage.jobs.enduring, 0)
    stage.wait_waiting(1)
    stage.worker()
    zombie.pause(whole=False)
    second = stage.started(lost, 2)
    zombie.resume()
    until(lambda: stage.starts(lost)[0].end, message="it was told")
    stays(lambda: lost.state == "PENDING" and not stage.starts(waits) and not called_back(stage), 0.5)
    os.kill(second.start.pid, signal.SIGTERM)
    assert lost.get(timeout=30) == "anyway"
    stage.started(waits)
    waits.revoke(terminate=True)
    all_well(stage, void={first.start.execution})


@pytest.mark.slow
def test_a_run_that_begins_when_its_lease_is_lost_already_stores_nothing(stage):
    """Its process did not begin it in time. When it does, the run is short, but was admitted long ago."""
    zombie = stage.worker(concurrency=1)
    [child] = zombie.children()
    os.kill(child, signal.SIGSTOP)
    lost = stage.send(stage.jobs.returning, **callbacks(stage))
    until(lambda: [run.id for run in status_of(stage.app).runs if run.state == "running"] == [lost.id])
    zombie.pause(whole=False)
    stage.worker()
    second = stage.started(lost)
    (stage.scratch / f"returning.{child}").touch()
    os.kill(child, signal.SIGCONT)
    # It may or may not begin at all.
    until(lambda: any(f"{lost.id}] {word}" in zombie.log() for word in ("succeeded", "ignored")))
    stays(lambda: lost.state == "PENDING" and not called_back(stage), 0.5)
    zombie.resume()
    stage.release("returning")
    assert lost.get(timeout=30) == second.start.fence
    stage.all_well(void={span.start.execution for span in stage.starts(lost) if span.start.pid == child})


def test_a_waiting_run_that_is_cancelled_has_ended_at_once(stage_on, redis_broker):
    """Not only with the next sweep, which is minutes away."""
    stage = stage_on(redis_broker)
    stage.worker(env={"TEST_LEASE": "1200", "TEST_SWEEP": "200"})
    running = stage.send(stage.jobs.held, "run")
    stage.started(running)
    waits = stage.send(stage.jobs.held, "run")
    stage.wait_waiting(1)
    assert Orchestration(stage.app).cancel(waits.id).cancelled
    until(lambda: waits.state == "REVOKED", 30, "Celery knows")
    stage.release("run")
    stage.all_well()
    assert not stage.starts(waits)

"""An error of one run does not affect the others."""

from __future__ import annotations

import pytest

from celery_orchestration.ledger.records import key_of
from support.invariants import status_of, waiting
from support.stage import Stage
from support.wait import until

APP = "support.apps.trouble"


@pytest.fixture
def stage(stage_on, redis_broker) -> Stage:
    return stage_on(redis_broker, APP)


@pytest.mark.slow
def test_a_run_that_dies_with_its_worker_calls_its_errbacks_and_the_others_go_on(stage: Stage) -> None:
    doomed = stage.worker()
    lost = stage.send(stage.jobs.fragile, "x", link_error=stage.jobs.blamed.s())
    stage.started(lost)
    other = stage.worker()
    waits = stage.send(stage.jobs.fragile, "y")
    stage.wait_waiting(1)
    doomed.kill()
    stage.release("y")
    waits.get(timeout=30)
    until(lambda: [event.note for event in stage.history.started(f"{APP}.blamed")] == [lost.id])
    assert lost.state == "FAILURE"
    assert "Cannot hand over" not in other.log()


@pytest.mark.slow
def test_a_retry_that_expired_before_it_came_leaves_nothing_behind(stage: Stage) -> None:
    for _ in range(2):
        stage.worker(concurrency=4)
    for _ in range(8):
        stage.send(stage.jobs.expiring, 0.7, expires=0.6)
    until(lambda: len({event.run for event in stage.history.ended(f"{APP}.expiring")}) >= 4)
    stage.send(stage.jobs.after_expiring).get(timeout=30)
    # The results are not checked: Celery may store RETRY after REVOKED, with plain tasks as well.
    until(lambda: stage.ledger.keys(key_of("{faults}:", "run", "*")) == [])


@pytest.mark.parametrize("bad", ["priority", "key"])
def test_a_message_that_the_gate_cannot_be_asked_about_fails_alone(stage: Stage, bad: str) -> None:
    process = stage.worker(concurrency=1)
    jobs = stage.jobs
    if bad == "priority":
        result = stage.app.send_task(jobs.free.name, headers={"orchestration_priority": "urgent"}, queue="celery")
        with pytest.raises(ValueError, match="urgent"):
            result.get(timeout=30)
    else:
        assert jobs.keyed.delay("\ud800").get(timeout=30) == "keyed"
    assert jobs.free.delay(0, "after it").get(timeout=30) == "after it"
    assert process.running
    assert "Unrecoverable" not in process.log()


def test_hundreds_of_fetched_messages_that_have_to_wait_are_no_trouble(stage: Stage) -> None:
    process = stage.worker(options=["--prefetch-multiplier", "400"])
    blocker, steady = stage.send(stage.jobs.held, "x"), stage.send(stage.jobs.held_free, "y")
    for result in (blocker, steady):
        stage.started(result)
    with stage.app.producer_or_acquire() as producer:
        for _ in range(400):
            stage.send(stage.jobs.held, "x", producer=producer)
    stage.release("y")
    until(lambda: waiting(stage.app) == 400, 30)
    assert "RecursionError" not in process.log()
    stage.release("x")
    stage.all_well(timeout=60)


@pytest.mark.slow
def test_a_worker_that_stops_under_load_reports_every_outcome(stage: Stage) -> None:
    with stage.app.producer_or_acquire() as producer:
        for _ in range(3000):
            stage.send(stage.jobs.free, 0, producer=producer, ignore_result=True)
    for number in range(1, 7):
        process = stage.worker(concurrency=4, env={"TEST_LEASE": "30"})
        until(lambda number=number: len(stage.history.ended()) >= 150 * number or _idle(stage))
        process.stop(timeout=30)
        log = process.log()
        assert [word for word in ("Traceback", "outcomes are lost", "refused") if word in log] == []
        assert [run for run in status_of(stage.app).runs if run.state == "running"] == []


def _idle(stage: Stage) -> bool:
    return stage.ledger.llen("celery") == 0

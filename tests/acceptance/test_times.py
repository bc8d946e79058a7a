"""Runs that are not due yet wait in the ledger, not in a worker."""

from __future__ import annotations

import time

import pytest

from celery_orchestration.ledger.records import key_of
from support.invariants import status_of
from support.stage import Stage
from support.wait import stays, until


def later_of(stage: Stage) -> int:
    return status_of(stage.app).later


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_call_with_a_countdown_waits_in_the_ledger_and_starts_in_time(stage_on, broker, pool):
    stage = stage_on(broker)
    stage.worker(pool)
    sent = time.time()
    result = stage.send(stage.jobs.free, 0, "later", countdown=1)
    until(lambda: later_of(stage) == 1)
    listed = status_of(stage.app).waits[0]
    assert (listed.id, listed.state) == (result.id, "later")
    assert listed.reason.startswith("not due before ")
    started = stage.started(result).start.wall
    assert started >= sent + 0.99
    assert started < sent + 3  # the bench measures the lateness; here, only that no later sweep was needed
    stage.all_well()
    stage.ran_once([result])


def test_a_worker_keeps_no_message_of_runs_that_are_not_due(stage):
    stage.worker(concurrency=1)
    calls = [stage.send(stage.jobs.free, 0, n, countdown=600) for n in range(50)]
    until(lambda: later_of(stage) == 50)
    broker = stage.broker.redis.client()
    until(lambda: not list(broker.scan_iter("_orchestration.*.store.*")), message="no message is unacknowledged")
    assert stage.send(stage.jobs.free, 0, "now").get(timeout=30) == "now"
    for call in calls:
        call.revoke()
    until(lambda: later_of(stage) == 0)
    stage.all_well()
    assert {call.state for call in calls} == {"REVOKED"}


@pytest.mark.slow
def test_a_killed_worker_loses_none_and_another_starts_them_in_time(stage):
    doomed = stage.worker()
    calls = [stage.send(stage.jobs.free, 0, n, countdown=4) for n in range(30)]
    until(lambda: later_of(stage) == 30)
    doomed.kill()
    stage.worker()
    stage.all_well(timeout=30)
    stage.ran_once(calls)


@pytest.mark.slow
def test_a_visibility_timeout_shorter_than_the_countdown_doubles_nothing(stage_on, redis_broker):
    """Plain Celery starts such a task once for each delivery of the broker."""
    stage = stage_on(redis_broker, env={"TEST_VISIBILITY": "1"})
    stage.worker()
    stage.worker()
    calls = [stage.send(stage.jobs.free, 0, n, countdown=4) for n in range(10)]
    retried = stage.send(stage.jobs.flaky, 1, 3)
    stage.all_well(timeout=30)
    stage.ran_once(calls)
    assert len(stage.starts(retried)) == 2


def test_a_retry_frees_its_room_while_it_waits(stage):
    stage.worker()
    retried = stage.send(stage.jobs.flaky, 1, 2)
    stage.started(retried)
    until(lambda: later_of(stage) == 1)
    other = stage.send(stage.jobs.flaky, 0)
    assert other.get(timeout=30) == 0
    assert len(stage.starts(retried)) == 1, "the other one ran while it waited"
    assert retried.get(timeout=30) == 1
    stage.all_well()


def test_a_job_that_waits_to_be_tried_again_is_busy_for_its_dependents(stage_on, redis_broker):
    stage = stage_on(redis_broker)
    stage.worker()
    stage.send(stage.jobs.flaky, 0).get(timeout=30)
    retried = stage.send(stage.jobs.flaky, 1, 2)
    until(lambda: later_of(stage) == 1)
    follows = stage.send(stage.jobs.after_flaky)
    stage.wait_waiting(1)
    assert retried.get(timeout=30) == 1
    follows.get(timeout=30)
    assert stage.starts(follows)[0].start.monotonic > stage.starts(retried)[1].end.monotonic
    stage.all_well()


@pytest.mark.slow
def test_a_retry_whose_message_got_lost_is_sent_again(stage):
    process = stage.worker(env={"TEST_LOSE_RETRIES": "1"})
    result = stage.send(stage.jobs.flaky, 1)
    stage.started(result)
    until(lambda: not stage.history.running())
    until(lambda: [run.state for run in status_of(stage.app).runs] == ["retrying"], message="listed as retrying")
    stays(lambda: len(stage.starts(result)) == 1, 0.5)
    stage.ledger.zadd(key_of(stage.prefix, "deadlines"), {result.id: 0}, xx=True)  # a minute later
    assert result.get(timeout=30) == 1
    assert "did not arrive: it is sent again" in process.log()
    stage.all_well()


def test_in_observe_mode_start_times_are_kept_too(stage_on, redis_broker):
    stage = stage_on(redis_broker, env={"CELERY_ORCHESTRATION_MODE": "observe"})
    stage.worker()
    sent = time.time()
    result = stage.send(stage.jobs.exclusive, 0, "later", countdown=0.5)
    assert stage.started(result).start.wall >= sent + 0.49
    stage.all_well()


def test_without_orchestration_the_timer_is_celerys(stage_on, redis_broker):
    stage = stage_on(redis_broker, env={"CELERY_ORCHESTRATION_MODE": "off"})
    stage.worker()
    sent = time.time()
    result = stage.send(stage.jobs.free, 0, "later", countdown=0.5)
    assert result.get(timeout=30) == "later"
    assert stage.started(result).start.wall >= sent + 0.49


def test_a_rate_limited_job_with_a_time_keeps_both(stage):
    stage.worker(concurrency=4)
    sent = time.time()
    results = [stage.send(stage.jobs.limited, n, countdown=0.5) for n in range(3)]
    assert [result.get(timeout=30) for result in results] == [0, 1, 2]
    starts = sorted(stage.started(result).start.wall for result in results)
    assert starts[0] >= sent + 0.49
    assert starts[2] - starts[0] >= 0.3, "at most five a second"
    stage.all_well()


@pytest.mark.slow
def test_runs_that_come_due_one_after_the_other_each_start_in_time(stage):
    """Nothing else happens in the meantime, and the next sweep is ten seconds away."""
    stage.worker(env={"TEST_LEASE": "60", "TEST_SWEEP": "30"})
    until(lambda: status_of(stage.app).workers)
    sent = time.time()
    calls = {delay: stage.send(stage.jobs.free, 0, "later", countdown=delay) for delay in (3.0, 1.0, 2.0, 2.5, 1.5)}
    for delay, call in calls.items():
        assert sent + delay <= stage.started(call).start.wall + 0.01
        assert stage.started(call).start.wall < sent + delay + 1.5
    stage.all_well()

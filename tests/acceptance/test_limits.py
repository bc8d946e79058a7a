"""Time limits on every execution pool. A run that cannot be interrupted ends as failed when its time is over, once. Its
room is free when its code has returned, and the result of the code is then refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded
from celery.result import AsyncResult

from celery_orchestration.operate import JobStatus, Orchestration, RunStatus
from support.history import Event
from support.invariants import status_of
from support.proxy import DroppingProxy
from support.stage import FAULTS, Stage
from support.verbs import asked, make_known
from support.wait import stays, until
from support.workers import Broker, run_celery

LIMITS = "support.apps.limits"
NAME = f"{LIMITS}.{{}}".format


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, LIMITS)


def send(stage: Stage, kind: str, name: str, **options: Any) -> AsyncResult:
    callbacks = {"link": stage.jobs.noted.si("link"), "link_error": stage.jobs.blamed.s()}
    limits = {} if kind in ("patient", "celerys") else {"time_limit": 1, "soft_time_limit": 0.5}
    return stage.send(getattr(stage.jobs, kind), name, **callbacks, **limits | options)


def called_back(stage: Stage) -> list[Event]:
    return [*stage.history.started(f"{FAULTS}.noted"), *stage.history.started(NAME("blamed"))]


def said(stage: Stage, what: str, result: AsyncResult) -> list[str]:
    """The arguments of each call of the hook or the signal."""
    path = stage.scratch / f"{what}-{result.id}"
    return path.read_text().split() if path.exists() else []


def running(stage: Stage, result: AsyncResult) -> RunStatus | None:
    return next((run for run in status_of(stage.app).runs if run.id == result.id), None)


def job(stage: Stage, kind: str) -> JobStatus:
    return next(job for job in status_of(stage.app).jobs if job.name == NAME(kind))


def is_timed_out(stage: Stage, result: AsyncResult) -> RunStatus | None:
    found = running(stage, result)
    return found if found and found.timed_out else None


# -- threads


def test_a_thread_over_its_limit_has_failed_and_keeps_its_room_until_it_returns(stage):
    stage.worker("threads", concurrency=4)
    over = send(stage, "returning", "over")
    first = stage.started(over)
    waits = send(stage, "returning", "waits")
    stage.wait_waiting(1)
    with pytest.raises(TimeLimitExceeded):
        over.get(timeout=30)
    assert time.monotonic() > first.start.monotonic + 0.7  # its clock began a moment before
    shown = until(lambda: is_timed_out(stage, over))
    assert (shown.state, shown.fence) == ("running", first.start.fence)
    until(lambda: [event.note for event in called_back(stage)] == [over.id])
    assert said(stage, "failure", over) == said(stage, "hook", over) == ["TimeLimitExceeded"]
    [why] = [run.reason for run in status_of(stage.app).waits]
    assert "past its time limit" in why
    assert "timed out" in run_celery(LIMITS, "orchestration", "status", broker=stage.broker, env=stage.env).stdout
    # Its message is acknowledged, and its code continues: no other run gets its room.
    stays(lambda: not stage.starts(waits) and stage.starts(over)[0].end is None, 0.5)
    assert job(stage, "returning").failures == 0
    stage.release("over")
    second = stage.started(waits)
    assert second.start.monotonic > stage.starts(over)[0].end.monotonic
    assert until(lambda: job(stage, "returning").failures) == 1
    assert "TimeLimitExceeded" in job(stage, "returning").last_error
    stage.release("waits")
    assert waits.get(timeout=30) == second.start.fence
    stage.all_well()
    assert isinstance(over.result, TimeLimitExceeded)
    until(lambda: len(called_back(stage)) == 2)
    until(lambda: sorted(str(event.note) for event in called_back(stage)) == sorted([over.id, "['link']"]))
    assert said(stage, "failure", over) == said(stage, "hook", over) == ["TimeLimitExceeded"]
    assert job(stage, "returning").failures == 0
    stage.ran_once([over, waits])


@pytest.mark.parametrize("kind", ["raising", "retrying", "retried", "replacing"])
def test_whatever_late_code_does_is_refused(stage, kind):
    process = stage.worker("threads", concurrency=4)
    over = send(stage, kind, "over")
    assert isinstance(over.get(timeout=30, propagate=False), TimeLimitExceeded)
    until(lambda: called_back(stage))
    stage.release("over")
    stage.all_well()
    stays(lambda: isinstance(over.result, TimeLimitExceeded), 0.3)
    assert [event.note for event in called_back(stage)] == [over.id]
    assert said(stage, "failure", over) == said(stage, "hook", over) == ["TimeLimitExceeded"]
    assert job(stage, kind).last_outcome == "failed"
    assert "TimeLimitExceeded" in job(stage, kind).last_error
    assert job(stage, kind).failures == 1
    stage.ran_once([over])
    assert "could not handle that" not in process.log()


def test_celerys_own_limits_are_enforced_too_of_a_job_and_of_a_call(stage):
    """Stock Celery ignores them on threads."""
    process = stage.worker("threads", concurrency=4)
    over = [send(stage, "celerys", "over"), send(stage, "unlimited", "over")]
    assert all(isinstance(result.get(timeout=30, propagate=False), TimeLimitExceeded) for result in over)
    assert f"A call of job {NAME('unlimited')} has a soft time limit (0.5 s)" in process.log()
    stage.release("over")
    stage.all_well()


def test_a_thread_that_returns_in_time_is_left_alone(stage):
    stage.worker("threads")
    for _ in range(3):
        result = send(stage, "returning", "at once")
        stage.release("at once")
        assert result.get(timeout=30) == stage.started(result).start.fence
    stays(lambda: job(stage, "returning").failures == 0, 1.2)
    stage.all_well()
    until(lambda: [event.note for event in called_back(stage)] == [["link"]] * 3)


def test_the_limits_of_a_call_win(stage):
    stage.worker("threads", concurrency=4)
    longer, shorter = send(stage, "returning", "longer", time_limit=30), send(stage, "patient", "shorter", time_limit=1)
    assert isinstance(shorter.get(timeout=30, propagate=False), TimeLimitExceeded)
    until(lambda: time.monotonic() > stage.started(longer).start.monotonic + 1.5)
    for name in ("longer", "shorter"):
        stage.release(name)
    assert longer.get(timeout=30) == stage.started(longer).start.fence
    stage.all_well()


def test_a_thread_whose_message_goes_back_at_its_time_limit_has_returned_before_it_comes_again(stage):
    """With acks_late and without acks_on_failure_or_timeout."""
    stage.worker("threads", concurrency=4)
    over = send(stage, "back_to_the_broker", "over")
    stage.started(over)
    until(lambda: is_timed_out(stage, over))
    stays(lambda: over.state == "PENDING" and len(stage.starts(over)) == 1, 0.5)
    stage.release("over")
    second = stage.started(over, 2)
    assert second.start.monotonic > stage.starts(over)[0].end.monotonic
    assert over.get(timeout=30) == second.start.fence
    stage.all_well()


@pytest.mark.slow
def test_a_run_that_had_timed_out_when_its_worker_died_is_not_run_again(stage):
    """Celery knows that it failed."""
    doomed = stage.worker("threads")
    over = send(stage, "returning", "over")
    until(lambda: is_timed_out(stage, over))
    waits = send(stage, "returning", "waits")
    stage.wait_waiting(1)
    stage.worker("threads")
    doomed.kill()
    stage.started(waits)
    stage.release("waits")
    stage.all_well()
    assert isinstance(over.result, TimeLimitExceeded)
    stage.ran_once([over, waits])
    until(lambda: sorted(str(event.note) for event in called_back(stage)) == sorted([over.id, "['link']"]))


def test_a_timeout_is_reported_again_if_the_reply_is_lost(stage, proxy: DroppingProxy):
    make_known(stage.ledger, "time_out")
    lost = proxy.lose_reply(asked("time_out"), times=3)
    stage.worker("threads", env={"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0)})
    over = send(stage, "returning", "over")
    until(lambda: is_timed_out(stage, over))
    until(lambda: len(lost.lost) == 3)
    stage.release("over")
    stage.all_well()
    assert job(stage, "returning").failures == 1


def test_timeouts_count_like_other_failures(stage):
    stage.worker("threads")
    for name in ("one", "two"):
        over = send(stage, "returning", name)
        until(lambda over=over: is_timed_out(stage, over))
        stage.release(name)
    disabled = until(lambda: job(stage, "returning").disabled)
    assert disabled.why.startswith("2 failures in a row, the last: TimeLimitExceeded")


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "prefork", "gevent"])
def test_a_worker_that_stood_still_past_a_limit_and_its_lease_reports_nothing(stage, pool):
    """Another worker has its run. When the first one continues, it sees that the time is over, and may not know yet
    that its lease was lost."""
    zombie = stage.worker(pool)
    result = send(stage, "hearing", "over", time_limit=6, soft_time_limit=100)
    first = stage.started(result)
    stage.worker("threads")
    zombie.pause()
    second = stage.started(result, 2)
    until(lambda: time.monotonic() > first.start.monotonic + 6.2)
    zombie.resume()
    until(lambda: len(status_of(stage.app).workers) == 2, message="it is back")
    stays(lambda: result.state == "PENDING" and not called_back(stage), 1)
    stage.release("over")
    assert result.get(timeout=30) == second.start.fence
    stage.all_well(void={first.start.execution})
    until(lambda: [event.note for event in called_back(stage)] == [["link"]])


# -- solo


def test_on_solo_code_that_returns_too_late_has_failed(stage):
    stage.worker("solo", concurrency=1)
    for kind in ("returning", "raising", "retried", "unlimited"):
        name = f"late-{kind}"
        over = send(stage, kind, name)
        began = stage.started(over).start.monotonic
        until(lambda began=began: time.monotonic() > began + 1.2)
        assert over.state == "PENDING"
        stage.release(name)
        assert isinstance(over.get(timeout=30, propagate=False), TimeLimitExceeded)
        until(lambda kind=kind: job(stage, kind).failures == 1)
        assert "TimeLimitExceeded" in job(stage, kind).last_error
        until(lambda over=over: [event.note for event in called_back(stage)][-1:] == [over.id])
        assert said(stage, "failure", over) == ["TimeLimitExceeded"]
        assert said(stage, "hook", over) == ([] if kind == "unlimited" else ["TimeLimitExceeded"])  # it has none
    in_time = send(stage, "patient", "late-returning")
    assert in_time.get(timeout=30) == stage.started(in_time).start.fence
    stage.all_well()
    stage.ran_once(stage.sent)


# -- gevent, prefork


def test_gevent_interrupts_at_the_hard_limit(stage):
    """Celery itself does so there; it has no soft limit."""
    stage.worker("gevent", concurrency=4)
    over = send(stage, "hearing", "over")
    first = stage.started(over)
    waits = send(stage, "hearing", "waits")
    stage.wait_waiting(1)
    assert isinstance(over.get(timeout=30, propagate=False), TimeLimitExceeded)
    second = stage.started(waits)
    stage.release("waits")
    assert waits.get(timeout=30) == second.start.fence
    stage.all_well()
    end = stage.starts(over)[0].end
    assert end.outcome == "Timeout"
    assert first.start.monotonic + 0.7 < end.monotonic <= second.start.monotonic  # its clock began a moment before
    assert not (stage.scratch / f"soft-{over.id}").exists()
    assert "TimeLimitExceeded" in job(stage, "hearing").last_error
    stage.ran_once([over, waits])


def test_prefork_interrupts_at_the_soft_limit(stage):
    stage.worker()
    over = send(stage, "hearing", "over")
    assert type(over.get(timeout=30, propagate=False)).__name__ == "SoftTimeLimitExceeded"
    assert (stage.scratch / f"soft-{over.id}").exists()
    stage.all_well()


# -- what operators are told


LIMITED = f"({FAULTS}.overlong, {NAME('back_to_the_broker')}, {NAME('celerys')} and 7 more)"


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_log_and_status_say_at_start_that_runs_cannot_be_interrupted(stage, pool):
    process = stage.worker(pool, concurrency=1)
    until(lambda: status_of(stage.app).workers)
    [problem] = status_of(stage.app).problems
    assert problem.startswith(f"execution pool {pool} cannot interrupt a run: a soft time limit has no effect")
    assert problem.endswith(LIMITED)
    assert process.log().count(f"The {problem}") == 1
    out = run_celery(LIMITS, "orchestration", "status", broker=stage.broker, env=stage.env).stdout
    assert f"execution pool {pool} cannot interrupt a run" in out
    ignored = f"execution pool {pool} ignores the time limits of tasks that are no jobs ({NAME('plain_limited')})"
    assert f"The {ignored}" in process.log()
    checks = Orchestration(stage.app).doctor().checks
    assert [check.found for check in checks if check.name == "time limits"] == [problem, ignored]


def test_execution_pools_that_enforce_limits_cause_no_warning(stage):
    process = stage.worker()
    until(lambda: status_of(stage.app).workers)
    assert status_of(stage.app).problems == []
    assert "interrupt" not in process.log()


def test_a_worker_that_serves_none_of_the_limited_jobs_is_no_problem(stage):
    stage.worker()
    process = stage.worker("threads", queues=["other"])
    until(lambda: len(status_of(stage.app).workers) == 2)
    assert status_of(stage.app).problems == []
    assert "interrupt" not in process.log()

"""A worker that cannot renew its lease, with runs of ``on_lease_lost="stop"``.

The process of such a run is gone before another copy starts: every test compares the time at which the first process
was seen dead with the start of the second copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from celery.result import AsyncResult

from celery_orchestration.operate import Orchestration
from support.history import Span
from support.invariants import status_of
from support.processes import ManagedProcess
from support.proxy import DroppingProxy
from support.stage import Stage
from support.wait import stays, until

APP = "support.apps.leases"
LEASE = {"TEST_LEASE": "6"}


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker) -> Stage:
    return stage_on(redis_broker, APP, env=LEASE)


def cut_off_from(proxy: DroppingProxy) -> dict[str, str]:
    return {"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0)}


def is_stopped(worker: ManagedProcess, run: Span, timeout: float = 60) -> None:
    """Waits until its process is gone, and records when that was seen."""
    until(lambda: run.start.pid not in worker.pids(), timeout, "the process of the run is gone", poll=0.005)
    worker.deaths[run.start.pid] = time.monotonic()


def goes_again(stage: Stage, result: AsyncResult, name: str, timeout: float = 60) -> Span:
    second = stage.started(result, 2, timeout)
    stage.release(name)
    assert result.get(timeout=30) == second.start.fence
    stage.all_well(timeout=60)
    return second


@pytest.mark.slow
def test_a_run_is_stopped_before_another_worker_starts_it_when_its_own_is_cut_off(stage, proxy):
    cut_off = stage.worker(env=cut_off_from(proxy))
    result = stage.send(stage.jobs.held, "run")
    first = stage.started(result)
    other = stage.worker()
    proxy.refuse()
    is_stopped(cut_off, first)
    second = goes_again(stage, result, "run")
    assert second.start.worker == other.hostname
    assert "was stopped: no heartbeat of this worker reached the ledger in time" in cut_off.log()
    proxy.accept()
    until(lambda: len(status_of(stage.app).workers) == 2, 30, "the worker takes part again")
    again = stage.send(stage.jobs.held, "run")
    assert again.get(timeout=30)


@pytest.mark.promises
@pytest.mark.timeout(240)
def test_with_the_default_lease_a_run_is_stopped_before_another_worker_starts_it(stage_on, redis_broker, proxy):
    stage = stage_on(redis_broker, APP)
    cut_off = stage.worker(env=cut_off_from(proxy))
    result = stage.send(stage.jobs.held, "run")
    first = stage.started(result)
    stage.worker()
    proxy.refuse()
    is_stopped(cut_off, first)
    goes_again(stage, result, "run", 90)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["held", "holds_interpreter"])
def test_a_run_is_stopped_when_only_the_main_process_of_its_worker_stands_still(stage, job):
    stopped = stage.worker()
    result = stage.send(stage.jobs.app.tasks[f"{APP}.{job}"], "run")
    first = stage.started(result)
    other = stage.worker()
    stopped.pause(whole=False)
    stage.release("run.hold")  # not before: code that holds the interpreter does not notice that the lease is renewed
    is_stopped(stopped, first)
    second = stage.started(result, 2, 60)
    assert second.start.worker == other.hostname
    stopped.resume()
    goes_again(stage, result, "run")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_run_is_stopped_with_its_worker_whatever_happens_to_that(stage, how):
    """Killed: its processes would outlive it. Suspended: they would continue when it is resumed."""
    lost = stage.worker()
    result = stage.send(stage.jobs.held, "run")
    first = stage.started(result)
    stage.worker()
    if how == "killed":
        lost.kill(whole=False)
    else:
        lost.pause()
    is_stopped(lost, first)
    stage.started(result, 2, 60)
    if how == "frozen":
        lost.resume()
    goes_again(stage, result, "run")


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_back_and_has_not_crashed(stage, proxy):
    """The ledger is back before the lease has expired. With max_recoveries=0 a crash would be the end of the run."""
    worker = stage.worker(env=cut_off_from(proxy))
    result, once = stage.send(stage.jobs.held, "run"), stage.send(stage.jobs.held_once, "run")
    first, other = stage.started(result), stage.started(once)
    proxy.refuse()
    is_stopped(worker, first)
    is_stopped(worker, other)
    proxy.accept()
    goes_on = stage.started(result, 2, 60)
    stage.release("run")
    assert result.get(timeout=30) == goes_on.start.fence
    # A run that must not run twice ends, and is kept.
    until(lambda: once.state == "FAILURE", 30)
    assert len(stage.starts(once)) == 1
    assert [letter.id for letter in Orchestration(stage.app).dead_letters()] == [once.id]
    stage.all_well(timeout=60)


@pytest.mark.slow
def test_a_run_goes_on_while_heartbeats_get_through_and_without_the_option_when_they_do_not(stage, proxy):
    """For three leases."""
    worker = stage.worker(env=cut_off_from(proxy))
    stopped, going_on = stage.send(stage.jobs.held, "run"), stage.send(stage.jobs.goes_on, "run")
    first, other = stage.started(stopped), stage.started(going_on)
    stays(lambda: {first.start.pid, other.start.pid} <= set(worker.pids()), 18, poll=0.5)
    proxy.refuse()
    is_stopped(worker, first)
    stays(lambda: other.start.pid in worker.pids(), 3, poll=0.1)
    proxy.accept()
    stage.release("run")
    assert going_on.get(timeout=30) == other.start.fence
    stage.all_well(timeout=60)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_worker_that_cannot_stop_a_run_refuses_to_start(stage, pool):
    worker = stage.worker(pool, ready=False)
    until(lambda: not worker.running, 30, "it has ended")
    said = f"on_lease_lost='stop' needs an execution pool that can end a run's process (prefork), not {pool}"
    assert said in worker.log()
    assert f"{APP}.held" in worker.log()
    # Jobs on queues of other workers do not matter.
    stage.worker(pool, queues=["others"])

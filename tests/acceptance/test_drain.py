"""A worker stops: its runs end there, or go back and run elsewhere; none runs twice at the same time.

Runs of ``beating`` record how long they lived, and would fail if a drain were counted as a crash.
"""

from __future__ import annotations

import json
import signal
import time
from itertools import pairwise
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_orchestration.operate import RunStatus, WorkerStatus
from support.invariants import status_of
from support.stage import Stage
from support.wait import stays, until
from support.workers import WorkerProcess

DRAIN = "support.apps.drain"
POOLS = ["prefork", "threads", "gevent", "solo"]
UNKILLABLE = POOLS[1:]


@pytest.fixture
def stage(stage_on, redis_broker) -> Stage:
    return stage_on(redis_broker, DRAIN)


def state_of(stage: Stage, process: WorkerProcess) -> WorkerStatus | None:
    return next((found for found in status_of(stage.app).workers if found.name == process.hostname), None)


def is_draining(stage: Stage, process: WorkerProcess) -> bool:
    found = state_of(stage, process)
    return found is not None and found.state == "draining"


def run_of(stage: Stage, result: AsyncResult) -> RunStatus | None:
    status = status_of(stage.app)
    return next((run for run in [*status.runs, *status.waits] if run.id == result.id), None)


def lives(stage: Stage, result: AsyncResult) -> list[tuple[int, float, float]]:
    """For a run of ``beating``: the first and the last sign of life of each process that executed it."""
    found: dict[int, tuple[float, float]] = {}
    for line in (stage.scratch / f"life-{result.id}").read_text().splitlines():
        pid, at = line.split()
        first, _ = found.get(int(pid), (float(at), 0.0))
        found[int(pid)] = (first, float(at))
    return sorted(((pid, *times) for pid, times in found.items()), key=lambda life: life[1])


def ran_one_after_the_other(stage: Stage, result: AsyncResult, times: int = 2) -> None:
    """Also adds the deaths of processes that did not end by themselves to the stage."""
    found = lives(stage, result)
    assert len(found) == times
    for (_, _, last), (_, first, _) in pairwise(found):
        assert last < first, "it ran twice at once"
    stage.workers[0].deaths.update({pid: last for pid, _, last in found[:-1]})


def goes_on_elsewhere(stage: Stage, results: list[AsyncResult], timeout: float = 20) -> None:
    """Each run is executed a second time, does not count as crashed, and then ends."""
    for result in results:
        stage.started(result, 2, timeout)
    assert {run.recoveries for run in status_of(stage.app).runs} == {0}


def stop(process: WorkerProcess, *signals: int) -> None:
    for number in signals:
        process.signal(number)
        time.sleep(0.3)


def gone(process: WorkerProcess, timeout: float) -> None:
    until(lambda: not process.pids(), timeout, f"{process.name} is gone")


# -- the warm shutdown


@pytest.mark.parametrize("pool", POOLS)
def test_a_draining_worker_takes_no_more_and_ends_what_it_runs(stage, pool):
    process = stage.worker(pool)
    running = stage.send(stage.jobs.held, "running")
    stage.started(running)
    if pool != "solo":  # a solo worker notices nothing while its task runs
        stage.send(stage.jobs.held, "waiting")
        stage.wait_waiting(1)
    process.signal(signal.SIGTERM)
    until(lambda: is_draining(stage, process), 30, "draining is visible")
    assert all(queue.slots == 0 for queue in status_of(stage.app).queues)
    later = stage.send(stage.jobs.free)
    process.signal(signal.SIGTERM)
    stays(lambda: is_draining(stage, process) and not stage.starts(later), 1.5)
    stage.release("running")
    gone(process, 30)
    assert process.returncode == 0
    assert status_of(stage.app).workers == []
    assert status_of(stage.app).waiting == (0 if pool == "solo" else 1)
    stage.release("waiting")
    stage.worker(pool)
    stage.all_well()
    stage.ran_once(stage.sent)


def test_handed_over_runs_go_to_the_workers_that_stay(stage):
    """When the run on the draining worker ends, the next one starts on another worker."""
    leaving = stage.worker()
    first = stage.send(stage.jobs.held, "first")
    stage.started(first)
    waiting = [stage.send(stage.jobs.held, "rest") for _ in range(3)]
    stage.wait_waiting(3)
    staying = stage.worker()
    leaving.signal(signal.SIGTERM)
    until(lambda: is_draining(stage, leaving))
    stage.release("first")
    assert stage.started(waiting[0], timeout=20).start.worker == staying.hostname
    stage.release("rest")
    stage.all_well()
    stage.ran_once(stage.sent)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_run_that_waits_for_the_rate_limit_goes_back_at_once(stage, pool):
    process = stage.worker(pool, concurrency=3)
    first, second = stage.send(stage.jobs.held, "first"), stage.send(stage.jobs.limited, "second")
    stage.started(first)
    stage.started(second)
    third = stage.send(stage.jobs.limited, "third")
    stage.wait_waiting(1)  # after 6 s it has passed the rate limit once
    stage.release("second")
    until(lambda: run_of(stage, third).state == "running", 30, "it was handed over, and waits for the rate limit")
    process.signal(signal.SIGTERM)
    until(lambda: run_of(stage, third).state == "waiting", 30, "it is back")
    assert is_draining(stage, process)
    stage.release("first")
    gone(process, 30)
    stage.worker()
    stage.release("third")
    stage.all_well()
    stage.ran_once(stage.sent)


def test_a_run_that_no_process_has_begun_goes_back_at_once(stage):
    """Its process is still starting."""
    process = stage.worker(env={"TEST_SLOW_START": "8"})
    result = stage.send(stage.jobs.held, "run")
    until(lambda: (run := run_of(stage, result)) and run.state == "running")
    process.signal(signal.SIGTERM)
    until(lambda: run_of(stage, result).state == "waiting", 6, "it is back")
    assert process.running
    gone(process, 30)
    stage.worker()
    stage.release("run")
    stage.all_well()
    stage.ran_once([result])


def test_threads_give_back_what_they_have_not_begun(stage):
    """Fetched as Celery does: otherwise the message would not be here."""
    process = stage.worker("threads", concurrency=2, env={"CELERY_ORCHESTRATION_FETCH": "celery"})
    plain = [stage.send(stage.jobs.plain, "plain") for _ in range(2)]
    for result in plain:
        stage.started(result)
    result = stage.send(stage.jobs.held, "run")
    until(lambda: (run := run_of(stage, result)) and run.state == "running")
    process.signal(signal.SIGTERM)
    until(lambda: run_of(stage, result).state == "waiting", 30, "it is back")
    stage.release("plain")
    gone(process, 30)
    stage.worker("threads")
    stage.release("run")
    stage.all_well()
    stage.ran_once(stage.sent)


def deliver_again(stage: Any, result: Any) -> None:
    """As a broker may do with a message that was not acknowledged."""
    client = stage.broker.redis.client()
    fetched = [store for key in client.scan_iter("_orchestration.*.store.*") for store in client.hgetall(key).items()]
    [(field, kept)] = [one for one in fetched if result.id in one[1]]
    message = json.loads(kept)
    message["headers"]["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
    client.rpush(field.partition(":")[2], json.dumps(message))


def test_a_run_that_puts_itself_back_meanwhile_is_not_lost(stage):
    """The broker has already delivered its message to another worker, which dropped it because the run was running."""
    leaving = stage.worker()
    result = stage.send(stage.jobs.rejecting_once, "run")
    stage.started(result)
    staying = stage.worker()
    leaving.signal(signal.SIGTERM)
    until(lambda: is_draining(stage, leaving))
    deliver_again(stage, result)
    until(lambda: result.id in staying.log(), 30, "its message was delivered again")
    stage.release("run")
    assert result.get(timeout=30) == "accepted"
    stage.all_well()


# -- drain_seconds: code that can be killed


def test_runs_that_go_on_are_killed_and_then_go_back(stage_on, broker):
    """Also code that ignores SIGTERM, and whatever happens to the message."""
    stage = stage_on(broker, DRAIN)
    leaving = stage.worker(concurrency=3, env={"TEST_DRAIN": "1", "TEST_LEASE": "60"})
    runs = [stage.send(stage.jobs.beating, "run", 60), stage.send(stage.jobs.beating_late, "run", 60)]
    quick = stage.send(stage.jobs.held, "quick")
    for result in (*runs, quick):
        stage.started(result)
    stage.worker(concurrency=3, env={"TEST_LEASE": "60"})
    begun = time.monotonic()
    leaving.signal(signal.SIGTERM)
    stage.release("quick")
    until(lambda: is_draining(stage, leaving))
    goes_on_elsewhere(stage, runs)
    assert time.monotonic() - begun < 30, "not only when the lease is over"
    gone(leaving, 30)
    for result in runs:
        ran_one_after_the_other(stage, result)
        assert result.state == "PENDING"
    stage.release("run")
    stage.all_well()
    stage.ran_once([quick])


def test_a_drain_of_no_seconds(stage):
    leaving = stage.worker(env={"TEST_DRAIN": "0"})
    result = stage.send(stage.jobs.beating, "run")
    stage.started(result)
    leaving.signal(signal.SIGTERM)
    gone(leaving, 30)
    until(lambda: run_of(stage, result).state == "waiting")
    stage.worker()
    goes_on_elsewhere(stage, [result])
    ran_one_after_the_other(stage, result)
    stage.release("run")
    stage.all_well()


def test_plain_tasks_are_treated_as_by_a_cold_shutdown(stage_on, broker):
    """Next to a run that is killed. Messages that are acknowledged late are redelivered."""
    stage = stage_on(broker, DRAIN)
    leaving = stage.worker(concurrency=3, env={"TEST_DRAIN": "1"})
    run, late = stage.send(stage.jobs.beating, "run", 60), stage.send(stage.jobs.plain_late, "late")
    early = stage.jobs.plain.delay("early")
    for result in (run, late, early):
        stage.started(result)
    leaving.signal(signal.SIGTERM)
    gone(leaving, 30)
    stage.worker(concurrency=3)
    goes_on_elsewhere(stage, [run])
    stage.started(late, 2)
    ran_one_after_the_other(stage, run)
    stage.release("run")
    stage.release("late")
    stage.all_well()
    assert len(stage.starts(early)) == 1
    assert early.state in ("RETRY", "PENDING")  # the latter if Celery had not heard of its start yet


# -- drain_seconds: code that cannot be killed but with its process


@pytest.mark.parametrize("pool", UNKILLABLE)
def test_a_process_whose_code_cannot_be_killed_ends_and_then_its_runs_go_back(stage_on, broker, pool):
    """With a lease of 60 s: the worker announced its end. Messages that were fetched and not begun are not lost."""
    stage = stage_on(broker, DRAIN)
    leaving = stage.worker(pool, env={"TEST_DRAIN": "1", "TEST_LEASE": "60"})
    run = stage.send(stage.jobs.beating, "run")
    stage.started(run)
    others = [stage.send(stage.jobs.beating_late, "late")]
    if pool != "solo":
        stage.started(others[0])
    fetched = [stage.send(stage.jobs.plain_late, "fetched") for _ in range(6)]
    leaving.signal(signal.SIGTERM)
    until(lambda: is_draining(stage, leaving), 30, "draining is visible")
    stage.worker("threads", concurrency=8, env={"TEST_LEASE": "60"})
    until(lambda: not leaving.running, 30, "it ends")
    goes_on_elsewhere(stage, [run] if pool == "solo" else [run, *others], timeout=30)
    ran_one_after_the_other(stage, run)
    for name in ("run", "late", "fetched"):
        stage.release(name)
    until(lambda: all(result.state == "SUCCESS" for result in fetched))
    if pool != "solo":
        ran_one_after_the_other(stage, others[0])
    stage.all_well()


# -- cold and soft


@pytest.mark.parametrize("signals", [(signal.SIGQUIT,), (signal.SIGTERM, signal.SIGQUIT)], ids=["cold", "warm, cold"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_cold_shutdown_gives_back_what_it_runs(stage, pool, signals):
    leaving = stage.worker(pool, env={"TEST_LEASE": "60"})
    run = stage.send(stage.jobs.beating, "run", 0.5)
    stage.started(run)
    late = stage.send(stage.jobs.beating_late, "run")
    if pool != "solo":
        stage.started(late)
    stage.worker("threads", env={"TEST_LEASE": "60"})
    stop(leaving, *signals)
    gone(leaving, 30)
    goes_on_elsewhere(stage, [run] if pool == "solo" else [run, late], timeout=30)
    ran_one_after_the_other(stage, run)
    stage.release("run")
    stage.all_well()


@pytest.mark.parametrize("first", [signal.SIGQUIT, signal.SIGTERM])
def test_a_shutdown_that_fails_half_way_frees_no_room_that_is_used(stage, first):
    """Celery cannot cancel plain tasks on threads: the stop of its pool raises an error while all of them continue."""
    leaving = stage.worker("threads", concurrency=6, env={"TEST_LEASE": "60"})
    run = stage.send(stage.jobs.beating, "run")
    plain = [stage.jobs.plain.delay("plain") for _ in range(5)]
    for result in (run, *plain):
        stage.started(result)
    stage.worker("threads", env={"TEST_LEASE": "60"})
    stop(leaving, first, signal.SIGQUIT, signal.SIGQUIT)
    gone(leaving, 30)
    goes_on_elsewhere(stage, [run], timeout=30)
    ran_one_after_the_other(stage, run)
    stage.release("run")
    stage.all_well()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_soft_shutdown_is_a_drain_with_an_end(stage, pool):
    """On gevent Celery cannot sleep in its signal handler."""
    leaving = stage.worker(pool, env={"TEST_SOFT": "4", "TEST_LEASE": "60"})
    run, quick = stage.send(stage.jobs.beating, "run"), stage.send(stage.jobs.held, "quick")
    for result in (run, quick):
        stage.started(result)
    leaving.signal(signal.SIGQUIT)
    until(lambda: is_draining(stage, leaving), 30, "draining is visible while Celery sleeps")
    stage.release("quick")
    gone(leaving, 30)
    assert quick.state == "SUCCESS"
    assert len(lives(stage, run)) == 1
    stage.worker()
    goes_on_elsewhere(stage, [run])
    ran_one_after_the_other(stage, run)
    stage.release("run")
    stage.all_well()
    stage.ran_once([quick])


@pytest.mark.slow
def test_a_worker_killed_while_it_drains_is_no_crash_of_its_runs(stage):
    """As Kubernetes does at the end of the grace period."""
    leaving = stage.worker()
    run = stage.send(stage.jobs.beating, "run")
    stage.started(run)
    stage.worker()
    leaving.signal(signal.SIGTERM)
    until(lambda: is_draining(stage, leaving))
    leaving.kill()
    goes_on_elsewhere(stage, [run])
    ran_one_after_the_other(stage, run)
    stage.release("run")
    stage.all_well()


@pytest.mark.slow
def test_workers_are_scaled_down_under_load(stage):
    """Workers are replaced one after the other while runs of all kinds go on: each run succeeds, and exclusive ones
    never overlap."""
    jobs: list[Any] = [stage.jobs.free, stage.jobs.exclusive]
    env = {"TEST_DRAIN": "0.5", "TEST_ON_CRASH": "requeue"}
    first = stage.worker(concurrency=3, env=env)
    for _ in range(4):
        for _ in range(15):
            for job in jobs:
                stage.send(job, 0.05)
        stage.send(stage.jobs.free, 1.5)
        until(stage.history.ended)
        second = stage.worker(concurrency=3, env=env)
        first.signal(signal.SIGTERM)
        gone(first, 30)
        first = second
    stage.all_well(timeout=40)
    assert {result.state for result in stage.sent} == {"SUCCESS"}

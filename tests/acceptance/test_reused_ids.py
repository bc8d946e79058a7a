"""A task id that is used again runs again, as with plain tasks; a copy of a message does not.

Task ids are reused by calls with a fixed ``task_id``, by a chain or a frozen signature that is applied more than once,
by a task that sends itself again, and by errbacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import chord, group

from celery_orchestration.operate import Orchestration
from support.invariants import assert_ledger_is_clean, status_of
from support.stage import Stage
from support.wait import stays, until
from support.workers import Broker, run_celery

CANVAS = "support.apps.canvas"
KINDS = ("plain", "job")


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(f"{request.param}_broker")


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, CANVAS)


def executed(stage: Stage, *names: str) -> dict[str, tuple[int, int]]:
    """How often the plain task and the job of each function have ended."""
    ended = [event.job for event in stage.history.ended()]
    return {name: (ended.count(f"plain.{name}"), ended.count(f"job.{name}")) for name in names}


def run_ids(stage: Stage, job: str) -> list[str]:
    """The ids of ended runs, the latest first."""
    ledger = Orchestration(stage.app)
    try:
        return [run.id for run in ledger.history(job)]
    finally:
        ledger.close()


def one_after_another(tasks: Any, kind: str) -> list[Callable[[], Any]]:
    """Programs of small steps: each step begins when the calls of the step before it have ended."""
    fixed, frozen, by_name = (f"{kind}-{what}" for what in ("sync-5", "frozen", "by name"))
    chain, signature = tasks.add.s(1) | tasks.add.s(2), tasks.add.s(1)
    signature.freeze(frozen)
    app = tasks.add.app
    return [
        *(lambda n=n: tasks.add.apply_async((n,), task_id=fixed) for n in range(3)),
        *(chain.apply_async for _ in range(2)),
        *(signature.apply_async for _ in range(2)),
        *(lambda: app.send_task(tasks.add.name, (1,), task_id=by_name) for _ in range(2)),
        *(lambda: tasks.retrying.apply_async((1,), task_id=f"{kind}-retried") for _ in range(2)),
        *(lambda: tasks.replacing.apply_async((1,), task_id=f"{kind}-replaced") for _ in range(2)),
        lambda: tasks.resending.apply_async((3,), task_id=f"{kind}-resent"),
        *(lambda: tasks.failing.apply_async(task_id=f"{kind}-failed") for _ in range(2)),
    ]


def test_a_task_id_that_is_sent_again_after_its_end_runs_again(stage_on, broker):
    stage = stage_on(broker, CANVAS)
    stage.worker(concurrency=1, queues=["plain"], name="plain", ready=False)
    stage.worker(concurrency=2)
    names = ("add", "retrying", "replacing", "resending", "failing")
    programs = {kind: one_after_another(stage.jobs.kind(kind), kind) for kind in KINDS}
    for plain, job in zip(programs["plain"], programs["job"], strict=True):
        before = executed(stage, *names)
        results = [plain(), job()]
        until(lambda before=before: is_over(executed(stage, *names), before), 30, f"after {results}")
        until(lambda results=results: all(result.ready() for result in results), 30)
        assert_ledger_is_clean(stage.app, stage.ledger)
    assert executed(stage, *names) == {
        "add": (3 + 4 + 2 + 2, 3 + 4 + 2 + 2),
        "retrying": (4, 4),
        "replacing": (4, 4),
        "resending": (3, 3),
        "failing": (2, 2),
    }
    for name in ("sync-5", "frozen", "by name", "retried", "replaced", "resent", "failed"):
        plain, job = (stage.app.AsyncResult(f"{kind}-{name}") for kind in KINDS)
        assert (job.state, str(job.result)) == (plain.state, str(plain.result)), name
    resent = run_ids(stage, "job.resending")
    assert len(set(resent)) == 3
    assert resent[-1] == "job-resent"
    assert all(id.startswith("job-resent~") for id in resent[:-1])
    assert sum(job.dropped_copies for job in status_of(stage.app).jobs) == 0


def is_over(now: dict[str, tuple[int, int]], before: dict[str, tuple[int, int]]) -> bool:
    """Both kinds have executed equally often, and at least once."""
    return now != before and all(plain == job for plain, job in now.values())


def test_errbacks_are_called_as_often_as_with_plain_tasks(stage):
    """Errbacks are mutable signatures: Celery sends the same one again and again."""
    stage.worker(concurrency=1, queues=["plain"], name="plain", ready=False)
    stage.worker(concurrency=2)
    for kind in KINDS:
        tasks = stage.jobs.kind(kind)
        errback = tasks.blaming.s()
        errback.freeze(f"{kind}-blamed")
        for _ in range(2):
            tasks.failing.apply_async(link_error=errback)
        members = group(tasks.failing.s() for _ in range(3))
        members.link_error(errback)
        members.apply_async()
        body = tasks.add.s()
        body.link_error(errback)
        chord([tasks.failing.s(), tasks.add.s(1)], body).apply_async()
    until(lambda: executed(stage, "failing") == {"failing": (6, 6)}, 30)
    until(lambda: executed(stage, "blaming")["blaming"][0] >= 6, 30)
    until(lambda: len(set(executed(stage, "blaming")["blaming"])) == 1, 30)
    stays(lambda: len(set(executed(stage, "blaming")["blaming"])) == 1, 0.3)
    assert_ledger_is_clean(stage.app, stage.ledger)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_runs_of_one_task_id_are_distinguished(stage, pool):
    """Two that run at once in one worker, and two that wait, are started, ended, shown and cancelled separately."""
    stage.worker(pool, concurrency=3)
    held, free = stage.jobs.held, stage.jobs.held_free
    for name in ("first", "second"):
        free.apply_async((name,), task_id="same")
    until(lambda: len(stage.history.running(free.name)) == 2)
    runs = {run.id for run in status_of(stage.app).runs}
    [further] = runs - {"same"}
    assert further.startswith("same~")
    stage.release("second")
    until(lambda: len(run_ids(stage, free.name)) == 1)
    stage.release("first")
    until(lambda: set(run_ids(stage, free.name)) == runs)

    held.apply_async(("blocker",), task_id="blocker")
    until(lambda: stage.history.running(held.name))
    for name in ("one", "two", "three"):
        held.apply_async((name,), task_id="again")
    stage.wait_waiting(3)
    waits = {run.id for run in status_of(stage.app).waits}
    cancelled = sorted(waits)[-1]
    assert cancelled.startswith("again~")
    ledger = Orchestration(stage.app)
    assert ledger.explain(cancelled).run == cancelled
    assert ledger.cancel(cancelled).cancelled
    ledger.close()
    stage.wait_waiting(2)
    for name in ("blocker", "one", "two", "three"):
        stage.release(name)
    until(lambda: len(stage.history.ended(held.name)) == 3)
    until(lambda: set(run_ids(stage, held.name)) == {"blocker", *waits})

    # A revoke means all of them.
    held.apply_async(("blocked",), task_id="blocked")
    until(lambda: stage.history.running(held.name))
    for _ in range(2):
        held.apply_async(("never",), task_id="revoked")
    stage.wait_waiting(2)
    stage.app.control.revoke("revoked")
    stage.wait_waiting(0)
    stage.release("blocked")
    until(lambda: len(stage.history.ended(held.name)) == 4)
    until(lambda: stage.app.AsyncResult("revoked").state == "REVOKED")
    assert_ledger_is_clean(stage.app, stage.ledger)
    stays(lambda: len(stage.history.started(held.name)) == 4, 0.3)


def test_a_revoke_terminates_every_run_of_a_task_id_and_a_cancel_the_one_it_names(stage):
    stage.worker(concurrency=3)
    free = stage.jobs.held_free
    for name in ("a", "b", "c"):
        free.apply_async((name,), task_id="same")
    until(lambda: len(stage.history.running(free.name)) == 3)
    runs = {run.id for run in status_of(stage.app).runs}
    one = sorted(runs)[-1]
    found = run_celery(CANVAS, "orchestration", "cancel", one, "--terminate", broker=stage.broker, env=stage.env)
    assert found.returncode == 0, found.stderr
    until(lambda: run_ids(stage, free.name) == [one])
    stays(lambda: run_ids(stage, free.name) == [one], 0.3)
    stage.app.control.revoke("same", terminate=True)
    until(lambda: set(run_ids(stage, free.name)) == runs)
    assert_ledger_is_clean(stage.app, stage.ledger)
    assert {event.outcome for event in stage.history.ended(free.name)} <= {"SystemExit"}


def test_a_message_that_is_delivered_again_is_dropped_and_counted(stage):
    """While its run waits, runs, and after it has ended; and also the message of the next run of the same task id."""
    held = stage.jobs.held
    for name in ("one", "two"):
        held.apply_async((name,), task_id="same")
    queue = stage.ledger.lrange("celery", 0, -1)
    assert len(queue) == 2
    worker = stage.worker()
    until(lambda: stage.history.running(held.name))
    stage.wait_waiting(1)

    def deliver_again() -> None:
        for text in queue:
            message = json.loads(text)
            message["properties"]["delivery_info"]["redelivered"] = True
            stage.ledger.rpush("celery", json.dumps(message))

    def copies() -> int:
        return sum(job.dropped_copies for job in status_of(stage.app).jobs)

    deliver_again()
    until(lambda: copies() == 2)
    stage.release("one")
    until(lambda: len(stage.history.started(held.name)) == 2)
    deliver_again()
    until(lambda: copies() == 4)
    stage.release("two")
    until(lambda: len(stage.history.ended(held.name)) == 2)
    until(lambda: len(run_ids(stage, held.name)) == 2)
    deliver_again()
    until(lambda: copies() == 6)
    stays(lambda: len(stage.history.started(held.name)) == 2, 0.3)
    worker.wait_for_log("the ledger knows this call of task id same already")
    assert_ledger_is_clean(stage.app, stage.ledger)

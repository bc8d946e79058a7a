"""Retries, replacements, rejections, chains, groups and chords of jobs have the same results as with plain tasks.

Each test runs the same canvas with two tasks of one function, a plain task and a job with max_running=1, and compares
the results. Waits in between must not show: a chord completes or fails, and never hangs.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Task, chord, group
from celery.canvas import Signature
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult, GroupResult

from support.invariants import assert_ledger_is_clean, status_of
from support.stage import Stage
from support.wait import stays, until
from support.workers import Broker

CANVAS = "support.apps.canvas"
KINDS = ("plain", "job")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: Slots of the plain tasks that die: with more, Celery's pool may run one of two that die together again.
ONE = 1

Result = AsyncResult | GroupResult


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest) -> Broker:
    return request.getfixturevalue(f"{request.param}_broker")


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, CANVAS)


def start(stage: Stage, slots: int = 3, plain_slots: int = 1, pool: str = "prefork") -> None:
    """A worker for each kind. The worker of the plain tasks has one slot: with more, an attempt that retries may store
    its state after the next attempt has ended, and then the task never ends. (Jobs do not have this problem.)"""
    plain = stage.worker(concurrency=plain_slots, queues=["plain"], name="plain", ready=False)
    stage.worker(pool, concurrency=slots)
    plain.wait_ready()


def outcome(result: Result) -> Any:
    """State and value of a result, of its children and of its parents, without the parts that differ each time."""
    if isinstance(result, GroupResult):
        return [outcome(member) for member in result.results]
    value = result.result
    if isinstance(value, BaseException):
        text = re.sub(r"Job: \d+", "Job: …", UUID.sub("…", str(value)))
        value = (type(value).__name__, text)
    before = outcome(result.parent) if result.parent is not None else None
    return (result.state, value, before)


def send(stage: Stage, canvas: Signature, **options: Any) -> Result:
    result = canvas.apply_async(**options)
    stage.sent += leaves(result)
    return result


def leaves(result: Result | None) -> list[AsyncResult]:
    if result is None:
        return []
    if isinstance(result, GroupResult):
        return [leaf for member in result.results for leaf in leaves(member)] + leaves(result.parent)
    return [result, *leaves(result.parent)]


def compared(stage: Stage, canvases: Callable[[Any], dict[str, Signature]], timeout: float = 40) -> dict[str, Any]:
    """The results of each canvas with plain tasks, checked to be the same with jobs."""
    results = {
        kind: {name: send(stage, canvas) for name, canvas in canvases(stage.jobs.kind(kind)).items()} for kind in KINDS
    }
    for kind, found in results.items():
        for name, result in found.items():
            until(result.ready, timeout, f"{name!r} of {kind} tasks ends: {outcome(result)}", poll=0.1)
    all_well(stage, timeout=timeout)
    plain, job = ({name: outcome(result) for name, result in results[kind].items()} for kind in KINDS)
    assert job == plain
    return plain


def all_well(stage: Stage, **options: Any) -> None:
    """Checks the invariants. Runs that killed themselves died right after their start."""
    killed = [span.start for span in stage.history.running() if re.search("crashing|dying|overtime", span.job)]
    stage.workers[0].deaths.update({start.pid: start.monotonic for start in killed})
    stage.all_well(**options)


def failed_chord(result: AsyncResult) -> str:
    """The error of its body. (Its get() raises the error of its header.)"""
    until(result.ready)
    assert isinstance(result.result, ChordError)
    return UUID.sub("…", str(result.result))


def executions(stage: Stage, name: str) -> tuple[int, int]:
    """How often the plain task and the job of this function were executed."""
    return len(stage.history.started(f"plain.{name}")), len(stage.history.started(f"job.{name}"))


# -- everything that works with plain tasks


def canvases(tasks: Any) -> dict[str, Signature]:
    add, gather, failing, retrying, rejecting = (
        tasks.add,
        tasks.gather,
        tasks.failing,
        tasks.retrying,
        tasks.rejecting,
    )
    return {
        "chain": add.s(1, 2) | add.s(3) | add.s(4),
        "group": group(add.s(n, n) for n in range(4)),
        "chord": chord([add.s(n, n) for n in range(4)], gather.s()),
        "chord in a chain": add.s(1) | group(add.s(1), add.s(2)) | gather.s() | add.s(10),
        "chord of chains": chord([add.s(n) | add.s(1) for n in range(3)], gather.s()),
        "chord of one": chord([add.s(1)], gather.s()),
        "chord of chords": chord([chord([add.s(1), add.s(2)], add.s()) for _ in range(2)], gather.s()),
        "retried": retrying.s(2),
        "retried too often": retrying.s(9),
        "retried automatically": tasks.giving_up.s(),
        "retried in a chain": retrying.s(1) | retrying.s(0),
        "retried in a chord": chord([retrying.s(n) for n in range(3)], gather.s()),
        "replaced": tasks.replacing.s(2),
        "replaced by a chain": tasks.replacing_by_group.s(3),
        "replaced in a chain": add.s(1) | tasks.replacing_by_group.s() | add.s(1),
        "replaced in a chord": chord([tasks.replacing_by_group.s(3), tasks.replacing.s(2)], gather.s()),
        "requeued": rejecting.s(2),
        "requeued in a chord": chord([rejecting.s(1), rejecting.s(0)], gather.s()),
        "failed": failing.s(),
        "failed in a chain": add.s(1) | failing.s(),
        "failed in a group": group(add.s(1), failing.s(), add.s(2)),
        "failed in a chord": chord([add.s(1), failing.s()], gather.s()),
        "retried too often in a chord": chord([retrying.s(9), add.s(1)], gather.s()),
    }


def test_canvases_have_the_same_results(stage_on, broker):
    stage = stage_on(broker, CANVAS)
    start(stage, 4)
    found = compared(stage, canvases)
    assert found["chord"][:2] == ("SUCCESS", [0, 2, 4, 6])
    assert found["retried in a chord"][:2] == ("SUCCESS", [0, 1, 2])
    assert found["requeued"][:2] == ("SUCCESS", "accepted")
    assert found["failed in a chord"][0] == "FAILURE"
    for name in ("retrying", "replacing", "rejecting", "giving_up", "gather"):
        plain, job = executions(stage, name)
        assert plain == job, name


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_canvases_have_the_same_results_on_other_execution_pools(stage, pool):
    start(stage, 4, pool=pool)
    compared(stage, canvases)


@pytest.mark.slow
def test_runs_that_end_without_a_result_leave_their_room(stage):
    """Ignored; rejected for good; rejected with requeue after an early acknowledgement, when it cannot be requeued any
    more."""
    start(stage)
    names = ("ignoring", "rejected", "rejecting_early")
    results = {
        kind: [getattr(stage.jobs.kind(kind), name).delay() for name in names for _ in range(3)] for kind in KINDS
    }
    until(lambda: [executions(stage, name) for name in names] == [(3, 3)] * 3)
    assert_ledger_is_clean(stage.app, stage.ledger)
    stays(lambda: [executions(stage, name) for name in names] == [(3, 3)] * 3, 0.3)
    plain, job = ([outcome(result) for result in results[kind]] for kind in KINDS)
    assert job == plain


def test_between_its_attempts_a_run_holds_no_room(stage):
    stage.worker()
    job = stage.jobs.kind("job").retrying
    slow = stage.send(job, 1, 60)
    until(lambda: slow.state == "RETRY")
    assert stage.send(job, 0).get(timeout=30) == 0
    assert status_of(stage.app).waiting == 0


# -- callbacks


def calling_back(tasks: Any) -> dict[str, Signature]:
    return {
        "succeeded": tasks.add.s(1),
        "failed": tasks.failing.s(),
        "retried": tasks.retrying.s(1),
        "retried too often": tasks.retrying.s(9),
        "replaced": tasks.replacing.s(1),
        "requeued": tasks.rejecting.s(1),
        "rejected": tasks.rejected.s(),
        "died": tasks.dying.s(),
        "over its time": tasks.overtime.s(),
    }


@pytest.mark.slow
def test_callbacks_are_called_as_often_and_with_the_same(stage):
    start(stage, slots=ONE)
    called, blamed = stage.jobs.called, stage.jobs.blamed
    results = {
        kind: {
            name: send(stage, canvas, link=called.s(kind, name), link_error=blamed.s())
            for name, canvas in calling_back(stage.jobs.kind(kind)).items()
        }
        for kind in KINDS
    }

    def heard(kind: str) -> dict[str, Any]:
        """For each result how it ended, the arguments of its callbacks, and how often its errback was called."""
        notes = [event.note for event in stage.history.ended()]
        return {
            name: (
                *outcome(result)[:2],
                [note[0] for note in notes if isinstance(note, list) and note[1:] == [kind, name]],
                notes.count(result.id),
            )
            for name, result in results[kind].items()
        }

    all_well(stage)
    until(lambda: all(callbacks or errbacks for *_, callbacks, errbacks in heard("plain").values()))
    until(lambda: heard("job") == heard("plain"), 30, "they hear the same")
    stays(lambda: heard("job") == heard("plain"), 0.3, "nor any more")
    plain = heard("plain")
    assert plain["succeeded"] == ("SUCCESS", 1, [1], 0)
    assert plain["failed"] == ("FAILURE", ("ValueError", "as asked"), [], 1)


# -- processes die


def crashes(tasks: Any) -> dict[str, Signature]:
    found = {
        "requeued": tasks.crashing_late.s(2),
        "requeued in a chain": tasks.crashing_late.s(1) | tasks.gather.s(),
        "requeued in a chord": chord([tasks.crashing_late.s(1), tasks.add.s(1)], tasks.gather.s()),
        "failed": tasks.dying.s(),
        "failed in a chord": chord([tasks.add.s(1), tasks.dying.s()], tasks.gather.s()),
    }
    if hasattr(Task, "retry_on_worker_lost"):  # since Celery 5.7
        found |= {
            "retried": tasks.dying_retried.s(1),
            "retried too often": tasks.dying_retried.s(9),
            "retried in a chord": chord([tasks.dying_retried.s(1), tasks.add.s(1)], tasks.gather.s()),
        }
    return found


@pytest.mark.slow
def test_options_about_lost_processes_have_celerys_meaning(stage_on, broker):
    """reject_on_worker_lost and retry_on_worker_lost have the same effect as for plain tasks."""
    stage = stage_on(broker, CANVAS)
    start(stage, slots=ONE)
    found = compared(stage, crashes)
    assert found["requeued"][:2] == ("SUCCESS", "survived")
    assert found["failed"][0] == "FAILURE"
    for name in ("crashing_late", "dying", "dying_retried"):
        plain, job = executions(stage, name)
        assert plain == job, name


@pytest.mark.slow
def test_a_run_whose_process_died_runs_again_in_every_canvas(stage):
    """Without written options. A chord hears of the run once, when it has ended."""
    stage.worker(concurrency=3)
    tasks = stage.jobs.kind("job")
    crashing, gather = tasks.crashing, tasks.gather
    in_chord = send(stage, chord([crashing.s(1), crashing.s(2), tasks.add.s(5)], gather.s()))
    in_chain = send(stage, crashing.s(1) | tasks.add.s(1), link=stage.jobs.called.s("after"))
    too_often = send(stage, chord([crashing.s(99), tasks.add.s(5)], gather.s()))
    assert in_chord.get(timeout=30) == [1, 1, 5]
    assert in_chain.get(timeout=30) == 2
    assert failed_chord(too_often).startswith("Dependency … raised WorkerLostError")
    all_well(stage)
    assert [event.note for event in stage.history.started("job.gather")] == ["[1, 1, 5]"]
    until(lambda: [event.note for event in stage.history.started(f"{CANVAS}.called")] == [[2, "after"]])


@pytest.mark.slow
def test_a_chord_survives_the_worker_on_which_its_header_runs_and_waits(stage):
    doomed = stage.worker()
    tasks = stage.jobs.kind("job")
    result = send(stage, chord([tasks.kept.s("a"), tasks.kept.s("b"), tasks.add.s(1)], tasks.gather.s()))
    until(lambda: stage.history.running("job.kept"))
    stage.wait_waiting(1)
    stage.worker()
    doomed.kill()
    for name in ("a", "b"):
        stage.release(name)
    assert result.get(timeout=30) == ["a", "b", 1]
    stage.all_well()
    assert len(stage.history.started("job.gather")) == 1


# -- runs that end before they start


@pytest.mark.parametrize("how", ["revoked", pytest.param("expired", marks=pytest.mark.slow)])
def test_a_chord_fails_if_a_member_ends_before_it_starts(stage, how):
    """The job's member waits for room; the plain member is not due yet."""
    start(stage, plain_slots=2)
    chords = {}
    for kind in KINDS:
        tasks = stage.jobs.kind(kind)
        running, unstarted = tasks.kept.s("running"), tasks.kept.s("never")
        if kind == "plain":
            unstarted.set(countdown=0.5)
        if how == "expired":
            unstarted.set(expires=3 if kind == "job" else 0.3)
        first = send(stage, running) if kind == "job" else None
        if first is not None:
            stage.started(first)
        unstarted.freeze()
        chords[kind] = send(stage, chord([unstarted, tasks.add.s(1)], tasks.gather.s()))
        if kind == "job":
            stage.wait_waiting(1)
        if how == "revoked":
            stage.app.control.revoke(unstarted.id)
    for result in chords.values():
        assert failed_chord(result) == f"Dependency … raised TaskRevokedError('{how}')"
    assert outcome(chords["job"]) == outcome(chords["plain"])
    stage.release("running")
    stage.all_well()
    assert [event.note for event in stage.history.started("job.kept")] == ["running"]
    assert executions(stage, "gather") == (0, 0)


def test_waiting_runs_that_are_revoked_end_at_once(stage_on, broker):
    """Alone, in a chain, in a group; a get() on their result raises."""
    stage = stage_on(broker, CANVAS)
    stage.worker()
    kept, add = stage.jobs.kind("job").kept, stage.jobs.kind("job").add
    running = send(stage, kept.s("running"))
    stage.started(running)
    alone = stage.send(kept, "alone", link=stage.jobs.called.s(), link_error=stage.jobs.blamed.s())
    in_chain = (kept.s("in a chain") | add.s(1)).apply_async()
    in_group = send(stage, group(kept.s("in a group"), add.s(1)))
    stage.wait_waiting(3)
    revoked = [alone, in_chain.parent, in_group.results[0]]
    stage.app.control.revoke([result.id for result in revoked])
    for result in revoked:
        with pytest.raises(TaskRevokedError, match="revoked"):
            result.get(timeout=30)
    assert in_group.results[1].get(timeout=30) == 1
    stage.wait_waiting(0)  # since Celery 5.7 the result is stored before the ledger hears of it
    stage.release("running")
    stage.all_well()
    assert [event.note for event in stage.history.started("job.kept")] == ["running"]
    assert in_chain.state == "PENDING"
    assert not stage.history.started(f"{CANVAS}.called")
    # And the job continues.
    assert send(stage, kept.s("running")).get(timeout=30) == "running"


@pytest.mark.slow
def test_a_waiting_run_that_was_revoked_by_a_stamp_does_not_start(stage):
    worker = stage.worker()
    kept = stage.jobs.kind("job").kept
    running = send(stage, kept.s("running"))
    stage.started(running)
    stamped = kept.s("stamped")
    stamped.stamp(tenant="gone")
    result = send(stage, stamped)
    after = send(stage, kept.s("running"))
    stage.wait_waiting(2)
    stage.app.control.revoke_by_stamped_headers(
        {"tenant": ["gone"]}, reply=True, timeout=5, destination=[worker.hostname]
    )
    stage.release("running")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    assert after.get(timeout=30) == "running"
    stage.all_well()
    stage.ran_once([running, after])


def test_a_run_that_is_revoked_before_it_is_asked_about_does_not_start(stage):
    """It is in the worker's memory: all slots are busy, and Celery fetches more messages than there are slots."""
    busy = stage.worker(concurrency=1, env={"CELERY_ORCHESTRATION_FETCH": "celery"})
    blocker = stage.send(stage.jobs.held_free, "blocker")
    stage.started(blocker)
    kept = stage.jobs.kind("job").kept
    revoked, after = send(stage, kept.s("revoked")), send(stage, kept.s("after"))
    busy.wait_for_log(f"job.kept[{after.id}] received")
    revoked.revoke()
    assert stage.app.control.ping(timeout=2, destination=[busy.hostname])
    for name in ("blocker", "after"):
        stage.release(name)
    with pytest.raises(TaskRevokedError):
        revoked.get(timeout=30)
    assert after.get(timeout=30) == "after"
    stage.all_well()
    stage.ran_once([blocker, after])


@pytest.mark.slow
def test_a_run_that_is_revoked_between_its_attempts_is_not_tried_again(stage):
    start(stage)
    results = {}
    for kind in KINDS:
        result = results[kind] = send(stage, stage.jobs.kind(kind).retrying.s(1, 0.7))
        until(lambda result=result: result.state == "RETRY")
        result.revoke()
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert outcome(results["job"]) == outcome(results["plain"])
    stage.all_well()
    assert executions(stage, "retrying") == (1, 1)


def test_a_waiting_run_that_expires_ends_then(stage_on, broker):
    stage = stage_on(broker, CANVAS)
    stage.worker()
    kept = stage.jobs.kind("job").kept
    running = send(stage, kept.s("running"))
    stage.started(running)
    in_time = send(stage, kept.s("in time"), expires=600)
    stage.wait_waiting(1)
    expired = send(stage, kept.s("expired"), expires=3)
    stage.wait_waiting(2)
    with pytest.raises(TaskRevokedError, match="expired"):
        expired.get(timeout=30)
    assert status_of(stage.app).waiting == 1
    for name in ("running", "in time"):
        stage.release(name)
    assert in_time.get(timeout=30) == "in time"
    stage.all_well()
    stage.ran_once([running, in_time])


# -- later


@pytest.mark.slow
def test_a_run_that_is_not_due_yet_holds_no_room_and_one_that_is_waits_for_it(stage):
    stage.worker()
    kept = stage.jobs.kind("job").kept
    much_later = send(stage, kept.s("much later"), countdown=600)
    running = send(stage, kept.s("running"))
    stage.started(running)
    sent = time.time()
    later = send(stage, kept.s("later"), countdown=0.5)
    stage.wait_waiting(1)
    assert time.time() >= sent + 0.5
    for name in ("running", "later"):
        stage.release(name)
    assert later.get(timeout=30) == "later"
    much_later.revoke()
    stage.all_well()
    stage.ran_once([running, later])


@pytest.mark.slow
def test_runs_that_are_not_due_end_as_plain_ones_do(stage):
    """Revoked, or expired, before they are due; and one that is already due."""
    start(stage)

    def later(kind: str) -> dict[str, Result]:
        add = stage.jobs.kind(kind).add
        found = {
            "revoked": send(stage, add.s(1), countdown=0.5),
            "expired": send(stage, add.s(2), countdown=0.5, expires=0.2),
            "in time": send(stage, add.s(3), countdown=0.5, expires=30),
            "past": send(stage, add.s(4), countdown=-5),
        }
        found["revoked"].revoke()
        return found

    results = {kind: later(kind) for kind in KINDS}
    stage.all_well()
    plain, job = ({name: outcome(result) for name, result in results[kind].items()} for kind in KINDS)
    assert job == plain
    assert [state for state, *_ in plain.values()] == ["REVOKED", "REVOKED", "SUCCESS", "SUCCESS"]
    assert executions(stage, "add") == (2, 2)

"""Policies that could deadlock, and policies that change from release to release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import NotRegistered
from celery.result import AsyncResult

from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.invariants import all_ended, prefix_of, status_of
from support.stage import FAULTS, Stage
from support.wait import stays, until
from support.workers import Broker, WorkerProcess

RELEASES = "support.apps.releases"
NAME = f"{FAULTS}.{{}}".format
CAP = {"TEST_MAX_RUNNING": "1"}


# -- no deadlock


@pytest.mark.parametrize(
    "env", [pytest.param({}, id="no cap", marks=pytest.mark.slow), pytest.param(CAP, id="global cap of 1")]
)
def test_jobs_that_depend_on_what_they_block_and_critical_ones_that_wait_for_normal_ones_all_run(
    stage_on: Callable[..., Stage], redis_broker: Broker, env: dict[str, str]
) -> None:
    stage = stage_on(redis_broker, env=env)
    jobs = stage.jobs
    for process in [stage.worker(ready=False) for _ in range(2)]:
        process.wait_ready()
    first = [stage.send(job) for job in (jobs.urgent, jobs.publish, jobs.process)]
    stage.wait_waiting(3)
    assert {run.reason for run in status_of(stage.app).waits} == {f"waiting for {NAME('fetch')}: it has never ended"}
    for _ in range(6):
        for job in (jobs.publish, jobs.fetch, jobs.urgent, jobs.process, jobs.exclusive):
            stage.send(job)
    stage.all_well(timeout=40)
    stage.ran_once(stage.sent)
    fetched = stage.history.ended(NAME("fetch"))[0].monotonic
    assert all(stage.starts(result)[0].start.monotonic > fetched for result in first)
    if env:
        ends = 0.0
        for span in stage.history.spans():
            assert span.start.monotonic > ends, "two runs at once"
            ends = span.ended_at()


def test_under_a_global_cap_a_critical_run_goes_before_normal_ones_but_not_before_what_it_waits_for(
    stage_on: Callable[..., Stage], redis_broker: Broker
) -> None:
    stage = stage_on(redis_broker, env=CAP)
    jobs = stage.jobs
    stage.worker(concurrency=4)
    stage.started(stage.send(jobs.held_free, "blocker"))
    # It depends on fetch, which is sent last, is not critical, and finds no room.
    sent = [stage.send(jobs.urgent)]
    sent += [stage.send(jobs.free, 0, "normal") for _ in range(3)]
    sent += [stage.send(jobs.fetch)]
    stage.wait_waiting(5)
    sent += [stage.send(jobs.free, 0, "after"), stage.send(jobs.free, 0, "critical", priority="critical")]
    stage.wait_waiting(7)
    reasons = [run.reason for run in status_of(stage.app).waits]
    assert set(reasons) == {"waiting for room: as many runs of all jobs as allowed"}
    stage.release("blocker")
    stage.all_well()
    order = [event.note for event in stage.history.started()][1:]
    assert order == ["critical", "normal", "normal", "normal", "fetched", "urgent", "after"]


# -- several releases at once


class Deployment:
    """Releases of one app: workers whose code has different policies for the same jobs."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    @staticmethod
    def release(cap: int | None = None, **policies: dict[str, Any]) -> dict[str, str]:
        env = {"TEST_POLICIES": json.dumps({name: {} for name in "abcdefg"} | policies)}
        return env if cap is None else {**env, "TEST_CAP": str(cap)}

    def worker(self, release: dict[str, str], name: str, serving: bool = True) -> WorkerProcess:
        """With `serving` False it registers its policies and runs nothing."""
        how: dict[str, Any] = (
            {"concurrency": 9} if serving else {"pool": "solo", "concurrency": 1, "queues": ["another"]}
        )
        process = self.stage.worker(name=name, env=release, **how)
        # A worker may be ready before it is in the ledger.
        until(lambda: process.hostname in {one.name for one in status_of(self.stage.app).workers})
        until(lambda: self.in_force, message="its policies are in force")
        return process

    @property
    def in_force(self) -> bool:
        """Whether the policies in force are those of the live releases."""
        ledger, prefix = self.stage.ledger, prefix_of(self.stage.app)
        live = {
            ledger.hget(key_of(prefix, "worker", worker), "release")
            for worker in ledger.zrange(key_of(prefix, "leases"), 0, -1)
        }
        return set((ledger.hget(key_of(prefix, "ledger"), "releases") or "").split()) == live

    def send(self, job: str, until_there: str) -> AsyncResult:
        return self.stage.send(self.stage.jobs.jobs[job], until_there)

    def gone(self, process: WorkerProcess) -> None:
        process.stop()
        until(lambda: self.in_force, message="the policies of those that are left are in force")


@pytest.fixture
def deployment(stage_on: Callable[..., Stage], redis_broker: Broker) -> Deployment:
    return Deployment(stage_on(redis_broker, RELEASES, env=Deployment.release()))


#: Pairs of jobs of which, in the strict release, the second waits while the first runs.
PAIRS = {"max_running": "aa", "blocks": "bc", "blocked by": "de", "depends_on": "fg"}
STRICT = Deployment.release(
    a={"max_running": 1}, b={"blocks": ["c"]}, e={"blocks": ["d"]}, f={"max_running": 1}, g={"depends_on": ["f"]}
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strict", "pairs"),
    [(STRICT, PAIRS), (Deployment.release(cap=1), {"cap": "ab"})],
    ids=["jobs", "global cap"],
)
def test_while_two_releases_are_live_the_stricter_holds(
    deployment: Deployment, strict: dict[str, str], pairs: dict[str, str]
) -> None:
    """And no longer; whichever came first, and whichever is restarted."""
    stage, loose = deployment.stage, Deployment.release()
    strict_one = deployment.worker(strict, "strict", serving=False)
    deployment.worker(loose, "loose")
    for first, _ in pairs.values():
        stage.started(deployment.send(first, "go"))
    seconds = {name: deployment.send(second, "go") for name, (_, second) in pairs.items()}
    stage.wait_waiting(len(pairs))
    deployment.gone(deployment.worker(loose, "loose-again", serving=False))
    assert {run.id for run in status_of(stage.app).waits} == {second.id for second in seconds.values()}
    deployment.gone(strict_one)
    for second in seconds.values():
        stage.started(second)
    deployment.worker(strict, "strict-again", serving=False)
    thirds = [deployment.send(second, "go") for _, second in pairs.values()]
    stage.wait_waiting(len(thirds))
    stage.release("go")
    all_ended(stage.sent)
    stage.ran_once(stage.sent)


@pytest.mark.slow
def test_an_old_release_that_starts_again_does_not_take_over(deployment: Deployment) -> None:
    """An option that has no stricter value is the newest release's: an old release stays old however often it
    starts."""
    stage = deployment.stage
    old, new = Deployment.release(a={"max_recoveries": 0}), Deployment.release(a={"max_recoveries": 2})
    old_one = deployment.worker(old, "old", serving=False)
    serving = deployment.worker(new, "new")
    deployment.gone(old_one)
    deployment.worker(old, "old-again", serving=False)
    result = deployment.send("a", "go")
    serving.kill_child(stage.started(result).start.pid)
    stage.release("go")
    assert result.get(timeout=30) == "go"


@pytest.mark.slow
def test_a_job_that_no_release_has_any_more_goes_away(deployment: Deployment) -> None:
    stage = deployment.stage
    old_one = deployment.worker(Deployment.release(gone={"max_running": 1}), "old", serving=False)
    deployment.worker(Deployment.release(), "new")
    assert "gone" in [job.name for job in status_of(stage.app).jobs]
    deployment.gone(old_one)
    assert [job.name for job in status_of(stage.app).jobs] == list("abcdefg")


@pytest.mark.slow
def test_a_run_of_a_job_that_no_release_has_any_more_keeps_no_room(
    stage_on: Callable[..., Stage], redis_broker: Broker
) -> None:
    """It was running when the last worker that knew it died. It fails as in Celery, or it waits."""
    old, new = Deployment.release(cap=1, gone={}), Deployment.release(cap=1)
    deployment = Deployment(stage_on(redis_broker, RELEASES, env=old))
    stage = deployment.stage
    doomed = deployment.worker(old, "old")
    lost = deployment.send("gone", "never")
    stage.started(lost)
    deployment.worker(new, "new")
    waits = deployment.send("a", "go")
    stage.wait_waiting(1)
    doomed.kill()
    stage.release("go")
    assert waits.get(timeout=30) == "go"
    stays(lambda: len(stage.starts(lost)) == 1, 0.2)
    assert lost.state == "FAILURE" or [run.id for run in status_of(stage.app).waits if run.reason] == [lost.id]


def test_where_two_releases_share_a_queue_each_run_finds_the_one_that_has_its_job(
    stage_on: Callable[..., Stage], redis_broker: Broker
) -> None:
    """Whichever worker gets its message. A message of a job that no worker has is a dead letter, and fails as in
    Celery."""
    old = Deployment.release()
    new = Deployment.release(free={}, one={"max_running": 1}, keyed={"max_running": 1, "key": "{until_there}"})
    deployment = Deployment(stage_on(redis_broker, RELEASES, env=new))
    stage = deployment.stage
    stage.release("go")
    for release, name in ((old, "old"), (new, "new")):
        deployment.worker(release, name)
    for _ in range(10):
        for job in ("free", "one", "keyed", "a"):
            deployment.send(job, "go")
    lost = stage.app.send_task("misspelt", queue="celery")
    assert [result.get(timeout=60) for result in stage.sent] == ["go"] * 40
    stage.ran_once(stage.sent)
    where = {event.job: event.worker for event in stage.history.started() if event.job != "a"}
    assert where == dict.fromkeys(("free", "one", "keyed"), stage.workers[1].hostname)
    until(lambda: lost.state == "FAILURE")
    assert isinstance(lost.result, NotRegistered)
    orchestration = Orchestration(stage.app)
    assert [(letter.id, letter.job) for letter in orchestration.dead_letters()] == [(lost.id, "misspelt")]
    orchestration.purge(lost.id)
    stage.all_well()

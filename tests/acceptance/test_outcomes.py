"""Runs that fail, and the effect on their job.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError, WorkerLostError
from celery.result import AsyncResult

from celery_orchestration.errors import UnknownJob, UnknownRun
from celery_orchestration.operate import JobStatus, Orchestration
from support.history import History
from support.wait import stays, until
from support.workers import Broker, WorkerProcess, run_celery

APP = "support.apps.outcomes"
FRAGILE, PICKY, BREAKER = f"{APP}.fragile", f"{APP}.picky", f"{APP}.breaker"


class Site:
    def __init__(
        self, broker: Broker, jobs: ModuleType, process: WorkerProcess, history: History, scratch: Path
    ) -> None:
        self.broker, self.jobs, self.process, self.history, self.scratch = broker, jobs, process, history, scratch
        self.orchestration = Orchestration(jobs.app)

    def job(self, name: str = FRAGILE) -> JobStatus:
        return next(job for job in self.orchestration.status().jobs if job.name == name)

    def result(self, id: str) -> AsyncResult:
        return self.jobs.app.AsyncResult(id)

    def stored(self, id: str) -> dict[str, Any]:
        """The current state in the result backend."""
        return self.jobs.app.backend.get_task_meta(id, cache=False)

    def celery(self, *command: str) -> CompletedProcess[str]:
        return run_celery(APP, "orchestration", *command, broker=self.broker)

    def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(ConnectionError):
                self.jobs.fragile.delay().get(timeout=30)

    def break_it(self) -> None:
        self.fail(3)
        until(lambda: self.job().disabled)


@pytest.fixture
def site(
    broker: Broker,
    worker: Callable[..., WorkerProcess],
    load_app: Callable[..., ModuleType],
    history: History,
    tmp_path: Path,
) -> Site:
    env = {"TEST_SCRATCH": str(tmp_path)}
    process = worker(broker, APP, concurrency=3, env=env)
    site = Site(broker, load_app(broker, APP, env=env), process, history, tmp_path)
    until(lambda: site.orchestration.status().jobs)
    yield site
    site.orchestration.close()


def test_a_job_that_keeps_failing_is_disabled_and_says_why(site: Site) -> None:
    site.break_it()
    found = site.job()
    assert (found.state, found.failures, found.max_consecutive_failures) == ("disabled", 3, 3)
    assert found.disabled.by == "failures"
    assert found.disabled.why.startswith("3 failures in a row, the last: ConnectionError: no route to")
    told = site.scratch / "disabled-fragile"
    until(lambda: told.exists() and told.read_text() == found.disabled.why, message="the signal was sent")
    assert f"Job {FRAGILE} is disabled: 3 failures in a row" in site.process.log()
    # A run that is asked for meanwhile is held, and explain on its dependents names the job.
    held, follows = site.jobs.fragile.delay("held"), site.jobs.follower.delay()
    until(lambda: site.orchestration.status().waiting == 2)
    waits = {run.id: run.reason for run in site.orchestration.status().waits}
    assert waits[held.id].startswith("the job is disabled: 3 failures in a row")
    assert waits[follows.id].startswith(f"waiting for {FRAGILE}: it is disabled, 3 failures in a row")


def test_enabling_it_runs_what_was_held(site: Site) -> None:
    site.break_it()
    results = [site.jobs.fragile.delay(n) for n in range(5)]
    until(lambda: site.orchestration.status().waiting == 5)
    (site.scratch / "fixed").touch()
    site.orchestration.enable(FRAGILE)
    assert [result.get(timeout=30) for result in results] == list(range(5))
    assert site.job().failures == 0
    assert site.job().disabled is None
    assert [(one.what, one.about) for one in site.orchestration.audit()] == [("enable", FRAGILE), ("disable", FRAGILE)]


def test_success_in_between_begins_anew(site: Site) -> None:
    site.fail(2)
    (site.scratch / "fixed").touch()
    assert site.jobs.fragile.delay("fine").get(timeout=30) == "fine"
    (site.scratch / "fixed").unlink()
    site.fail(2)
    until(lambda: site.job().failures == 2)
    assert site.job().disabled is None


def test_an_error_that_cannot_be_shown_is_counted_all_the_same(site: Site) -> None:
    site.jobs.evil.delay().get(timeout=30, propagate=False)
    assert until(lambda: site.job(f"{APP}.evil").disabled).why.endswith(": Evil")


def test_by_hand_a_job_is_disabled_and_everything_paused(site: Site) -> None:
    (site.scratch / "fixed").touch()
    site.orchestration.disable(FRAGILE, "a look at it")
    result = site.jobs.fragile.delay("later")
    until(lambda: site.orchestration.status().waiting == 1)
    assert "a look at it" in site.orchestration.status().waits[0].reason
    site.orchestration.pause()
    site.orchestration.enable(FRAGILE)
    stays(lambda: not result.ready(), 0.5)
    site.orchestration.resume()
    assert result.get(timeout=30) == "later"
    who = {one.who for one in site.orchestration.audit()}
    assert len(who) == 1
    assert "@" in who.pop()


def test_a_waiting_run_is_cancelled(site: Site) -> None:
    site.orchestration.pause()
    result = site.jobs.fragile.delay()
    until(lambda: site.orchestration.status().waiting == 1)
    assert site.orchestration.cancel(result.id).cancelled
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    until(lambda: not site.orchestration.status().runs)
    with pytest.raises(UnknownRun):
        site.orchestration.cancel(result.id)


def test_an_unknown_job_is_named_with_a_suggestion(site: Site) -> None:
    with pytest.raises(UnknownJob, match=r"did you mean 'support\.apps\.outcomes\.fragile'"):
        site.orchestration.enable("support.apps.outcomes.fragil")


# -- a disabled job


def test_where_runs_are_dropped_while_a_job_is_disabled_they_end_as_revoked(site: Site) -> None:
    with pytest.raises(ValueError, match="not yet"):
        site.jobs.picky.delay().get(timeout=30)
    until(lambda: site.job(PICKY).disabled)
    dropped, late = site.jobs.picky.delay(), site.jobs.picky.apply_async(countdown=0.5)
    for result in (dropped, late):
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    assert {one.outcome for one in site.orchestration.history(PICKY)} == {"failed", "skipped"}
    (site.scratch / "fixed").touch()
    assert site.jobs.picky.delay("asked for").id
    forced = site.orchestration.trigger(PICKY, ["forced"], force=True)
    assert site.result(forced.run_id).get(timeout=30) == "forced"
    assert site.job(PICKY).disabled, "only a person or a probe enables it"


class TestProbe:
    def trip(self, site: Site) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="not yet"):
                site.jobs.breaker.delay().get(timeout=30)
        assert until(lambda: site.job(BREAKER).disabled).by == "failures"
        assert site.job(BREAKER).next_probe is not None

    def test_one_run_tries_whether_the_job_works_again_and_enables_it(self, site: Site) -> None:
        self.trip(site)
        (site.scratch / "hold").touch()
        (site.scratch / "fixed").touch()
        results = [site.jobs.breaker.delay(n) for n in range(4)]
        probe = until(lambda: site.job(BREAKER).probe)
        assert probe == results[0].id, "the first in rank"
        stays(lambda: len(site.history.running(BREAKER)) <= 1, 1.0)
        (site.scratch / "hold").unlink()
        assert [result.get(timeout=30) for result in results] == list(range(4))
        assert site.job(BREAKER).disabled is None
        assert site.orchestration.audit()[0].who == "probe"

    def test_one_that_fails_starts_the_wait_again(self, site: Site) -> None:
        self.trip(site)
        results = [site.jobs.breaker.delay(n) for n in range(2)]
        with pytest.raises(ValueError, match="not yet"):
            results[0].get(timeout=30)
        until(lambda: site.job(BREAKER).failures == 3)
        assert site.job(BREAKER).disabled
        (site.scratch / "fixed").touch()
        assert results[1].get(timeout=30) == 1

    def test_one_whose_process_dies_frees_its_place(self, site: Site) -> None:
        self.trip(site)
        (site.scratch / "hold").touch()
        doomed, other = site.jobs.breaker.delay("doomed"), site.jobs.breaker.delay("other")
        until(lambda: site.job(BREAKER).probe == doomed.id)
        site.process.kill_child(until(lambda: site.history.running(BREAKER))[0].start.pid)
        with pytest.raises(WorkerLostError):
            doomed.get(timeout=30)
        (site.scratch / "fixed").touch()
        (site.scratch / "hold").unlink()
        assert other.get(timeout=30) == "other"

    @pytest.mark.slow
    def test_with_many_workers_racing_there_is_one(self, site: Site, worker: Callable[..., WorkerProcess]) -> None:
        self.trip(site)
        site.orchestration.disable(BREAKER)
        site.orchestration.enable(BREAKER)
        self.trip(site)
        for _ in range(3):
            worker(site.broker, APP, concurrency=4, env={"TEST_SCRATCH": str(site.scratch)})
        (site.scratch / "hold").touch()
        results = [site.jobs.breaker.delay(n) for n in range(30)]
        until(lambda: site.history.running(BREAKER))
        stays(lambda: len(site.history.running(BREAKER)) == 1, 2)
        (site.scratch / "fixed").touch()
        (site.scratch / "hold").unlink()
        assert [result.get(timeout=30) for result in results] == list(range(30))


# -- dead letters


class TestDeadLetters:
    def dead_letter(self, site: Site, count: int) -> list[AsyncResult]:
        results = [site.jobs.stubborn.delay(n) for n in range(count)]
        for result in results:
            with pytest.raises(LookupError):
                result.get(timeout=30)
        until(lambda: site.orchestration.status().dead_letters == count)
        return results

    def test_a_run_that_failed_for_good_is_kept_whole(self, site: Site) -> None:
        (result,) = self.dead_letter(site, 1)
        found = site.orchestration.dead_letter(result.id)
        assert (found.job, found.error, found.retries) == (f"{APP}.stubborn", "LookupError: nothing for 0", 1)
        assert 'raise self.retry(exc=LookupError(f"nothing for {note}"))' in found.traceback
        assert (found.args, found.revoked) == ("(0,)", False)
        assert found.body_bytes > 10
        assert [letter.id for letter in site.orchestration.dead_letters()] == [result.id]
        assert site.orchestration.dead_letters(f"{APP}.fragile") == []

    def test_a_hundred_are_requeued_with_one_command(self, site: Site) -> None:
        results = self.dead_letter(site, 100)
        (site.scratch / "fixed").touch()
        done = site.celery("dlq", "requeue", "--all")
        assert done.stdout.strip() == "100 dead letters were requeued"
        # Checked without the results, which still have the failures.
        until(lambda: all(site.stored(result.id)["status"] == "SUCCESS" for result in results), 30)
        assert sorted(site.stored(result.id)["result"] for result in results) == list(range(100))
        assert site.orchestration.status().dead_letters == 0
        assert {one.what for one in site.orchestration.audit(1000)} == {"requeue"}

    def test_one_that_fails_again_is_a_dead_letter_again(self, site: Site) -> None:
        (result,) = self.dead_letter(site, 1)
        assert site.orchestration.requeue(result.id).runs == {result.id: result.id}
        until(lambda: len(site.history.started(f"{APP}.stubborn")) == 4, message="with all its retries")
        until(lambda: site.orchestration.status().dead_letters == 1)
        with pytest.raises(UnknownRun):
            site.orchestration.requeue("nothing")

    def test_a_requeued_letter_gets_a_new_id_if_it_was_revoked_and_never_expires(self, site: Site) -> None:
        result = site.jobs.stubborn.apply_async(("late",), expires=5, countdown=0.1)
        with pytest.raises(LookupError):
            result.get(timeout=30)
        until(lambda: site.orchestration.status().dead_letters == 1)
        result.revoke()
        until(lambda: site.orchestration.dead_letter(result.id).revoked)
        until(lambda: time.time() > site.orchestration.dead_letter(result.id).arrived.timestamp() + 5.2)
        (site.scratch / "fixed").touch()
        (new,) = site.orchestration.requeue(job=f"{APP}.stubborn").runs.values()
        assert new != result.id
        assert site.result(new).get(timeout=30) == "late"

    def test_they_are_purged_one_by_job_or_all(self, site: Site) -> None:
        results = self.dead_letter(site, 3)
        assert site.orchestration.purge(results[0].id).count == 1
        assert site.orchestration.purge(job=f"{APP}.fragile").count == 0
        assert site.celery("dlq", "purge", "--all", "--yes").stdout.strip() == "2 dead letters were removed"
        assert site.orchestration.status().dead_letters == 0

    def test_the_shell_shows_them(self, site: Site) -> None:
        (result,) = self.dead_letter(site, 1)
        listed = site.celery("dlq", "list").stdout
        assert result.id in listed
        assert "LookupError" in listed
        assert "Traceback" in site.celery("dlq", "show", result.id).stdout
        assert json.loads(site.celery("dlq", "list", "--json").stdout)[0]["id"] == result.id
        assert site.celery("dlq", "show", "nothing").returncode == 2
        for usage in (["requeue"], ["purge", "--yes"], ["requeue", result.id, "--all"], ["list", "--count", "0"]):
            assert site.celery("dlq", *usage).returncode == 2

    def test_a_slip_touches_no_dead_letter(self, site: Site) -> None:
        """Other typing errors: test_cli.py."""
        self.dead_letter(site, 1)
        for command in (
            ["dlq", "purge", "--job", "", "--yes"],
            ["dlq", "requeue", "--job", "typo"],
            ["dlq", "purge", "nothing", "--yes"],
        ):
            done = site.celery(*command)
            assert done.returncode == 2
            assert done.stderr.startswith("Error: ")
            assert len(done.stderr.splitlines()) == 1
        assert site.orchestration.status().dead_letters == 1


# -- by hand


def test_history_shows_how_runs_ended_and_what_they_waited_for(site: Site) -> None:
    (site.scratch / "fixed").touch()
    site.orchestration.pause()
    result = site.jobs.fragile.delay("waited")
    until(lambda: site.orchestration.status().waiting == 1)
    site.orchestration.resume()
    result.get(timeout=30)
    (found,) = until(lambda: site.orchestration.history(FRAGILE))
    assert (found.id, found.outcome, found.waited_for) == (result.id, "succeeded", "the end of a pause")
    assert found.fence == site.history.started(FRAGILE)[0].fence
    assert found.worker == site.process.hostname
    assert found.ended >= found.started >= found.arrived
    assert "succeeded" in site.celery("history", FRAGILE).stdout
    assert site.job().last_seconds is not None


def test_runs_are_cancelled_by_job_and_become_those_of_another(site: Site) -> None:
    (site.scratch / "fixed").touch()
    picky = f"{APP}.picky"
    lost = site.jobs.app.send_task("renamed", args=("lost",), queue="celery")
    until(lambda: [letter.id for letter in site.orchestration.dead_letters()] == [lost.id])
    site.orchestration.pause()
    moved, *others = (site.jobs.fragile.delay(n) for n in range(4))
    until(lambda: site.orchestration.status().waiting == 4)
    assert site.celery("requeue", moved.id, "--as", picky).stdout.strip() == "1 run was requeued"
    assert site.celery("requeue", "--as", picky, "--job", "renamed").stdout.strip() == "1 run was requeued"
    assert site.celery("requeue", "--as", "pickey", "--job", "renamed").returncode == 2
    asked = site.celery("cancel", "--job", FRAGILE)
    assert (asked.returncode, "have not started: 3" in asked.stderr) == (1, True)
    assert site.orchestration.unstarted(FRAGILE, "queued") == []
    done = site.celery("cancel", "--job", FRAGILE, "--state", "waiting", "--yes")
    assert done.stdout.strip() == "3 runs are cancelled"
    assert site.orchestration.cancel_all(FRAGILE).count == 0
    site.orchestration.resume()
    until(lambda: {result.state for result in others} == {"REVOKED"})
    assert moved.get(timeout=30) == 0
    until(lambda: site.stored(lost.id)["result"] == "lost", 30)  # the result still has the failure
    assert {event.run for event in site.history.started(picky)} == {moved.id, lost.id}
    assert site.orchestration.dead_letters() == []
    changes = [(one.what, one.about) for one in site.orchestration.audit()]
    assert changes[1:4] == [("cancel", "3 runs"), ("requeue", lost.id), ("requeue", moved.id)]


def test_everything_by_hand_is_in_the_audit(site: Site) -> None:
    (site.scratch / "hold").touch()
    run = site.orchestration.trigger(BREAKER)
    until(lambda: site.history.running(BREAKER))
    assert site.orchestration.cancel(run.run_id).state == "running"
    assert site.orchestration.cancel(run.run_id, terminate=True).terminated
    until(lambda: not site.orchestration.status().runs)
    site.orchestration.release_all()
    site.orchestration.disable(BREAKER, "why not")
    site.orchestration.enable(BREAKER)
    done = [(one.what, one.about, one.why) for one in reversed(site.orchestration.audit())]
    assert done == [
        ("trigger", BREAKER, ""),
        ("cancel", run.run_id, "terminated"),
        ("disable", BREAKER, "why not"),
        ("enable", BREAKER, ""),
    ]
    assert f"disable {BREAKER}: why not" in " ".join(site.celery("audit").stdout.split())


def test_a_forced_run_passes_a_pause_but_not_the_room(site: Site) -> None:
    (site.scratch / "hold").touch()
    (site.scratch / "fixed").touch()
    running = [site.jobs.breaker.delay(n) for n in range(2)]
    until(lambda: len(site.history.running(BREAKER)) == 2)
    site.orchestration.pause()
    sent = site.celery("trigger", BREAKER, "--args", '["now"]', "--force", "--json")
    forced = site.result(json.loads(sent.stdout)["run_id"])
    until(lambda: site.orchestration.status().waiting == 1)
    assert site.orchestration.status().waits[0].priority == "forced"
    (site.scratch / "hold").unlink()
    assert forced.get(timeout=30) == "now"
    assert [result.get(timeout=30) for result in running] == [0, 1]
    assert site.orchestration.status().paused


def test_all_waiting_runs_are_released_when_orchestration_is_off(
    site: Site, worker: Callable[..., WorkerProcess]
) -> None:
    (site.scratch / "fixed").touch()
    site.orchestration.pause()
    results = [site.jobs.fragile.delay(n) for n in range(5)] + [site.jobs.fragile.apply_async((5,), countdown=2)]
    until(lambda: site.orchestration.status().waiting == 5 and site.orchestration.status().later == 1)
    site.process.stop()
    assert site.celery("release", "--yes").stdout.strip() == "6 runs were published"
    env = {"TEST_SCRATCH": str(site.scratch), "CELERY_ORCHESTRATION_MODE": "off"}
    worker(site.broker, APP, env=env)
    assert sorted(result.get(timeout=30) for result in results) == list(range(6))
    assert site.orchestration.status().waiting == 0
    assert site.orchestration.audit()[0].what == "release"


# -- a job that kills its worker each time


@pytest.mark.slow
def test_a_run_that_kills_its_workers_is_tried_alone_and_dead_lettered_and_its_neighbours_go_on(
    site: Site, worker: Callable[..., WorkerProcess]
) -> None:
    env = {"TEST_SCRATCH": str(site.scratch)}
    neighbours = [site.jobs.bystander.delay(), site.jobs.bystander.delay()]
    until(lambda: len(site.history.running()) == 2)
    deadly = site.jobs.deadly.delay()
    living = [site.process]

    def somebody_lives() -> None:
        if not living[-1].running:
            living.append(worker(site.broker, APP, concurrency=3, env=env))

    site.process.kill()
    until(lambda: somebody_lives() or len(site.history.started(f"{APP}.deadly")) == 3, 60, poll=0.1)
    (site.scratch / "bystander").touch()
    until(lambda: somebody_lives() or all(result.ready() for result in (deadly, *neighbours)), 60, poll=0.1)
    with pytest.raises(WorkerLostError):
        deadly.get()
    assert [result.get() for result in neighbours] == ["bystander"] * 2
    assert len(site.history.started(f"{APP}.deadly")) == 4, "once, recovered twice, and once alone"
    assert [letter.id for letter in site.orchestration.dead_letters()] == [deadly.id]
    alone = site.history.spans(f"{APP}.deadly")[-1].start
    beside = [span.end for span in site.history.spans(f"{APP}.bystander") if span.start.worker == alone.worker]
    assert all(end is not None and end.monotonic < alone.monotonic for end in beside), "nothing else ran there"
    until(lambda: [death.runs for death in site.orchestration.status().died][:1] == [1])

"""Runs that fail, and what comes of their job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from celery.exceptions import TaskRevokedError

from celery_orchestration.errors import UnknownJob
from celery_orchestration.operate import JobStatus, Orchestration
from support.history import History
from support.wait import stays, until
from support.workers import Broker, WorkerProcess

APP = "support.apps.outcomes"
FRAGILE = f"{APP}.fragile"


class Site:
    def __init__(self, jobs: ModuleType, process: WorkerProcess, history: History, scratch: Path) -> None:
        self.jobs, self.process, self.history, self.scratch = jobs, process, history, scratch
        self.orchestration = Orchestration(jobs.app)

    def job(self, name: str = FRAGILE) -> JobStatus:
        return next(job for job in self.orchestration.status().jobs if job.name == name)

    def fail(self, times: int) -> None:
        for _ in range(times):
            with pytest.raises(ConnectionError):
                self.jobs.fragile.delay().get(timeout=10)

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
    process = worker(broker, APP, env=env)
    site = Site(load_app(broker, APP, env=env), process, history, tmp_path)
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
    # What is asked for meanwhile is held, and dependents explain themselves with it.
    held, follows = site.jobs.fragile.delay("held"), site.jobs.follower.delay()
    until(lambda: site.orchestration.status().waiting == 2)
    waits = {run.id: run.reason for run in site.orchestration.status().waits}
    assert waits[held.id].startswith("the job is disabled: 3 failures in a row")
    assert waits[follows.id] == f"waiting for {FRAGILE}: it is disabled"


def test_enabling_it_runs_what_was_held(site: Site) -> None:
    site.break_it()
    results = [site.jobs.fragile.delay(n) for n in range(5)]
    until(lambda: site.orchestration.status().waiting == 5)
    (site.scratch / "mended").touch()
    site.orchestration.enable(FRAGILE)
    assert [result.get(timeout=10) for result in results] == list(range(5))
    assert site.job().failures == 0
    assert site.job().disabled is None
    assert [(one.what, one.about) for one in site.orchestration.audit()] == [("enable", FRAGILE), ("disable", FRAGILE)]


def test_success_in_between_begins_anew(site: Site) -> None:
    site.fail(2)
    (site.scratch / "mended").touch()
    assert site.jobs.fragile.delay("fine").get(timeout=10) == "fine"
    (site.scratch / "mended").unlink()
    site.fail(2)
    until(lambda: site.job().failures == 2)
    assert site.job().disabled is None


def test_an_error_that_cannot_be_shown_is_counted_all_the_same(site: Site) -> None:
    site.jobs.evil.delay().get(timeout=10, propagate=False)
    assert until(lambda: site.job(f"{APP}.evil").disabled).why.endswith(": Evil")


def test_by_hand_a_job_is_disabled_and_everything_paused(site: Site) -> None:
    (site.scratch / "mended").touch()
    site.orchestration.disable(FRAGILE, "a look at it")
    result = site.jobs.fragile.delay("later")
    until(lambda: site.orchestration.status().waiting == 1)
    assert "a look at it" in site.orchestration.status().waits[0].reason
    site.orchestration.pause()
    site.orchestration.enable(FRAGILE)
    stays(lambda: not result.ready(), 0.5)
    site.orchestration.resume()
    assert result.get(timeout=10) == "later"
    who = {one.who for one in site.orchestration.audit()}
    assert len(who) == 1
    assert "@" in who.pop()


def test_a_run_that_waits_is_called_off(site: Site) -> None:
    site.orchestration.pause()
    result = site.jobs.fragile.delay()
    until(lambda: site.orchestration.status().waiting == 1)
    assert site.orchestration.cancel(result.id)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=15)
    assert not site.orchestration.cancel(result.id)


def test_an_unknown_job_is_named_with_a_suggestion(site: Site) -> None:
    with pytest.raises(UnknownJob, match=r"did you mean 'support\.apps\.outcomes\.fragile'"):
        site.orchestration.enable("support.apps.outcomes.fragil")

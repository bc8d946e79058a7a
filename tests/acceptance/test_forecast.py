"""`orchestration forecast` on the schedule of a real project, before and after its jobs have run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.forecast.report import Forecast
from support.stage import Stage
from support.wait import until
from support.workers import Broker, run_celery

SCHEDULED = "support.apps.scheduled"
JOBS = {
    "fetch": {"interval_seconds": 60, "seconds": 0.3},
    "process": {"interval_seconds": 120, "depends_on": ["fetch"]},
    "cleanup": {"interval_seconds": 3600, "blocks": ["process"], "seconds": 0.1},
}


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, SCHEDULED, env={"TEST_SCHEDULE": json.dumps({"jobs": JOBS})})


def asked(stage: Stage, *arguments: str) -> tuple[int, str]:
    done = run_celery(SCHEDULED, "orchestration", "forecast", *arguments, broker=stage.broker, env=stage.env)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_predicts_when_jobs_will_run_before_any_worker_was_there(stage: Stage):
    code, text = asked(stage, "--hours", "1", "--json")
    found: dict[str, Any] = json.loads(text)
    assert {job["job"]: job["runs"] for job in found["jobs"]} == {"fetch": 60, "process": 30, "cleanup": 1}
    assert {job["source"] for job in found["jobs"]} == {"unknown"}
    assert code == 0


def test_it_knows_from_the_statistics_how_long_runs_take_and_says_what_will_wait(stage: Stage):
    stage.worker()
    for name in ("fetch", "cleanup"):
        stage.send(stage.jobs.tasks[name]).get(timeout=30)
    client = Orchestration(stage.app)

    def known() -> Forecast | None:
        found = client.forecast(2)
        sources = {job.job: job.source for job in found.jobs}
        return found if sources["fetch"] == sources["cleanup"] == "statistics" else None

    found = until(known, 20)
    assert {(one.job, one.rule, one.waits_for) for one in found.collisions} >= {("process", "depends", "fetch")}
    client.close()
    _, text = asked(stage, "--hours", "2")
    assert "process waits for fetch (depends)" in text
    assert "jobs" in text


def test_more_than_a_week_is_refused(stage: Stage):
    done = run_celery(SCHEDULED, "orchestration", "forecast", "--hours", "1000", broker=stage.broker, env=stage.env)
    assert done.returncode == 2

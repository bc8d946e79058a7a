"""A Django project's worker: a job that is sent on commit runs after the commit, on its own queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.stage import Stage
from support.wait import until
from support.workers import Broker

APP = "support.apps.django_shop"


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker, tmp_path: Path) -> Stage:
    return stage_on(redis_broker, APP, env={"TEST_DATABASE": str(tmp_path / "db.sqlite3")})


def test_jobs_that_are_sent_on_commit_run_on_their_queue(stage: Stage) -> None:
    stage.worker(env={"DJANGO_SETTINGS_MODULE": "support.apps.django_settings"})
    with pytest.raises(ValueError, match="not paid"):
        stage.send(stage.jobs.order, 1, False).get(timeout=30)
    assert stage.send(stage.jobs.order, 2, True).get(timeout=30) == 2
    until(lambda: len(stage.history.ended()) == 2, message="what was paid is shipped")
    notes = sorted(event.note for event in stage.history.ended())
    assert notes == [[2, "celery"], [2, "default.high"]]
    # Celery's own tasks have the app's class, too, and are no jobs.
    assert stage.send(stage.app.tasks["celery.accumulate"], 3, 4).get(timeout=30) == [3, 4]
    stage.all_well()

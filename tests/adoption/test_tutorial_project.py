"""The layout of Celery's tutorial, with worker, beat and commands as processes, at default settings."""

from __future__ import annotations

import json

import pytest

from adoption.project import PATIENCE
from support.wait import until


@pytest.fixture(scope="module")
def proj(open_project):
    """With a worker and a beat."""
    made = open_project("tutorial", "proj")
    made.worker()
    made.beat()
    return made


def test_plain_tasks_and_jobs_run_side_by_side(proj):
    assert proj.python(
        "from proj.tasks import add, mul; answer([add.delay(2, 3).get(60), mul.delay(2, 3).get(60)])"
    ) == [
        5,
        6,
    ]


def test_a_jobs_schedule_is_fired(proj):
    runs = until(
        lambda: found if len(found := proj.asked("history", "proj.tasks.fetch")) >= 2 else None, PATIENCE, poll=1
    )
    assert {run["outcome"] for run in runs} == {"succeeded"}


def test_celerys_own_commands_reach_jobs(proj):
    run_id = proj.celery("call", "proj.tasks.mul", "--args", "[6, 7]").stdout.strip()
    assert proj.celery("result", run_id).stdout.strip() == "42"
    registered = json.loads(proj.celery("inspect", "registered", "--json").stdout)
    assert all("proj.tasks.xsum" in tasks for tasks in registered.values())


def test_commands_know_the_jobs_of_modules_that_only_include_names(proj):
    assert "written" in proj.orchestration("explain", "proj.tasks.xsum", code=None)
    proj.orchestration("trigger", "proj.tasks.xsum", "--args", "[[1, 2]]")
    until(lambda: proj.asked("history", "proj.tasks.xsum"), PATIENCE, "it ran", poll=0.5)
    proj.orchestration("schedule", "add", "often", "proj.tasks.mul", "1", "--args", "[2, 3]")
    until(lambda: len(proj.asked("history", "proj.tasks.mul")) >= 2, PATIENCE, "it is fired", poll=0.5)
    proj.orchestration("schedule", "remove", "often")


def test_a_queue_that_nobody_serves_is_reported(proj):
    assert "nightly.low" in proj.orchestration("status", code=1)


def test_doctor_finds_a_misspelt_name_before_a_worker_starts(open_project):
    fresh = open_project("tutorial", "proj")
    tasks = fresh.directory / "proj" / "tasks.py"
    tasks.write_text(
        tasks.read_text("utf-8").replace("max_running=1)", 'depends_on=["proj.tasks.fetchh"])', 1), "utf-8"
    )
    told = fresh.orchestration("doctor", code=1)
    assert "proj.tasks.fetchh" in told
    assert "did you mean" in told

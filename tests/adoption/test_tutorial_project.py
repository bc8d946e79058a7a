"""The layout of Celery's tutorial, with worker, beat and commands as processes, at default settings."""

from __future__ import annotations

import json

import pytest

from support.project import PATIENCE
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

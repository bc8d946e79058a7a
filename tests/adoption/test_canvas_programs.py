"""Every program of ``projects/canvas`` has the same result with plain tasks and with jobs, and executes each task
equally often.

Three workers and three drivers work in parallel: plain tasks, jobs without written options, jobs with max_running=1.
Each program has a minute, from its own beginning.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest

from adoption.project import PROJECTS, Project
from support.wait import until

KINDS = ("plain", "inherits", "exclusive")
_SOURCE = (PROJECTS / "canvas" / "play" / "programs.py").read_text("utf-8")
PROGRAMS = [name.replace("_", " ") for name in re.findall(r"@program\ndef (\w+)", _SOURCE)]


@pytest.fixture(scope="module")
def found(open_project) -> dict[str, dict[str, Any]]:
    """The output of each kind: the result of each program, and how often each task was executed."""
    drivers = {}
    for kind in KINDS:
        project: Project = open_project("canvas", "play", env={"PLAY_KIND": kind})
        # One slot for plain tasks: with more, an attempt that retries may store its state after the next one's.
        project.worker(*(["-c", "1"] if kind == "plain" else []))
        drivers[kind] = project.start("python", "-m", "play.programs", ready="{", name="programs")
    found = {}
    for kind, driver in drivers.items():
        with contextlib.suppress(AssertionError):  # each program that was not reached fails by itself
            until(lambda driver=driver: not driver.running, 200, poll=0.2)
        lines = [json.loads(line) for line in driver.log().splitlines() if line.startswith("{")]
        found[kind] = {line.get("program", "executions"): line for line in lines}
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_same_result(found, name):
    plain, inherits, exclusive = (found[kind].get(name, {"found": "not reached"})["found"] for kind in KINDS)
    assert "did not end" not in str(plain)
    assert inherits == plain
    assert exclusive == plain


def test_each_task_was_executed_as_often(found):
    assert all("executions" in found[kind] for kind in KINDS), "all programs ended"
    plain, inherits, exclusive = (found[kind]["executions"] for kind in KINDS)
    assert inherits == plain
    assert exclusive == plain

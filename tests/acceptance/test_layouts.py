"""Projects in the layouts of Celery's guides: the app is in one module, its tasks are in others that only a worker
imports by itself. Commands and ``Orchestration(app)`` know the jobs nevertheless."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from redis import Redis

from celery_orchestration import Orchestration
from celery_orchestration.errors import ConfigurationError
from support.workers import TESTS, Broker, close_app, environment, run_celery

PROJECTS = TESTS / "support" / "projects"


@dataclass(frozen=True)
class Layout:
    """Its folder, the value of ``-A``, and the module that has its tasks."""

    directory: str
    app: str
    tasks: str


LAYOUTS = (Layout("tutorial", "proj", "proj.tasks"), Layout("django", "mysite", "orders.tasks"))

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.directory)
def layout(request: pytest.FixtureRequest) -> Layout:
    found: Layout = request.param
    return found


@pytest.fixture
def run(layout: Layout, redis_broker: Broker) -> Run:
    """``run("orchestration", "status")``: runs the command as a process, to its end."""

    def run_command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = environment(PROJECTS / layout.directory)["PYTHONPATH"]
        return run_celery(layout.app, *arguments, broker=redis_broker, env={"PYTHONPATH": path, **env}, timeout=60)

    return run_command


def answer(done: subprocess.CompletedProcess[str], exit_code: int = 0) -> Any:
    assert done.returncode == exit_code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_commands_know_the_jobs(layout: Layout, run: Run, redis_broker: Broker) -> None:
    job, queue = f"{layout.tasks}.add", Redis.from_url(redis_broker.broker_url)
    assert answer(run("orchestration", "trigger", job, "--args", "[1, 2]", "--json"))["job"] == job
    assert queue.llen("default.high") == 1
    assert answer(run("orchestration", "schedule", "add", "sums", job, "60", "--args", "[1, 2]", "--json"))["is_job"]
    status = answer(run("orchestration", "status", "--json"), 1)
    assert {"default.high", "images.normal"} <= {one["name"] for one in status["queues"]}
    options = answer(run("orchestration", "explain", f"{layout.tasks}.draw", "--json"), 1)["options"]
    assert ("pool", "images", "written") in [(one["name"], one["value"], one["source"]) for one in options]
    run("call", job, "--args", "[1, 2]").check_returncode()
    assert queue.llen("default.high") == 2
    queue.close()


def test_doctor_examines_them(layout: Layout, run: Run) -> None:
    found = answer(run("orchestration", "doctor", "--json", TEST_BREAK="name"), 1)
    [code] = [check for check in found["checks"] if check["name"] == "code"]
    assert code["state"] == "problem"
    assert f"did you mean '{layout.tasks}.add'?" in code["found"]


def test_a_module_that_cannot_be_imported_is_reported_in_one_line(layout: Layout, run: Run) -> None:
    problem = "the app's tasks cannot be loaded: ModuleNotFoundError: No module named 'there_is_no_such_module' ("
    where = layout.tasks.replace(".", "/") + ".py, line "

    done = run("orchestration", "trigger", f"{layout.tasks}.add", TEST_BREAK="import")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {problem}")
    assert where in done.stderr
    assert done.stderr.count("\n") == 1

    found = answer(run("orchestration", "doctor", "--json", TEST_BREAK="import"), 1)
    [code] = [check for check in found["checks"] if check["name"] == "code"]
    assert (code["state"], code["found"].startswith(problem)) == ("problem", True)

    paused = run("orchestration", "pause", TEST_BREAK="import")
    assert (paused.returncode, paused.stderr) == (0, ""), "what needs no job works"


# -- in a process of the project: a web server, a script


@pytest.fixture
def client(redis_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orchestration]:
    layout = LAYOUTS[0]
    monkeypatch.syspath_prepend(PROJECTS / layout.directory)
    for variable, value in redis_broker.env().items():
        monkeypatch.setenv(variable, value)
    try:
        app = importlib.import_module(f"{layout.app}.celery").app
        with closing(Orchestration(app)) as client:
            yield client
        close_app(app)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == layout.app]:
            del sys.modules[name]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.trigger("proj.tasks.add", [1, 2]),
        lambda client: client.schedule.add("sums", "proj.tasks.add", 60, [1, 2]),
        lambda client: client.graph("proj.tasks.draw"),
        lambda client: client.explain("proj.tasks.draw"),
    ],
    ids=["trigger", "schedule", "graph", "explain"],
)
def test_orchestration_knows_the_jobs(client: Orchestration, ask: Callable[[Orchestration], object]) -> None:
    assert "proj.tasks" not in sys.modules
    assert "proj.tasks" in repr(ask(client))


def test_a_module_is_imported_once_and_its_error_is_reported_each_time(
    client: Orchestration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_BREAK", "import")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="there_is_no_such_module"):
            client.trigger("proj.tasks.add", [1, 2])
    assert any("there_is_no_such_module" in line for line in client.status().problems)

"""The examples do what the documentation says of them."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from kombu.utils.imports import symbol_by_name

from celery_orchestration import OrchestratedScheduler
from celery_orchestration.policy import Policy, Priority
from celery_orchestration.task import jobs_of, settings_of
from support.workers import PROJECT, close_app, environment


@pytest.fixture
def load_pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    monkeypatch.syspath_prepend(str(PROJECT))
    monkeypatch.delenv("PIPELINE_PACE", raising=False)
    with contextlib.ExitStack() as cleanups:

        def load() -> ModuleType:
            monkeypatch.delitem(sys.modules, "examples.pipeline", raising=False)
            module = importlib.import_module("examples.pipeline")
            cleanups.callback(close_app, module.app)
            return module

        yield load
    sys.modules.pop("examples.pipeline", None)


@pytest.fixture
def pipeline(load_pipeline: Callable[[], ModuleType]) -> ModuleType:
    return load_pipeline()


def test_the_pipeline_has_the_jobs_of_the_documentation(pipeline: ModuleType) -> None:
    jobs = jobs_of(pipeline.app)
    assert set(jobs) == {f"examples.pipeline.{name}" for name in ("fetch_data", "process_data", "cleanup")}
    fetch, process, cleanup = (jobs[f"examples.pipeline.{name}"] for name in ("fetch_data", "process_data", "cleanup"))

    def written(job: Policy) -> set[str]:
        return {option for option, source in job.sources.items() if source == "written"}

    assert written(fetch) == {"interval_seconds", "timeout_seconds", "priority"}
    assert (fetch.interval_seconds, fetch.timeout_seconds, fetch.priority) == (60, 30, Priority.HIGH)
    assert written(process) == {"interval_seconds", "depends_on"}
    assert process.interval_seconds == 120
    assert [(each.name, each.on) for each in process.depends_on] == [(pipeline.fetch_data.name, "success")]
    assert written(cleanup) == {"interval_seconds", "priority", "blocks"}
    assert (cleanup.interval_seconds, cleanup.priority) == (3600, Priority.LOW)
    assert cleanup.blocked == (pipeline.process_data.name,)
    assert {(job.mode, job.max_running) for job in jobs.values()} == {("scheduled", 1)}


def test_the_pipeline_runs_by_our_scheduler(pipeline: ModuleType) -> None:
    assert symbol_by_name(pipeline.app.conf.beat_scheduler) is OrchestratedScheduler
    assert settings_of(pipeline.app).term_seconds == 10


def test_time_may_pass_faster_for_the_pipeline(
    load_pipeline: Callable[[], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_PACE", "20")
    pipeline = load_pipeline()
    jobs = (pipeline.fetch_data, pipeline.process_data, pipeline.cleanup)
    assert [job.orchestration.interval_seconds for job in jobs] == [3, 6, 180]
    assert settings_of(pipeline.app).term_seconds == 1


def test_the_pipeline_can_be_called_as_functions(pipeline: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Redis."""
    monkeypatch.setattr(pipeline.time, "sleep", lambda _: None)
    assert [job() for job in (pipeline.fetch_data, pipeline.process_data, pipeline.cleanup)] == [
        "fetched",
        "processed",
        "cleaned up",
    ]


def on_a_terminal(command: list[str], env: dict[str, str], timeout: float) -> tuple[int, str]:
    """Runs it to its end with a terminal for its output. Returns its exit status and what it wrote, without escapes."""
    terminal, its_side = pty.openpty()
    fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    process = subprocess.Popen(
        command, cwd=PROJECT, env=env, stdin=subprocess.DEVNULL, stdout=its_side, stderr=its_side
    )
    os.close(its_side)
    deadline = time.monotonic() + timeout
    written = b""
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.5)[0]:
                try:
                    written += os.read(terminal, 65536)
                except OSError:  # so Linux says that nobody has the other side open any more
                    break
        returncode = process.wait(max(1, deadline - time.monotonic()))
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    text = written.decode(errors="replace").replace("\r", "")
    return returncode, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def started_with(name: str, value: str) -> list[psutil.Process]:
    """Living processes with this in their environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where the demo keeps its files; by it all its processes are known, and ended should it not have done so."""
    yield tmp_path
    for process in started_with("TMPDIR", str(tmp_path)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow
def test_the_demo_shows_what_happens_runs_to_its_end_and_leaves_nothing_behind(scratch: Path) -> None:
    env = {**environment(), "TERM": "xterm", "COLUMNS": "120", "TMPDIR": str(scratch)}
    returncode, shown = on_a_terminal([sys.executable, "-m", "examples.demo"], env, timeout=100)
    assert returncode == 0, shown[-3000:]
    left = started_with("TMPDIR", str(scratch))
    assert (left, list(scratch.iterdir())) == ([], [])
    assert "Traceback" not in shown
    # While it happens: who leads, what is fired, who runs, who waits, and why.
    assert re.search(r"scheduler 1: This scheduler leads \(term \d+\)", shown)
    assert re.search(r"scheduler 2: Standing by: \S+ leads", shown)
    for name in ("fetch_data", "process_data"):
        assert re.search(rf"scheduler \d: fires {name}$", shown, re.M)
    assert re.search(r"^ ?\w{8} +examples\.pipeline\.fetch_data +running +\S+@\S+ +\d+ s", shown, re.M)
    assert re.search(r"^ ?\w{8} +examples\.pipeline\.process_data +\d+ s +waiting for", shown, re.M)
    assert "process_data waits: waiting for examples.pipeline.fetch_data: it has never ended" in shown
    assert re.search(
        r"cleanup waits: waiting for examples\.pipeline\.process_data: running on \S+@\S+ for \d+ s", shown
    )
    assert re.search(r"scheduler (\d), which leads, is killed with SIGKILL", shown)
    assert re.search(r"scheduler (\d) has taken over, \d+\.\d s after scheduler (?!\1)\d was killed", shown)
    assert "every pool process of the worker is killed with SIGKILL" in shown
    # And at the end.
    for name, least in (("fetch_data", 5), ("process_data", 2)):
        [counts] = re.findall(
            rf"{name}: (\d+) due: (\d+) made a run, (\d+) skipped, (\d+) missed; none lost, none twice", shown
        )
        due, *became = map(int, counts)
        assert due == sum(became) >= least
    assert re.search(r"[1-9] asked for by hand; [1-9]\d* runs waited, the longest for \d+\.\d s", shown)
    assert re.search(r"processes killed while fetch_data ran: started again [1-9]", shown)
    for what in ("two runs of fetch_data", "two runs of process_data", "two runs of cleanup"):
        assert f"{what} at the same time: 0 times" in shown
    assert "process_data and cleanup at the same time: 0 times" in shown


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_fire_is_accounted_for_while_either_scheduler_is_killed_at_random(scratch: Path) -> None:
    """A minute of what ``make endurance`` does for ten, at a pace at which all three jobs are due."""
    env = {**environment(), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "examples.endurance", "--minutes", "1", "--pace", "80", "--seed", "7"]
    ended = subprocess.run(command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "every fire is accounted for" in ended.stdout
    due = {job: int(count) for job, count in re.findall(r"^(\w+): (\d+) due", ended.stdout, re.M)}
    assert due["fetch_data"] > 50
    assert due["process_data"] > 25
    assert due["cleanup"] > 0
    assert re.search(r"SIGKILL, one stood by: [1-9]", ended.stdout)
    assert (started_with("TMPDIR", str(scratch)), list(scratch.iterdir())) == ([], [])

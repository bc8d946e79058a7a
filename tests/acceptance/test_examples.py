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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from celery_orchestration.policy import Policy, Priority
from celery_orchestration.task import jobs_of
from support.workers import PROJECT, close_app, environment


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(PROJECT))
    monkeypatch.delitem(sys.modules, "examples.pipeline", raising=False)
    module = importlib.import_module("examples.pipeline")
    yield module
    close_app(module.app)
    del sys.modules["examples.pipeline"]


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
    # While it happens: who runs, who waits, and why.
    assert re.search(r"^ \w{8} +examples\.pipeline\.fetch_data +running +\S+@\S+ +\d+ s", shown, re.M)
    assert re.search(r"^ \w{8} +examples\.pipeline\.process_data +\d+ s +waiting for", shown, re.M)
    assert "process_data waits: waiting for examples.pipeline.fetch_data: it has never ended" in shown
    assert re.search(
        r"cleanup waits: waiting for examples\.pipeline\.process_data: running on \S+@\S+ for \d+ s", shown
    )
    assert "every pool process of the worker is killed with SIGKILL" in shown
    # And at the end.
    for name in ("fetch_data", "process_data", "cleanup"):
        [(sent, ended)] = re.findall(rf"{name}: (\d+) sent, (\d+) ended, \d+ of them waited", shown)
        assert int(sent) == int(ended) >= 3
    assert "were started again, none was lost" in shown
    assert "two runs of fetch_data at the same time: 0 times" in shown
    assert "process_data and cleanup at the same time: 0 times" in shown

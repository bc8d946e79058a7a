"""The examples do what the documentation says."""

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
from PIL import Image

from celery_orchestration import OrchestratedScheduler
from celery_orchestration.job.app import settings_of
from celery_orchestration.job.options import Priority
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.task import jobs_of
from support.processes import ManagedProcess, free_port
from support.workers import PROJECT, celery_command, close_app, environment


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
    """Runs a command to its end with a terminal for its output. Returns its exit status and its output, without
    escapes."""
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
                except OSError:  # so Linux reports that the other side is closed
                    break
        returncode = process.wait(max(1, deadline - time.monotonic()))
    finally:
        os.close(terminal)
        process.kill()
        process.wait()
    text = written.decode(errors="replace").replace("\r", "")
    return returncode, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.slow
def test_the_demo_breaks_things_runs_to_its_end_and_leaves_nothing_behind(
    scratch: Path, started_with: Callable[[str, str], list[psutil.Process]]
) -> None:
    env = {**environment(), "TERM": "xterm", "COLUMNS": "120", "TMPDIR": str(scratch)}
    returncode, shown = on_a_terminal([sys.executable, "-m", "examples.demo"], env, timeout=100)
    assert returncode == 0, shown[-3000:]
    left = started_with("TMPDIR", str(scratch))
    assert (left, list(scratch.iterdir())) == ([], [])
    assert "Traceback" not in shown
    story = [
        r"^celery -A examples\.pipeline orchestration up$",
        r"up +\| starts a private Redis at 127\.0\.0\.1:\d+",
        r"default-1 +\| .* ready\.",
        r"process_data waits: waiting for examples\.pipeline\.fetch_data: running on default-1@\S+ for \d+ s",
        r"fetch_data has succeeded, and process_data ran at once",
        r"fetch_data runs: the processes of its worker are killed in the middle of it",
        r"the run has succeeded in its second try",
        r"the whole worker is killed with SIGKILL",
        r"pools +\| Worker default-1 was killed by signal 9; it is restarted in 1 s",
        r"its supervisor has started another one on its place",
        r"the scheduler is killed with SIGKILL",
        r"scheduler +\| .*This scheduler leads",
        r"cleanup waits: the job is disabled: stocktaking",
        r"enabled again, it has succeeded",
        r"up +\| everything has ended",
        r"nothing is left behind$",
    ]
    for line in story:
        found = re.search(line, shown, re.M)
        assert found, f"{line} is not in its place:\n{shown}"
        shown = shown[found.end() :]


@pytest.fixture
def image_service(scratch: Path, started_with: Callable[[str, str], list[psutil.Process]]) -> Iterator[dict[str, str]]:
    """``up`` on the image service; yields the environment for its load generator."""
    ports = [str(free_port()) for _ in range(3)]
    env = {
        **environment(),
        "TMPDIR": str(scratch),
        "IMAGE_SERVICE_REDIS": f"redis://127.0.0.1:{ports[0]}/0",
        "IMAGE_SERVICE_SMTP_PORT": ports[1],
        "IMAGE_SERVICE_WEBHOOK_PORT": ports[2],
        "IMAGE_SERVICE_OUTPUT": str(scratch / "output"),
    }
    command = celery_command("examples.image_service", "orchestration", "up", "--data", str(scratch / "data"))
    up = ManagedProcess("up", command, env=env, directory=scratch)
    up.start()
    try:
        for pool in ("images", "email", "default"):
            up.wait_for_log(f"{pool}-1@", 60)
        yield env
        assert up.stop(60) == 0, up.tail()
    finally:
        up.cleanup()
    assert started_with("TMPDIR", str(scratch)) == []


@pytest.mark.slow
def test_the_image_service_works_off_its_load_and_loses_nothing(image_service: dict[str, str], scratch: Path) -> None:
    command = [sys.executable, "-m", "examples.image_service.load", "--jobs", "400", "--seed", "3"]
    ended = subprocess.run(
        command, cwd=PROJECT, env=image_service, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"400 of 400 jobs drained in \d+ s \(\d+/s\), 0 lost, 0 twice", ended.stdout)
    # The counts of the mail server and the web server.
    got = {
        kind: (came, different) for came, kind, different in re.findall(r"got (\d+) times (\w+), (\d+)", ended.stdout)
    }
    assert set(got) == {"mail", "webhook"}
    assert all(came == different for came, different in got.values())
    output = scratch / "output"
    thumbnails, invoices = list((output / "thumbnails").iterdir()), list((output / "invoices").iterdir())
    assert len(thumbnails) + len(invoices) + len(list((output / "exports").iterdir())) == 400 - sum(
        int(came) for came, _ in got.values()
    )
    with Image.open(thumbnails[0]) as picture:
        assert (picture.format, picture.size) == ("JPEG", (160, 120))
    assert invoices[0].read_bytes().startswith(b"%PDF")


def test_the_load_generator_reports_lost_jobs_and_jobs_that_ran_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT))
    load = importlib.import_module("examples.image_service.load")
    found = load.account({"mail": 3, "export": 1}, {"mail 0": 1, "mail 2": 2, "export 0": 1}, 2.0)
    assert (found.sent, found.lost, found.twice) == (4, 1, 1)
    assert str(found) == "3 of 4 jobs drained in 2 s (2/s), 1 lost, 1 twice"
    close_app(load.app)
    for name in [name for name in sys.modules if name.startswith("examples.image_service")]:
        del sys.modules[name]

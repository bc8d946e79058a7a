"""Shared by the demo and the endurance run: a Redis, a worker and schedulers of their own, which always end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from celery import Celery

from celery_orchestration.pools.private_redis import redis_server
from examples.fires import Record

JOBS = ("fetch_data", "process_data", "cleanup")
MOST_RECORDS = 10_000


class Service:
    """A process with its log in a file, which can be started many times."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, **env: str) -> None:
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self._command, self._env = list(command), {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._read = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._env, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> None:
        if self._process is not None:
            self._process.wait(seconds)

    def end(self) -> None:
        """Ends the process, whatever state it is in."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.terminate()
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def new_lines(self) -> list[str]:
        """The complete lines of its log since the last call."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read().rpartition(b"\n")[0]
        self._read += len(text) + 1 if text else 0
        return text.decode(errors="replace").splitlines()

    def wait_for(self, text: str, seconds: float = 20) -> None:
        def has_said() -> bool:
            if not self.alive:
                sys.exit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")
            return text in self.log.read_text(errors="replace")

        wait_until(f"{self.name} says {text!r}", has_said, seconds)

    def children(self) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []


class Scheduler(Service):
    """``celery beat``. Only its log says whether it leads."""

    #: When it began to lead, in seconds since 1970, or None.
    leads: float | None = None
    stands_by = False

    def start(self) -> None:
        self.leads, self.stands_by = None, False
        super().start()

    def read_log(self) -> None:
        """Reads the lines of its log since the last call: they say whether it leads."""
        for line in self.new_lines():
            match = re.match(r"\[(\S+ \S+),(\d{3}): \w+/\S+\] (.*)", line)
            if match is None:
                continue
            at, ms, text = match.groups()
            if text.startswith("This scheduler leads ("):
                self.leads, self.stands_by = datetime.fromisoformat(f"{at}.{ms}").timestamp(), False
            elif text.startswith(("Standing by", "This scheduler no longer leads")):
                self.leads, self.stands_by = None, True


class Timeline(threading.Thread):
    """When runs started and ended, from Celery's own events: what the workers really did, independent of the ledger."""

    def __init__(self, app: Celery) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.started: dict[str, list[float]] = defaultdict(list)
        self.ended: dict[str, float] = {}
        self.stopped = False

    def run(self) -> None:
        def note(event: dict[str, Any]) -> None:
            if event["type"] == "task-started":
                self.started[event["uuid"]].append(event["timestamp"])
            elif event["type"] in ("task-succeeded", "task-failed"):
                self.ended[event["uuid"]] = event["timestamp"]

        with contextlib.suppress(Exception), self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": note})
            for _ in receiver.itercapture(limit=None, timeout=None, wakeup=False):
                if self.stopped:
                    return

    def overlaps(self, first: Collection[str], second: Collection[str]) -> int:
        """How often a run of the first jobs overlapped with another run of the second jobs."""
        spans = [(times[-1], self.ended.get(id, float("inf")), id) for id, times in self.started.items()]
        found, running = 0, []
        for start, end, id in sorted(spans):
            running = [one for one in running if one[0] > start]
            found += sum((id in first and one in second) or (id in second and one in first) for _, one in running)
            running.append((end, id))
        return found


class Stage:
    """Made by :func:`stage`. Redis runs; the worker and the schedulers wait to be started."""

    def __init__(self, pipeline: ModuleType, folder: Path, port: int) -> None:
        from celery_orchestration import Orchestration  # noqa: PLC0415

        celery = [sys.executable, "-W", "ignore", "-m", "celery", "-A", pipeline.__name__]
        self.port = port
        self.pipeline = pipeline
        self.orchestration = Orchestration(pipeline.app)
        self.timeline = Timeline(pipeline.app)
        self.worker = Service("worker", [*celery, "worker", "-c", "4", "-E", "-l", "info"], folder)
        self.schedulers = [Scheduler(f"scheduler {n}", [*celery, "beat", "-l", "info"], folder) for n in (1, 2)]

    def start_worker(self) -> None:
        self.timeline.start()
        self.worker.start()
        self.worker.wait_for(" ready.")

    @property
    def leader(self) -> Scheduler | None:
        return next((one for one in self.schedulers if one.leads and one.alive), None)

    def is_idle(self) -> bool:
        status = self.orchestration.status(depths=False)
        return not status.runs and not status.waiting and not status.later

    def is_all_seen(self) -> bool:
        """Whether Celery's events of all ended runs have arrived."""
        ended = {record.id for records in self.history().values() for record in records if record.started}
        return ended <= self.timeline.started.keys() & self.timeline.ended.keys()

    def together(self) -> dict[str, int]:
        """How often jobs overlapped that must not, according to the workers' events."""
        ids = {job: {record.id for record in records} for job, records in self.history().items()}
        pairs = [(f"two runs of {job}", job, job) for job in JOBS]
        pairs.append(("process_data and cleanup", "process_data", "cleanup"))
        return {what: self.timeline.overlaps(ids[first], ids[second]) for what, first, second in pairs}

    def entries(self) -> dict[str, dict[str, str]]:
        """How far the schedule has come, for each job."""
        found = self.orchestration._ledger.read_entries(0, 100)
        return {fields["task"].rpartition(".")[2]: fields for _, fields in found if "next" in fields}

    def first_due(self) -> dict[str, int]:
        """When each entry was due first, in ms; empty while no scheduler has planned them."""
        found = {}
        for job, entry in self.entries().items():
            so_far = sum(int(entry.get(count, 0)) for count in ("fires", "skips", "misses"))
            found[job] = int(entry["next"]) - so_far * self.every(job)
        return found if len(found) == len(JOBS) else {}

    def history(self) -> dict[str, list[Record]]:
        """The records of each job, the latest first."""
        return {
            job: [
                Record.read(one)
                for one in self.orchestration._ledger.read_history(self.name_of(job), MOST_RECORDS) or ()
            ]
            for job in JOBS
        }

    def name_of(self, job: str) -> str:
        return f"{self.pipeline.__name__}.{job}"

    def every(self, job: str) -> int:
        """Milliseconds between two fires."""
        return round(getattr(self.pipeline, job).orchestration.interval_seconds * 1000)


@contextlib.contextmanager
def stage(pace: float) -> Iterator[Stage]:
    """Everything that is started inside the block ends with it, however it ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory(prefix="orchestration-") as scratch, contextlib.ExitStack() as cleanups:
        folder, port = Path(scratch), free_port()
        command = [redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", scratch]
        redis = Service("redis", command, folder)
        cleanups.callback(redis.end)
        redis.start()
        redis.wait_for("eady to accept")

        os.environ |= {"PIPELINE_REDIS": f"redis://127.0.0.1:{port}/0", "PIPELINE_PACE": f"{pace:g}"}
        from examples import pipeline  # noqa: PLC0415

        found = Stage(pipeline, folder, port)
        cleanups.callback(found.orchestration.close)
        for service in (found.worker, *found.schedulers):
            cleanups.callback(service.end)
        yield found


def wait_until(what: str, condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""Shared by all parts: how much to measure, progress, and private servers and workers that always end."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import redis
from celery import Celery

from support.servers import RedisServer
from support.workers import CeleryProcess, WorkerProcess, celery_command

#: The longest time without any progress, in seconds.
PATIENCE = 120.0
#: Words that must not be in the log of a measured worker.
TROUBLE = ("ERROR", "CRITICAL", "Traceback")


@dataclass(frozen=True)
class ScheduleSize:
    """Sizes of (e): the number of periods of ten seconds in which fires are counted, the seconds of other measurements,
    and how often a leader is terminated and killed."""

    rounds: int
    periods: int
    seconds: int
    terminations: int
    kills: int


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    tasks: int
    exclusive_runs: int
    waiting: tuple[int, ...]
    turns: int
    memory_runs: int
    #: (d): the number of other waiting runs, of runs whose lateness is measured, and of delayed runs, with their delay
    #: in seconds.
    held_runs: int
    late_runs: int
    put_off_runs: int
    put_off_seconds: int
    #: (g): how often each command is run.
    command_rounds: int
    schedule: ScheduleSize
    #: (f): how often each command is run.
    plugin_rounds: int
    #: (k): the number of workers that are killed, for each execution pool. (i): seconds.
    kills: int
    idle_seconds: int
    #: (h): the number of jobs that arrive at once, and quiet_seconds of their pool; the number of heavy jobs and of
    #: quick ones, and how long to wait for the latter; seconds of kills.
    pool_jobs: int
    pool_quiet_seconds: int
    pool_heavy: int
    pool_quick: int
    pool_patience: int
    pool_kill_seconds: int


_WAITING = (10, 10_000, 100_000)
_HELD = 1000
FULL = Size(
    9,
    5000,
    200,
    _WAITING,
    1000,
    20_000,
    _HELD,
    200,
    10_000,
    60,
    15,
    ScheduleSize(3, 3, 20, 5, 3),
    31,
    100,
    20,
    50_000,
    60,
    10_000,
    1000,
    60,
    300,
)
QUICK = Size(
    1,
    1500,
    100,
    _WAITING,
    300,
    5_000,
    _HELD,
    50,
    2_000,
    15,
    4,
    ScheduleSize(1, 1, 8, 2, 1),
    5,
    2,
    8,
    10_000,
    10,
    4_000,
    200,
    10,
    40,
)


@dataclass
class Stage:
    size: Size
    directory: Path
    #: What went wrong besides missed goals: lost tasks, errors in logs.
    problems: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.say(f"PROBLEM: {text}")

    @contextlib.contextmanager
    def redis(self) -> Iterator[RedisServer]:
        server = RedisServer(self.directory)
        try:
            yield server.start()
        finally:
            server.cleanup()

    @contextlib.contextmanager
    def worker(self, app: str, broker_url: str, **env: str) -> Iterator[WorkerProcess]:
        """A stock worker with two slots and default options. It is killed at the end, and its log is searched for
        errors."""
        worker = WorkerProcess(
            "bench.apps",
            broker_url=broker_url,
            backend_url="",
            directory=self.directory,
            name=app,
            pool="prefork",
            concurrency=2,
            loglevel="WARNING",
            quick=False,
            env={"BENCH_APP": app, "BENCH_BROKER": broker_url, **env},
        )
        try:
            worker.start()
            yield worker
        finally:
            worker.cleanup()
        self._look_through(worker)

    @contextlib.contextmanager
    def beat(
        self, app: str, broker_url: str, scheduler: str, schedule: Sequence[tuple[int, float]]
    ) -> Iterator[CeleryProcess]:
        """A ``celery beat`` with this many entries at these intervals. It is killed at the end."""
        name = f"beat-{uuid.uuid4().hex[:8]}"
        options = ("-S", scheduler, "-s", str(self.directory / f"{name}.db"), "-l", "WARNING")
        env = {"BENCH_APP": app, "BENCH_BROKER": broker_url, "BENCH_SCHEDULER": scheduler}
        process = CeleryProcess(
            name,
            celery_command("bench.apps", "beat", *options),
            directory=self.directory,
            env={**env, "BENCH_SCHEDULE": json.dumps(schedule)},
        )
        try:
            process.start()
            yield process
        finally:
            process.cleanup()
        if app == "fires":
            self._look_through(process)

    def _look_through(self, process: CeleryProcess) -> None:
        for line in process.log().splitlines():
            if any(word in line for word in TROUBLE):
                self.problem(f"log of {process.name}: {line}")
                break


@contextlib.contextmanager
def stage(size: Size) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        yield Stage(size, Path(directory))


@contextlib.contextmanager
def client(broker_url: str) -> Iterator[Celery]:
    """An app that can send tasks and ask for results, and has no tasks of its own."""
    app = Celery("client", broker=broker_url, set_as_current=False)
    try:
        yield app
    finally:
        app.close()


class Depth:
    """The number of messages in the broker, including those that were delivered and not acknowledged. The question is
    asked on a plain socket and takes twenty microseconds, so that it disturbs the measurement little."""

    def __init__(self, port: int, db: int, queue: str = "celery") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._answers = self._socket.makefile("rb")
        self._question = f"LLEN {queue}\r\nHLEN unacked\r\n".encode()
        self._socket.sendall(f"SELECT {db}\r\n".encode())
        self._answers.readline()

    def read(self) -> int:
        self._socket.sendall(self._question)
        return sum(int(self._answers.readline()[1:]) for _ in range(2))

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@dataclass(frozen=True)
class Cpu:
    """Processor seconds of each process since its start, and of the whole machine."""

    main: float
    children: float
    redis: float
    machine: float

    @classmethod
    def read(cls, main: int, children: Sequence[int], redis: int) -> Cpu:
        machine = psutil.cpu_times()
        busy = sum(machine) - machine.idle - getattr(machine, "iowait", 0) - getattr(machine, "guest", 0)
        return cls(cpu_seconds(main), sum(map(cpu_seconds, children)), cpu_seconds(redis), busy)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(
            self.main - other.main,
            self.children - other.children,
            self.redis - other.redis,
            self.machine - other.machine,
        )

    @property
    def others(self) -> float:
        """The processor time of the whole machine, the benchmark's own included."""
        return max(0.0, self.machine - self.main - self.children - self.redis)


class Others:
    """The share of a core that programs other than the benchmark's took since this object was made, stolen time
    included."""

    def __init__(self) -> None:
        self._begun, self._used = time.monotonic(), self._read()

    def share(self) -> float:
        """Checks that the processes of the benchmark that existed at the beginning still exist."""
        used = self._read()
        return max(0.0, used - self._used) / (time.monotonic() - self._begun)

    @staticmethod
    def _read() -> float:
        me = psutil.Process()
        ours = [me.pid, *(child.pid for child in me.children(recursive=True))]
        ended = me.cpu_times()
        used = sum(map(cpu_seconds, ours)) + ended.children_user + ended.children_system
        return Cpu.read(ours[0], ours[1:], me.pid).machine - used


def verb_calls(client: redis.Redis) -> dict[str, int]:
    """How often the ledger's verbs were called since the last reset, and for how many microseconds."""
    stats = client.info("commandstats")
    found = [stats[name] for name in ("cmdstat_evalsha", "cmdstat_fcall") if name in stats]
    return {figure: sum(one[figure] for one in found) for figure in ("calls", "usec")}


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system  # type: ignore[no-any-return]


def machine(redis_version: str) -> dict[str, Any]:
    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "not installed"

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "redis": redis_version,
        **{name: installed(name) for name in ("celery", "kombu", "hiredis", "billiard")},
        **{name: installed(name) for name in ("celery-singleton", "celery-redbeat")},
        "redis-py": installed("redis"),
        "load_before": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

"""Runs a supervisor as a process: signals, and output on a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any

from celery_orchestration.job.policy import Policy
from celery_orchestration.job.pool import Pool, pool_problems
from celery_orchestration.job.text import printable
from celery_orchestration.pools.supervisor import PREFIX, Supervisor

#: Timeout for reading the configuration again, in seconds.
RELOAD_SECONDS = 20.0


class Output:
    """Prints the lines of many processes, one at a time, each with the name of its process."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._lock = threading.Lock()
        #: The terminal was closed, or the reader of the pipe has gone.
        self.is_gone = False

    def __call__(self, prefix: str, line: str) -> None:
        own = f"{datetime.now():%H:%M:%S} " if prefix == PREFIX else ""
        with self._lock:
            if self.is_gone:
                return
            try:
                print(f"{prefix:<12} | {own}{printable(line)}", file=self._file, flush=True)
            except (OSError, ValueError):
                self.is_gone = True


def run(supervisor: Supervisor, read_again: Sequence[str], output: Output) -> int:
    """Run until a signal stops it: SIGTERM and Ctrl-C drain, a second one stops; SIGHUP reads the configuration again.

    `read_again`: the command that prints the table as JSON. `output`: where the supervisor writes. If the terminal was
    closed, the workers drain.
    """
    signals: list[int] = []
    wake = threading.Event()

    def heard(number: int, _: Any) -> None:
        signals.append(number)
        wake.set()

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        supervisor.start()
        while not supervisor.is_over:
            while signals:
                _obey(supervisor, signals.pop(0), read_again)
            if output.is_gone and not supervisor.stopping:
                supervisor.drain()
            # With a timeout: the signal handler runs in this thread, and may set the event just before the wait.
            wake.wait(supervisor.step())
            wake.clear()
    finally:
        supervisor.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if supervisor.superseded else 0


def _obey(supervisor: Supervisor, number: int, read_again: Sequence[str]) -> None:
    if number == signal.SIGHUP:
        reload(supervisor, read_again)
    elif supervisor.stopping:
        supervisor.say("Second stop signal: running tasks are ended, and go back to their queue")
        supervisor.stop_now()
    else:
        supervisor.say(f"Stopping on {signal.Signals(number).name}")
        supervisor.drain()


def reload(supervisor: Supervisor, read_again: Sequence[str]) -> None:
    """Read the configuration in another process, because loaded modules of this one do not change."""
    try:
        found = subprocess.run(
            list(read_again),
            capture_output=True,
            text=True,
            timeout=RELOAD_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if found.returncode != 0:
            error = " ".join((found.stderr or found.stdout).split())
            return supervisor.say(f"The configuration cannot be read, and stays as it was: {error[-500:]}")
        read = json.loads(found.stdout)
        table = {name: Pool(**options) for name, options in read["pools"].items()}
    except (OSError, subprocess.TimeoutExpired, ValueError) as exc:
        return supervisor.say(f"The configuration cannot be read, and stays as it was: {exc}")
    return supervisor.reload(table, read["problems"])


def table_as_json(table: Mapping[str, Pool], jobs: Mapping[str, Policy]) -> str:
    """The table of pools, and its mismatches with the jobs of the same code."""
    pools = {name: pool.model_dump(mode="json", exclude_unset=True) for name, pool in table.items()}
    return json.dumps({"pools": pools, "problems": pool_problems(table, jobs)})


def command_to_read_again(app_name: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", app_name, "orchestration", "pools", "--table"]

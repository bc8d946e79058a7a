"""One worker process of a place: its start, its output, its drain and its end.

The thread that starts it must live as long as the supervisor: the kernel signals the worker when that thread ends
(see ``child``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic, time

from celery_orchestration.pools import child, machine
from celery_orchestration.worker.supervised import HURRY

#: How many lines of its output are kept, to explain its death.
KEPT_LINES = 30
#: Seconds that a worker gets to end its tasks after the drain time, before it is killed.
ENDING_SECONDS = 15.0

OnLine = Callable[[str, str], None]


class WorkerProcess:
    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], nice: int, on_line: OnLine) -> None:
        """`on_line`: gets the name and each line of its output, on a separate thread."""
        self.name = name
        self.command = list(command)
        self._on_line = on_line
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.started = monotonic()
        self.started_ms = int(time() * 1000)
        #: When its drain began, by the monotonic clock; and its drain time. None: as long as its runs take.
        self.draining_since: float | None = None
        self.drain_seconds: float | None = None
        self.why_draining = ""
        self._stopped_at: float | None = None
        self._killed = False
        self._process = subprocess.Popen(
            [sys.executable, child.__file__, str(os.getpid()), str(nice), *command],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.started_at = machine.started_at(self.pid)
        self._reader = threading.Thread(target=self._read, name=f"output of {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for raw in output:
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                self.tail.append(line)
                with suppress(Exception):  # an error in the callback must not block the worker on a full pipe
                    self._on_line(self.name, line)

    def exit_code(self) -> int | None:
        """None while it lives. When it has ended, the processes that are left in its group are killed, because other
        workers may have its runs by then."""
        code = self._process.poll()
        if code is not None and not self._killed:
            self._killed = True
            self._signal_group(signal.SIGKILL)
            self._reader.join(0.5)
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
        return code

    @property
    def age(self) -> float:
        return monotonic() - self.started

    def drain(self, why: str, seconds: float | None) -> None:
        """It takes no new messages, and its tasks may finish, within `seconds` if given. If called again, the shorter
        time applies."""
        if self.draining_since is None:
            self.draining_since, self.drain_seconds, self.why_draining = monotonic(), seconds, why
            self._send(signal.SIGTERM)
        elif seconds is not None:
            total = monotonic() - self.draining_since + seconds
            self.drain_seconds = total if self.drain_seconds is None else min(self.drain_seconds, total)

    def step(self) -> None:
        """End it if its drain time is over."""
        if self.draining_since is None or self.drain_seconds is None or self._process.poll() is not None:
            return
        now = monotonic()
        if self._stopped_at is None and now - self.draining_since > self.drain_seconds:
            self.stop()
        elif self._stopped_at is not None and now - self._stopped_at > ENDING_SECONDS:
            self.kill()

    def stop(self) -> None:
        """End its tasks; they go back to their queues."""
        if self._stopped_at is None:
            self._stopped_at = monotonic()
            self.draining_since = self.draining_since or self._stopped_at
            self.drain_seconds = 0.0
            self._send(signal.SIGCONT)  # a suspended process would not get the signal
            self._send(signal.SIGTERM)
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.write(HURRY + b"\n")
                self._process.stdin.flush()

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)
        self._send(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_code() is not None

    def memory_mb(self) -> float | None:
        return machine.resident_mb(self.pid)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

"""A child process that can always be found, paused, killed and accounted for.

Every process that the tests start is a ``ManagedProcess``. It leads its own session, so that all its descendants can be
found by that session's id even after their parent died. All of them are in one list (``survivors`` returns those that
still exist), and a guard process ends them if the test run itself is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from support.wait import until

# Below the range from which the kernel takes the ports of outgoing connections (from 32768 on Linux): the
# port of a server that is down for a while cannot be taken by a client's connection, nor can a client that
# reconnects in a loop end up connected to itself. Test runs side by side have ports of their own.
_RUN = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RUNS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
PORTS = range(15000 + _RUN, 32000, _RUNS)

_given_ports: set[int] = set()


def free_port() -> int:
    """A loopback port on which nothing listens, never the same twice in one test run."""
    for _ in range(1000):
        port = random.choice(PORTS)
        if port not in _given_ports and not _taken(port):
            _given_ports.add(port)
            return port
    raise RuntimeError("no free port found")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def listening(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Guard:
    """Reports to guard.py, which is started with the first process, which process groups are ours."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                text=True,
            )
            atexit.register(self.close)
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def watch(self, group: int) -> None:
        self._tell(f"+{group}")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None


_guard = _Guard()


@dataclass(frozen=True)
class _Started:
    """One start of a process; with the test that started it, for the report about left-over processes."""

    name: str
    process: psutil.Process
    test: str


_started: list[_Started] = []


def survivors() -> list[str]:
    """Every process that was started, or that such a process left behind, and that still exists."""
    found = []
    for started in _started:
        alive = _session_members(started.process.pid)
        if _alive(started.process) and started.process.pid not in alive:
            alive.append(started.process.pid)
        if alive:
            found.append(f"{started.name}: pids {alive}, started in {started.test}")
    return found


def close_guard() -> None:
    """End the guard; a later start of a process starts another one."""
    _guard.close()


def _alive(process: psutil.Process) -> bool:
    """Whether something of it can still run. A dead process that its parent has not collected yet cannot, unless only
    its main thread is dead: the other threads of a killed process may take a moment longer, and its sockets are open
    until then."""
    try:
        if not process.is_running():
            return False
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _session_members(session: int) -> list[int]:
    members = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.getsid(pid) == session and _alive(psutil.Process(pid)):
                members.append(pid)
    return members


class ManagedProcess:
    """A command, started any number of times, each time as the leader of its own session. Its output goes to one log
    file.

    ``deaths`` has for each pid that was killed from here the time of the kill (``time.monotonic()``, just before the
    signal): nothing of it ran for more than an instant after that.
    """

    # A text in the log, since the last start, that says that it is ready.
    ready_prompt: str | None = None

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        log_path: Path | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env)
        self.directory = directory
        self.log_path = log_path or directory / f"{name}.log"
        self.deaths: dict[int, float] = {}
        self.paused = False
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    # -- life

    def start(self) -> None:
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        self.paused = False
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._popen = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _guard.watch(self._popen.pid)
        test = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        _started.append(_Started(self.name, psutil.Process(self._popen.pid), test))

    def wait_ready(self, timeout: float = 60) -> None:
        """Waits until ``ready_prompt`` is in the log of this start."""
        if self.ready_prompt is not None:
            self.wait_for_log(self.ready_prompt, timeout)

    def wait_for_log(self, text: str, timeout: float = 30) -> None:
        """Waits until this start's log has ``text``; if the process ends before, fails with its log."""

        def logged() -> bool:
            running = self.running
            if text in self.log_of_this_start():
                return True
            if not running:
                raise AssertionError(f"{self.name} ended ({self.returncode}) before {text!r}:\n{self.tail()}")
            return False

        until(logged, timeout, f"{self.name} logs {text!r}", poll=0.05)

    def stop(self, timeout: float = 30) -> int:
        """SIGTERM to the main process; all of it must be gone by ``timeout``. Returns the exit status."""
        popen = self._popen
        if popen is None:
            return 0
        deadline = time.monotonic() + timeout
        self.resume()
        if popen.poll() is None:
            popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(timeout)
        try:
            until(
                lambda: not self.pids(),
                max(1.0, deadline - time.monotonic()),
                f"{self.name} stops\n{self.tail()}",
            )
        finally:
            self.cleanup()
        return popen.returncode

    def kill(self, *, whole: bool = True) -> dict[int, float]:
        """SIGKILL to the whole process group, as in a power failure, or to the main process alone. Returns when they
        are gone, with the time of each death."""
        popen = self._popen
        if popen is None or (not whole and popen.returncode is not None):
            return {}
        if not whole:
            deaths = self._kill(psutil.Process(popen.pid))
            popen.wait(10)
            return deaths
        # The whole group at once: no member notices the death of another one.
        family = self._family()
        deaths = self._kill(*family, group=popen.pid)
        self.cleanup()
        return deaths

    def _kill(self, *processes: psutil.Process, group: int | None = None) -> dict[int, float]:
        deaths = dict.fromkeys((process.pid for process in processes), time.monotonic())
        self.deaths.update(deaths)
        if group is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        until(lambda: not any(map(_alive, processes)), 30, f"pids {list(deaths)} of {self.name} are dead")
        return deaths

    def cleanup(self) -> None:
        """Ends it, whatever its state: afterwards nothing of it runs."""
        popen = self._popen
        if popen is None:
            return
        for _ in range(100):
            family = self._family()
            if not family and popen.poll() is not None:
                break
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(0.05)
            psutil.wait_procs(family, timeout=0.05)
        _guard.forget(popen.pid)

    # -- signals

    def signal(self, number: int, *, whole: bool = False) -> None:
        """Sends a signal to the main process, or to the whole process group."""
        if self._popen is None or self._popen.poll() is not None:
            return
        (os.killpg if whole else os.kill)(self._popen.pid, number)

    def pause(self, *, whole: bool = True) -> None:
        """SIGSTOP, until ``resume``: the clock goes on, the process does not."""
        self.signal(signal.SIGSTOP, whole=whole)
        self.paused = True

    def resume(self) -> None:
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGCONT)
        self.paused = False

    # -- looking

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether the main process exists (also if it is paused)."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._popen is None else self._popen.poll()

    def pids(self) -> list[int]:
        """All living processes of the last start, the main process first."""
        return [process.pid for process in self._family()]

    def children(self) -> list[int]:
        """The direct children of the main process: with prefork, the processes of the execution pool."""
        try:
            found = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        return sorted(child.pid for child in found if _alive(child))

    def log(self) -> str:
        return self._read_log(0)

    def log_of_this_start(self) -> str:
        return self._read_log(self._log_start)

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def _read_log(self, offset: int) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(offset)
            return log.read().decode("utf-8", errors="replace")

    def _family(self) -> list[psutil.Process]:
        """The main process, its session, and descendants that left that session (Erlang's helpers do)."""
        if self._popen is None:
            return []
        family: dict[int, psutil.Process] = {}
        pids = [self._popen.pid] if self._popen.poll() is None else []
        for pid in [*pids, *_session_members(self._popen.pid)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for member in [process, *process.children(recursive=True)]:
                    family.setdefault(member.pid, member)
        return [process for process in family.values() if _alive(process)]

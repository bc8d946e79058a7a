"""A place and the worker on it: started again when it dies, with back-off; replaced, or stopped for good."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from celery_orchestration.ledger import Place
from celery_orchestration.pools import machine
from celery_orchestration.pools.command import node_name
from celery_orchestration.pools.worker_process import OnLine, WorkerProcess

#: Seconds until a worker that died is started again: twice as long each time, up to the last.
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
#: The same for a worker that had registered: it can start, so that its place should not be without one for long.
LONGEST_DELAY_AT_WORK = 8.0
#: A worker that lived so long had started well: its deaths before are forgotten.
WELL_SECONDS = 30.0
#: So many deaths in a row before the worker had registered are reported loudly.
CRASH_LOOP = 3
#: Lines of its output that are shown then.
SHOWN_LINES = 12
#: Seconds for which people are told of a worker that was stalled.
STALL_SHOWN_SECONDS = 600.0

Then = Literal["again", "leave"]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker is started."""

    command: list[str]
    environment: Mapping[str, str]
    nice: int


class Post:
    def __init__(self, place: Place, launch: Callable[[Place], Launch], on_line: OnLine) -> None:
        """`launch`: says how a worker is started, if that is to be now."""
        self.place = place
        self.name = node_name(place)
        self._launch, self._on_line = launch, on_line
        self.worker: WorkerProcess | None = None
        self._start_at = 0.0
        self._then: Then = "again"
        self.restarts = -1
        #: In a row, each soon after a start; and those of them before the worker had registered.
        self._deaths = self._deaths_at_start = 0
        self._has_registered = False
        self._last_death = ""
        #: How the last stall showed, and when it was seen.
        self._stall: tuple[str, float] | None = None
        #: Process and start of a worker that the last supervisor of this name had here.
        self._last: tuple[int, str] | None = None
        self.is_over = False

    # -- asked for ------------------------------------------------------------------------------------

    def wait_for_last(self, place: Place) -> None:
        """The worker that was here before drains: another is started, or the place given up, when it is gone."""
        found = _document(place.info)
        if found.get("host") == socket.gethostname() and found.get("pid"):
            self._last = int(found["pid"]), str(found.get("started_at") or "")

    def leave(self, why: str, seconds: float | None) -> None:
        """For good: its worker drains, and the place is given up when it is gone."""
        self._then = "leave"
        if self.worker is not None:
            self.worker.drain(why, seconds)

    def stay(self, place: Place) -> None:
        """Its supervisor has the place again: when the worker that drains is gone, another one starts."""
        self.place, self._then = place, "again"

    def replace(self, why: str, seconds: float | None) -> None:
        if self.worker is not None:
            self.worker.drain(why, seconds)
        self.try_at_once()

    def try_at_once(self) -> None:
        """One that died and waits to be started again may live with what has changed."""
        if self.worker is None:
            self._start_at, self._deaths, self._deaths_at_start = 0.0, 0, 0

    def hurry(self) -> None:
        self._last = None
        if self.worker is not None:
            self.worker.stop()

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait(5.0)

    def note_alive(self, workers: Collection[tuple[str, int]]) -> None:
        """`workers`: names and processes that the ledger knows. Ours is among them once it has started well."""
        if self.worker is not None and (self.name, self.worker.pid) in workers:
            self._has_registered = True

    def note_stall(self, why: str) -> None:
        self._stall = why, monotonic()

    # -- what goes on -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.worker is not None and self.worker.draining_since is None

    @property
    def is_changing(self) -> bool:
        """It is being replaced, or is not there yet."""
        return self.worker is None or self.worker.draining_since is not None or self.worker.age < 3.0

    def has_other_command(self) -> bool:
        return self.is_running and self.worker is not None and self._launch(self.place).command != self.worker.command

    def tend(self, now: float) -> list[str]:
        """Starts and ends what is due. Returns what people should know."""
        if self.worker is None:
            return self._start_if_due(now)
        self.worker.tend()
        code = self.worker.exit_code()
        if code is None:
            if self._deaths and self.worker.age > WELL_SECONDS:
                self._deaths, self._deaths_at_start, self._last_death = 0, 0, ""
            return []
        return self._ended(code, now)

    def _start_if_due(self, now: float) -> list[str]:
        if self._last_is_there():
            return []
        if self._then == "leave":
            self.is_over = True
        elif now >= self._start_at:
            how = self._launch(self.place)
            self.worker = WorkerProcess(self.name, how.command, how.environment, how.nice, self._on_line)
            self._has_registered = False
            self.restarts += 1
        return []

    def _last_is_there(self) -> bool:
        if self._last is not None:
            started_at = machine.started_at(self._last[0])
            # Without an answer there is no such process, or a system that does not tell.
            if not started_at or started_at != self._last[1]:
                self._last = None
        return self._last is not None

    def _ended(self, code: int, now: float) -> list[str]:
        assert self.worker is not None
        worker, self.worker = self.worker, None
        if self._then == "leave":
            self.is_over = True
            return [f"Worker {self.name} has stopped: {worker.why_draining}"]
        if worker.draining_since is not None:
            self._start_at = now
            return [f"Worker {self.name} has stopped, and another starts in its place: {worker.why_draining}"]
        self._deaths += 1
        self._deaths_at_start = 0 if self._has_registered else self._deaths_at_start + 1
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
        self._last_death = "\n".join(worker.tail)
        if self._deaths_at_start < CRASH_LOOP:
            longest = LONGEST_DELAY_AT_WORK if self._has_registered else LONGEST_DELAY
            delay = min(longest, FIRST_DELAY * 2 ** (self._deaths - 1))
            self._start_at = now + delay
            return [f"Worker {self.name} {how}; it is started again in {delay:g} s"]
        self._start_at = now + LONGEST_DELAY
        return [
            f"WORKER {self.name} KEEPS DYING: it {how}, {self._deaths_at_start} times in a row, the last time "
            f"{worker.age:.0f} s after its start. It is tried again once a minute. Its last output:",
            *(f"    {line}" for line in list(worker.tail)[-SHOWN_LINES:]),
        ]

    # -- for people ---------------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        found = []
        if self._deaths_at_start >= CRASH_LOOP:
            last = " / ".join(self._last_death.splitlines()[-3:])
            found.append(
                f"worker {self.name} keeps dying, {self._deaths_at_start} times in a row; its last output: {last}"
            )
        if self._stall is not None and monotonic() - self._stall[1] < STALL_SHOWN_SECONDS:
            found.append(f"worker {self.name} was stalled ({self._stall[0]}), and is replaced")
        return found

    @property
    def state(self) -> str:
        if self.worker is None:
            return "dying" if self._deaths_at_start >= CRASH_LOOP else "waiting"
        return "draining" if self.worker.draining_since is not None else "running"

    def info(self) -> str:
        """For the ledger: about the worker on this place."""
        worker = self.worker
        found: dict[str, Any] = {"host": socket.gethostname(), "state": self.state, "restarts": max(0, self.restarts)}
        if worker is not None:
            found |= {"pid": worker.pid, "started_at": worker.started_at, "started": worker.started_ms}
            found["memory_mb"] = worker.memory_mb()
        elif self._last is not None:
            found |= {"pid": self._last[0], "started_at": self._last[1]}
        if self._deaths:
            found["deaths"] = self._deaths
        return json.dumps(found)


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

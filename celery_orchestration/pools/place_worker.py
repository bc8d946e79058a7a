"""A place and its worker, which is restarted with back-off when it dies, replaced, or stopped for good."""

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
from celery_orchestration.pools.places import as_document
from celery_orchestration.pools.worker_process import OnLine, WorkerProcess

#: Seconds until a worker that died is restarted: the delay doubles each time, up to the longest.
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
#: The longest delay for a worker that had registered: it is able to start, so its place should not be empty for long.
LONGEST_DELAY_AT_WORK = 8.0
#: After this many seconds of life a worker has started well, and its earlier deaths are forgotten.
WELL_SECONDS = 30.0
#: This many deaths in a row before the worker had registered are a crash loop, which is reported loudly.
CRASH_LOOP = 3
#: Lines of its output that the report of a crash loop shows.
SHOWN_LINES = 12
#: Seconds for which a stall is reported.
STALL_SHOWN_SECONDS = 600.0

Then = Literal["again", "leave"]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a worker is started."""

    command: list[str]
    environment: Mapping[str, str]
    nice: int


class PlaceWorker:
    def __init__(self, place: Place, launch: Callable[[Place], Launch], on_line: OnLine) -> None:
        """`launch` returns how a worker is to be started now."""
        self.place = place
        self.name = node_name(place)
        self._launch, self._on_line = launch, on_line
        self.worker: WorkerProcess | None = None
        self._start_at = 0.0
        self._then: Then = "again"
        self.restarts = -1
        #: Deaths in a row, each soon after a start; and how many of them came before the worker had registered.
        self._deaths = self._deaths_at_start = 0
        self._has_registered = False
        self._last_death = ""
        #: The symptom of the last stall, and when it was seen.
        self._stall: tuple[str, float] | None = None
        #: Process id and start of the worker that the previous supervisor of this name had here.
        self._last: tuple[int, str] | None = None
        self.is_over = False

    # -- asked for ------------------------------------------------------------------------------------

    def wait_for_last(self, place: Place) -> None:
        """The previous worker of this place drains. When it is gone, another starts or the place is given up."""
        found = as_document(place.info)
        if found.get("host") == socket.gethostname() and found.get("pid"):
            self._last = int(found["pid"]), str(found.get("started_at") or "")

    def leave(self, why: str, seconds: float | None) -> None:
        """Its worker drains, and the place is given up when it is gone."""
        self._then = "leave"
        if self.worker is not None:
            self.worker.drain(why, seconds)

    def stay(self, place: Place) -> None:
        """The supervisor has the place again: when the draining worker is gone, another one starts."""
        self.place, self._then = place, "again"

    def replace(self, why: str, seconds: float | None) -> None:
        if self.worker is not None:
            self.worker.drain(why, seconds)
        self.try_at_once()

    def try_at_once(self) -> None:
        """Something has changed: a worker that died may start now."""
        if self.worker is None:
            self._start_at, self._deaths, self._deaths_at_start = 0.0, 0, 0

    def stop_now(self) -> None:
        self._last = None
        if self.worker is not None:
            self.worker.stop()

    def kill(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait(5.0)

    def note_alive(self, workers: Collection[tuple[str, int]]) -> None:
        """`workers`: names and process ids of the registered workers. Ours is among them once it has registered."""
        if self.worker is not None and (self.name, self.worker.pid) in workers:
            self._has_registered = True

    def note_stall(self, why: str) -> None:
        self._stall = why, monotonic()

    # -- state -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self.worker is not None and self.worker.draining_since is None

    @property
    def is_changing(self) -> bool:
        """Whether it is being replaced, or has not started yet."""
        return self.worker is None or self.worker.draining_since is not None or self.worker.age < 3.0

    def has_other_command(self) -> bool:
        return self.is_running and self.worker is not None and self._launch(self.place).command != self.worker.command

    def step(self, now: float) -> list[str]:
        """Start or end the worker if that is due. Returns messages for people."""
        if self.worker is None:
            return self._start_if_due(now)
        self.worker.step()
        code = self.worker.exit_code()
        if code is None:
            if self._deaths and self.worker.age > WELL_SECONDS:
                self._deaths, self._deaths_at_start, self._last_death = 0, 0, ""
            return []
        return self._ended(code, now)

    def _start_if_due(self, now: float) -> list[str]:
        if self._last_is_alive():
            return []
        if self._then == "leave":
            self.is_over = True
        elif now >= self._start_at:
            how = self._launch(self.place)
            self.worker = WorkerProcess(self.name, how.command, how.environment, how.nice, self._on_line)
            self._has_registered = False
            self.restarts += 1
        return []

    def _last_is_alive(self) -> bool:
        if self._last is not None:
            started_at = machine.started_at(self._last[0])
            # Empty: there is no such process, or this system does not record start times.
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
            return [f"Worker {self.name} {how}; it is restarted in {delay:g} s"]
        self._start_at = now + LONGEST_DELAY
        return [
            f"WORKER {self.name} KEEPS DYING: it {how}, {self._deaths_at_start} times in a row, the last time "
            f"{worker.age:.0f} s after its start. It is restarted once a minute. Its last output:",
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
        """Facts about the worker of this place, for its record in the ledger."""
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

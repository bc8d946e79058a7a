"""What the tasks did, and when, as they recorded it themselves.

Tasks in the worker processes write the start and the end of each execution to one file that is opened for appending,
one line each. So lines of several processes do not mix, and no server is needed that a test might kill. A task that was
killed has a start and no end. Times are ``time.monotonic()``: one clock for all processes of a machine, which tests of
the wall clock do not affect.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TEST_HISTORY"
MAX_LINE = 4096


@dataclass(frozen=True)
class Event:
    """The start or the end of one execution of a job's function."""

    kind: str  # "start" | "end"
    execution: str  # the same for a start and its end, and for nothing else
    job: str
    run: str  # the task id
    attempt: int  # retries so far
    fence: int | None
    pid: int
    worker: str | None
    monotonic: float
    wall: float
    outcome: str | None = None  # of an end: "returned", or the exception's class name
    note: Any = None  # anything that the task wants to record: its key, its arguments


@dataclass(frozen=True)
class Span:
    """One execution, from its start to its end; ``end`` is None if it never recorded one."""

    start: Event
    end: Event | None

    @property
    def job(self) -> str:
        return self.start.job

    @property
    def run(self) -> str:
        return self.start.run

    def ended_at(self, deaths: Mapping[int, float] | None = None) -> float:
        """When it was over; without an end, the death of its process, and never if that is unknown."""
        if self.end is not None:
            return self.end.monotonic
        return (deaths or {}).get(self.start.pid, math.inf)


class History:
    """The recorded events, for the test."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def env(self) -> dict[str, str]:
        """What a worker process needs in its environment."""
        return {VARIABLE: str(self.path)}

    def events(self) -> list[Event]:
        if not self.path.exists():
            return []
        text = self.path.read_text()
        # The text after the last newline is a line that is being written.
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [Event(**json.loads(line)) for line in lines]

    def started(self, job: str | None = None) -> list[Event]:
        return self._of("start", job)

    def ended(self, job: str | None = None) -> list[Event]:
        return self._of("end", job)

    def spans(self, job: str | None = None) -> list[Span]:
        return [span for span in spans(self.events()) if job in (None, span.job)]

    def running(self, job: str | None = None) -> list[Span]:
        """Executions that have started and not ended, killed ones among them."""
        return [span for span in self.spans(job) if span.end is None]

    def _of(self, kind: str, job: str | None) -> list[Event]:
        return [event for event in self.events() if event.kind == kind and job in (None, event.job)]


def spans(events: Collection[Event]) -> list[Span]:
    """Executions in the order of their starts."""
    ends = {event.execution: event for event in events if event.kind == "end"}
    starts = sorted((event for event in events if event.kind == "start"), key=lambda event: event.monotonic)
    return [Span(start, ends.get(start.execution)) for start in starts]


def overlaps(
    events: Collection[Event],
    jobs_a: Collection[str],
    jobs_b: Collection[str],
    *,
    deaths: Mapping[int, float] | None = None,
) -> list[tuple[Span, Span]]:
    """Pairs of executions that overlapped, one of a job in ``jobs_a`` and one of a job in ``jobs_b``.

    ``deaths`` (pid to monotonic time, as ``ManagedProcess.deaths`` has it) ends executions that were killed. An
    execution that has neither an end nor a death counts as running forever, which is the strictest interpretation.
    """
    if isinstance(jobs_a, str) or isinstance(jobs_b, str):
        raise TypeError("jobs_a and jobs_b are collections of job names")
    found = []
    everything = spans(events)
    for index, first in enumerate(everything):
        for second in everything[index + 1 :]:
            wanted = (first.job in jobs_a and second.job in jobs_b) or (first.job in jobs_b and second.job in jobs_a)
            if wanted and second.start.monotonic < first.ended_at(deaths):
                found.append((first, second))
    return found


def most_at_once(events: Collection[Event], jobs: Collection[str], *, deaths: Mapping[int, float] | None = None) -> int:
    """The largest number of executions of ``jobs`` that overlapped."""
    changes = []
    for span in spans(events):
        if span.job in jobs:
            changes += [(span.start.monotonic, 1), (span.ended_at(deaths), -1)]
    most = now = 0
    for _, change in sorted(changes):  # at the same instant the end comes first
        now += change
        most = max(most, now)
    return most


# -- in the worker processes


@contextlib.contextmanager
def recorded(task: Any, note: Any = None) -> Iterator[None]:
    """Around the body of a bound task: ``with recorded(self): ...``."""
    execution = uuid.uuid4().hex
    _append(task, "start", execution, note)
    outcome = "returned"
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        _append(task, "end", execution, note, outcome)


def _append(task: Any, kind: str, execution: str, note: Any, outcome: str | None = None) -> None:
    path = os.environ.get(VARIABLE)
    if not path:
        # Without this error, tests would pass that check that something did not happen.
        raise RuntimeError(f"{VARIABLE} is not set: nothing would be recorded")
    request = task.request
    event = Event(
        kind=kind,
        execution=execution,
        job=task.name,
        run=request.id,
        attempt=request.retries,
        fence=getattr(task, "fence", None),
        pid=os.getpid(),
        worker=request.hostname,
        monotonic=time.monotonic(),
        wall=time.time(),
        outcome=outcome,
        note=note,
    )
    line = json.dumps(asdict(event)).encode() + b"\n"
    if len(line) > MAX_LINE:
        raise ValueError(f"an event of {len(line)} bytes: more than {MAX_LINE}")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)

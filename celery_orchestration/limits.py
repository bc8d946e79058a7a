"""Time limits where the execution pool has none: what it runs cannot be interrupted (threads, solo, eventlet).

The worker starts a clock when such a run begins. Whoever comes first decides how the run ends: its code, which returned
in time, or the worker, which tells Celery that the run failed; then all that the code says later is refused. Code that
the worker could not keep an eye on (solo: it is busy with it) notices by itself that it returned too late.

Worker and code are in the same process there, and so are the clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

#: Execution pools by the name of their module in Celery: those without time limits, and what ``-P`` calls them.
CANNOT_INTERRUPT = {"thread": "threads", "solo": "solo", "eventlet": "eventlet"}
#: How many jobs a sentence names.
MOST_NAMES = 3

#: Id and fence of a run.
Run = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Clock:
    limit: float
    #: By the monotonic clock.
    ends: float
    #: Called by who finds that the time is over.
    tell: Callable[[float], None]


class Clocks:
    """From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[Run, Clock] = {}
        self._over: set[Run] = set()

    def start(self, run: Run, limit: float, tell: Callable[[float], None]) -> float:
        """Returns when it ends."""
        clock = Clock(limit, monotonic() + limit, tell)
        self.go_on(run, clock)
        return clock.ends

    def go_on(self, run: Run, clock: Clock) -> None:
        with self._lock:
            self._going[run] = clock

    def stop(self, run: Run) -> Clock | None:
        """The code has returned: from now on its time cannot be over. None if it has no clock, or its time is over."""
        with self._lock:
            return self._going.pop(run, None)

    def is_over(self, run: Run) -> bool:
        return run in self._over

    def ring(self, now: float) -> list[Clock]:
        """Takes the clocks whose time is over: what these runs say from now on is refused."""
        with self._lock:
            ended = {run: clock for run, clock in self._going.items() if clock.ends <= now}
            for run in ended:
                del self._going[run]
            self._over.update(ended)
        return list(ended.values())

    def next_end(self) -> float | None:
        with self._lock:
            return min((clock.ends for clock in self._going.values()), default=None)

    def forget(self, run: Run) -> None:
        """The run is over and its code gone."""
        with self._lock:
            self._going.pop(run, None)
            self._over.discard(run)


#: Those of this process.
clocks = Clocks()


def sentence(kind: str, limits: Mapping[str, tuple[float | None, float | None]]) -> str | None:
    """What an execution pool makes of jobs' limits (hard, soft), for people; None if it keeps them."""
    jobs = sorted(job for job, limit in limits.items() if any(limit))
    if kind not in CANNOT_INTERRUPT or not jobs:
        return None
    return (
        f"execution pool {CANNOT_INTERRUPT[kind]} cannot interrupt a run: over its hard time limit it ends as failed, "
        f"but keeps its room until its code returns ({_names(jobs)})"
    )


def _names(jobs: list[str]) -> str:
    rest = len(jobs) - MOST_NAMES
    return ", ".join(jobs[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")

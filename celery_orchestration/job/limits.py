"""Time limits for execution pools that cannot interrupt a run (threads, solo, eventlet).

The worker starts a clock when such a run begins. The first one to act decides how the run ends: the code, if it returns
in time, or the worker, which tells Celery that the run failed; a later result of the code is then refused. A solo
worker is busy with the code and cannot watch the clock, so the code itself notices that it returned too late.

With these pools the worker and the code run in one process, and share the clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

#: Execution pools without time limits: their module in Celery, and their name for ``-P``.
CANNOT_INTERRUPT = {"thread": "threads", "solo": "solo", "eventlet": "eventlet"}
#: At most this many jobs are named in a sentence.
MOST_NAMES = 3

#: Id and fence of a run.
Run = tuple[str, str]
#: Hard and soft time limit of a task.
Limit = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Clock:
    limit: float
    #: By the monotonic clock.
    ends: float
    #: Called by the thread that notices the end of the time.
    on_timeout: Callable[[float], None]


class Clocks:
    """The running clocks. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[Run, Clock] = {}
        self._over: set[Run] = set()

    def start(self, run: Run, limit: float, on_timeout: Callable[[float], None]) -> float:
        """Returns when it ends."""
        clock = Clock(limit, monotonic() + limit, on_timeout)
        self.go_on(run, clock)
        return clock.ends

    def go_on(self, run: Run, clock: Clock) -> None:
        with self._lock:
            self._going[run] = clock

    def stop(self, run: Run) -> Clock | None:
        """The code has returned, so its time cannot run out any more. None if it has no clock, or its time is over."""
        with self._lock:
            return self._going.pop(run, None)

    def is_over(self, run: Run) -> bool:
        return run in self._over

    def ring(self, now: float) -> list[Clock]:
        """Remove the clocks whose time is over: later results of these runs are refused."""
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
        """The run has ended and its code has returned."""
        with self._lock:
            self._going.pop(run, None)
            self._over.discard(run)


#: The clocks of this process.
clocks = Clocks()


def sentences(kind: str, jobs: Mapping[str, Limit], plain: Mapping[str, Limit]) -> list[str]:
    """Sentences about time limits, of jobs and of plain tasks, that an execution pool does not enforce."""
    found = []
    if kind in CANNOT_INTERRUPT and _limited(jobs):
        found.append(
            f"execution pool {CANNOT_INTERRUPT[kind]} cannot interrupt a run: a soft time limit has no effect, and "
            f"a run over its hard limit ends as failed, but keeps its room until its code returns "
            f"({_names(_limited(jobs))})"
        )
    if kind in CANNOT_INTERRUPT and _limited(plain):
        found.append(
            f"execution pool {CANNOT_INTERRUPT[kind]} ignores the time limits of tasks that are no jobs "
            f"({_names(_limited(plain))})"
        )
    return found


def soft_sentence(kind: str, limits: Mapping[str, Limit]) -> str | None:
    """A sentence about an execution pool that enforces hard limits but no soft ones."""
    soft = _limited({name: limit[1:] for name, limit in limits.items()})
    if kind != "gevent" or not soft:
        return None
    return f"execution pool gevent keeps hard time limits, but no soft ones ({_names(soft)})"


def _limited(tasks: Mapping[str, tuple[float | None, ...]]) -> list[str]:
    return sorted(name for name, limits in tasks.items() if any(limits))


def _names(jobs: list[str]) -> str:
    rest = len(jobs) - MOST_NAMES
    return ", ".join(jobs[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")

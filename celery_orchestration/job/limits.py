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
#: Hard and soft time limit of a task.
Limit = tuple[float | None, float | None]


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


def sentences(kind: str, jobs: Mapping[str, Limit], plain: Mapping[str, Limit]) -> list[str]:
    """What an execution pool does not keep of the time limits of jobs, and of tasks that are no jobs, for people."""
    found = []
    if kind in CANNOT_INTERRUPT and _limited(jobs):
        found.append(
            f"execution pool {CANNOT_INTERRUPT[kind]} cannot interrupt a run: a soft time limit has no effect, and "
            f"over its hard one a run ends as failed, but keeps its room until its code returns "
            f"({_names(_limited(jobs))})"
        )
    if kind in CANNOT_INTERRUPT and _limited(plain):
        found.append(
            f"execution pool {CANNOT_INTERRUPT[kind]} ignores the time limits of tasks that are no jobs "
            f"({_names(_limited(plain))})"
        )
    return found


def soft_sentence(kind: str, limits: Mapping[str, Limit]) -> str | None:
    """Where hard limits are kept, and soft ones are not: what to say of that."""
    soft = _limited({name: limit[1:] for name, limit in limits.items()})
    if kind != "gevent" or not soft:
        return None
    return f"execution pool gevent keeps hard time limits, but no soft ones ({_names(soft)})"


def _limited(tasks: Mapping[str, tuple[float | None, ...]]) -> list[str]:
    return sorted(name for name, limits in tasks.items() if any(limits))


def _names(jobs: list[str]) -> str:
    rest = len(jobs) - MOST_NAMES
    return ", ".join(jobs[:MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")

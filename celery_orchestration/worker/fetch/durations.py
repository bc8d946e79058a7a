"""The typical durations of tasks on this worker since it started: moving averages by task name."""

from __future__ import annotations

#: The share of the latest run in an average.
SHARE = 0.2
#: At most this many task names are remembered.
MOST_NAMES = 10_000
#: A longer duration, in seconds, counts as this long.
LONG = 60.0


class Durations:
    def __init__(self, unknown: float) -> None:
        """`unknown`: the assumed duration of a task that has not run here yet."""
        self._by_name: dict[str, float] = {}
        self._unknown = unknown
        #: The average of the typical durations of the latest messages, of all tasks.
        self.mixed = unknown

    def typical(self, name: str) -> float:
        return self._by_name.get(name, self._unknown)

    def known(self, name: str) -> float | None:
        return self._by_name.get(name)

    def ran(self, name: str, seconds: float) -> None:
        seconds = min(seconds, LONG)
        known = self._by_name.get(name)
        if known is None and len(self._by_name) >= MOST_NAMES:
            return
        self._by_name[name] = seconds if known is None else known + SHARE * (seconds - known)

    def came(self, name: str) -> None:
        """A message of this task came."""
        self.mixed += SHARE * (self.typical(name) - self.mixed)

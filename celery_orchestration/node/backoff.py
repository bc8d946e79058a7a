"""Waiting between two tries of something that failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

#: Seconds: the first and the longest wait, and how often a failure that goes on is logged.
FIRST_WAIT, LONGEST_WAIT, LOG_EVERY = 0.05, 2.0, 30.0


class Backoff:
    """Waits longer each time, not in step with others; says now and then that it is still waiting."""

    def __init__(self, wait: Callable[[float], object], longest: float = LONGEST_WAIT) -> None:
        self._wait = wait
        self._longest = longest
        self.since: float | None = None
        self._said = 0.0
        self._next = FIRST_WAIT

    def failed(self, say: Callable[[float], None]) -> None:
        """`say` gets the seconds since it began."""
        now = monotonic()
        if self.since is None:
            self.since = now
        if now - self._said >= LOG_EVERY:
            self._said = now
            say(now - self.since)
        self._wait(self._next * random.uniform(0.5, 1.0))
        self._next = min(self._next * 2, self._longest)

    def succeeded(self) -> float | None:
        """Back to normal; returns how long it took, if there was trouble."""
        since, self.since, self._said, self._next = self.since, None, 0.0, FIRST_WAIT
        return None if since is None else monotonic() - since

"""Waits between two tries of a call that failed."""

from __future__ import annotations

import random
from collections.abc import Callable
from time import monotonic

#: Seconds: the first wait, the longest wait, and how often a lasting failure is logged.
FIRST_WAIT, LONGEST_WAIT, LOG_EVERY = 0.05, 2.0, 30.0


class Backoff:
    """Waits longer each time, with jitter; logs now and then that it is still waiting."""

    def __init__(self, wait: Callable[[float], object], longest: float = LONGEST_WAIT) -> None:
        self._wait = wait
        self._longest = longest
        self.since: float | None = None
        self._logged_at = 0.0
        self._next = FIRST_WAIT

    def failed(self, log: Callable[[float], None]) -> None:
        """Waits. Calls `log(seconds since the first failure)` at the first failure, and now and then."""
        now = monotonic()
        if self.since is None:
            self.since = now
        if now - self._logged_at >= LOG_EVERY:
            self._logged_at = now
            log(now - self.since)
        self._wait(self._next * random.uniform(0.5, 1.0))
        self._next = min(self._next * 2, self._longest)

    def succeeded(self) -> float | None:
        """Returns for how many seconds it had failed; None if it had not."""
        since, self.since, self._logged_at, self._next = self.since, None, 0.0, FIRST_WAIT
        return None if since is None else monotonic() - since

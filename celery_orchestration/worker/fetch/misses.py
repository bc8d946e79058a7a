"""How long a channel waits before it looks for messages again, because it came too late the last times.

Of many idle workers that all hear of one message, one gets it. The others wait a random moment before they look the
next time, longer the more often they came too late. Where messages are rare, nobody waits.
"""

from __future__ import annotations

import random
from time import monotonic

#: Seconds that a channel which came too late waits at most before it looks again: at first, and in the end.
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.002, 0.1
#: Seconds after which it is forgotten that it came too late.
FORGET_AFTER = 1.0


class Misses:
    def __init__(self) -> None:
        #: How often in a row it heard of a message and came too late, and when it did last.
        self._count = 0
        self._last_at = 0.0
        self._has_heard = False

    def heard(self) -> None:
        """Redis says that there is a message."""
        self._has_heard = True

    def looked(self, found: bool) -> None:
        """`found`: whether there were messages."""
        if found:
            self._count = 0
        elif self._has_heard:
            self._count += 1
            self._last_at = monotonic()
        self._has_heard = False

    def back_off(self) -> float:
        """Seconds to wait before the next look."""
        if monotonic() - self._last_at > FORGET_AFTER:
            self._count = 0
        if not self._count:
            return 0.0
        return random.uniform(0, min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2 ** min(self._count, 16)))

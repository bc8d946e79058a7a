"""How long a channel waits before it looks for messages again, if it came too late the last times.

Redis reports a new message to all idle workers, and one of them gets it. The others wait for a random time before they
look again after the next report. The more often they came too late, the longer they wait. If messages are rare, no
worker waits.
"""

from __future__ import annotations

import random
from time import monotonic

#: The longest wait of a channel that came too late, in seconds: after the first time, and after many times.
FIRST_BACK_OFF, LONGEST_BACK_OFF = 0.002, 0.1
#: Seconds after which the channel forgets that it came too late.
FORGET_AFTER = 1.0


class Misses:
    def __init__(self) -> None:
        #: How often in a row a message was reported and the channel came too late, and when it last did.
        self._count = 0
        self._last_at = 0.0
        self._has_heard = False

    def heard(self) -> None:
        """Redis has reported a message."""
        self._has_heard = True

    def looked(self, found: bool) -> None:
        """The channel has looked. `found`: whether there were messages."""
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

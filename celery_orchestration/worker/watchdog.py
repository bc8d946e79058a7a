"""Watches the heartbeat's thread.

A worker whose heartbeat thread hangs loses its lease, and its runs start elsewhere. If only that thread hangs, the
worker still takes messages, but the ledger takes no turns of a worker without a lease. So a heartbeat that hangs is
replaced: the new one registers the worker again, and learns which of its runs are void.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from celery.utils.log import get_logger

logger = get_logger(__name__)


class Watchdog(threading.Thread):
    def __init__(self, lease_seconds: float, silent_for: Callable[[], float], replace: Callable[[], None]) -> None:
        """`silent_for()`: seconds since the heartbeat's thread last began a round. `replace()` puts a new one in its
        place."""
        super().__init__(name="orchestration-watchdog", daemon=True)
        self._lease_seconds = lease_seconds
        self._silent_for = silent_for
        self._replace = replace
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        lease = self._lease_seconds
        while not self._stopped.wait(lease / 3):
            # Look twice: after the whole process was suspended, the heartbeat goes on just as this thread does.
            if self._silent_for() > lease and not self._stopped.wait(lease / 10):
                silent = self._silent_for()
                if silent > lease:
                    logger.critical("The heartbeat thread has hung for %.0f s: a new one replaces it", silent)
                    self._replace()

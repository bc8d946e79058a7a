"""For a worker that a supervisor of pools started: drains it if the supervisor is gone or has lost the worker's place.

The kernel signals the worker when its supervisor dies (``pools.child``). This thread is for systems where the kernel
does not, and for a supervisor that is suspended while another one takes the place. The supervisor holds the other end
of the worker's standard input: a line there means that the time to drain is up.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Ledger

logger = get_logger(__name__)

#: Variables that a supervisor sets for its workers: its process id, and pool, number and fence of the place.
SUPERVISOR, PLACE = "CELERY_ORCHESTRATION_SUPERVISOR", "CELERY_ORCHESTRATION_PLACE"
#: Set by ``pools.child``: the id of the process that these variables are for. Processes that it starts inherit them.
CHILD = "CELERY_ORCHESTRATION_CHILD"
#: Seconds between two checks of the parent process.
LOOK_EVERY = 1.0
#: What a supervisor writes when the time to drain is up.
HURRY = b"hurry"


def has_supervisor() -> bool:
    """Whether this worker was started by a supervisor that still lives."""
    return os.environ.get(CHILD) == str(os.getpid()) and os.environ.get(SUPERVISOR) == str(os.getppid())


class Supervised(threading.Thread):
    def __init__(self, ledger: Ledger, settings: Settings, place: str, hurry: Callable[[], None]) -> None:
        super().__init__(name="orchestration-supervised", daemon=True)
        self._ledger = ledger.new_connection()
        self._ask_every = settings.lease_seconds / 3
        pool, number, fence = place.split(":")
        self._place = pool, int(number), fence
        self._hurry = hurry
        self._drains = False

    @classmethod
    def of_environment(cls, ledger: Ledger, settings: Settings, hurry: Callable[[], None]) -> Supervised | None:
        """None for a worker that no supervisor started."""
        place, ours = os.environ.get(PLACE, ""), os.environ.get(CHILD) == str(os.getpid())
        return cls(ledger, settings, place, hurry) if ours and place.count(":") == 2 else None

    def run(self) -> None:
        ask_at = monotonic() + self._ask_every
        with suppress(OSError):
            os.set_blocking(0, False)
        while True:
            sleep(LOOK_EVERY)
            if self._is_to_hurry():
                return self._hurry()
            if not has_supervisor():
                return self._drain("its supervisor is gone")
            if monotonic() >= ask_at:
                ask_at = monotonic() + self._ask_every
                if not self._drains and not self._has_place():
                    self._drain("another supervisor has its place")

    @staticmethod
    def _is_to_hurry() -> bool:
        try:
            return HURRY in os.read(0, 100)
        except OSError:
            return False  # there is nothing to read

    def _has_place(self) -> bool:
        try:
            return self._ledger.holds_place(*self._place)
        except LedgerError:
            return True  # unknown; the supervisor asks, too

    def _drain(self, why: str) -> None:
        logger.warning("This worker drains: %s", why)
        self._drains = True
        os.kill(os.getpid(), signal.SIGTERM)

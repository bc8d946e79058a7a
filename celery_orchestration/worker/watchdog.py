"""Looks after the heartbeat.

A worker whose heartbeat thread hangs loses its lease, and its runs start elsewhere. If only that thread hangs, the
worker goes on taking messages that it cannot ask the gate about. So a heartbeat that hangs is replaced: the new one
registers the worker again, and hears which of its runs are void.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

if TYPE_CHECKING:
    from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)


class Watchdog(threading.Thread):
    def __init__(self, runtime: WorkerRuntime) -> None:
        super().__init__(name="orchestration-watchdog", daemon=True)
        self._runtime = runtime
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        lease = self._runtime.settings.lease_seconds
        while not self._stopped.wait(lease / 3):
            # Twice: if the whole process stood still, the heartbeat goes on as we do.
            if self._runtime.heartbeat.silent_for() > lease and not self._stopped.wait(lease / 10):
                silent = self._runtime.heartbeat.silent_for()
                if silent > lease:
                    logger.critical("The heartbeat thread hangs for %.0f s: a new one replaces it", silent)
                    self._runtime.replace_heartbeat()

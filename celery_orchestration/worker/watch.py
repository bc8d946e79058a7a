"""Looks after the keeper.

A worker whose heartbeat stands still loses its lease, and its runs start elsewhere. If only that stands still, it
goes on taking messages that it cannot ask the gate about. So a keeper that is stuck is replaced: the new one registers
the worker again, and hears which of its runs are void.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from celery.utils.log import get_logger

if TYPE_CHECKING:
    from celery_orchestration.worker.side import WorkerSide

logger = get_logger(__name__)


class Watch(threading.Thread):
    def __init__(self, side: WorkerSide) -> None:
        super().__init__(name="orchestration-watch", daemon=True)
        self._side = side
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def run(self) -> None:
        lease = self._side.settings.lease_seconds
        while not self._stopped.wait(lease / 3):
            # Twice: if the whole process stood still, the keeper goes on as we do.
            if self._side.keeper.silent_for() > lease and not self._stopped.wait(lease / 10):
                silent = self._side.keeper.silent_for()
                if silent > lease:
                    logger.critical("No heartbeat for %.0f s: the keeper is stuck, another one takes its place", silent)
                    self._side.replace_keeper()

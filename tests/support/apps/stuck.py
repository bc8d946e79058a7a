"""The jobs of ``faults``. With TEST_STICK a worker's first keeper is stuck while there is a file ``stuck``."""

from __future__ import annotations

import os
import time
from typing import Any

from celery_orchestration.worker.keeper import Keeper
from support.apps.faults import app, free, held, noted, scratch

__all__ = ["app", "free", "held", "noted"]

if "TEST_STICK" in os.environ:
    go_round = Keeper._round
    first: list[Any] = []

    def stuck(self: Keeper) -> None:
        first.append(self)
        while self is first[0] and scratch("stuck").exists():
            time.sleep(0.01)
        go_round(self)

    Keeper._round = stuck

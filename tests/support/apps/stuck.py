"""The jobs of ``faults``. With TEST_STICK a worker's first heartbeat hangs while a file ``stuck`` exists, and the
heartbeat that replaces it renews nothing while a file ``breathless`` exists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery_orchestration.worker.heartbeat import WorkerHeartbeat
from support.apps.faults import app, free, held, noted, scratch

__all__ = ["app", "free", "held", "noted"]


def wait_while(name: str) -> None:
    while scratch(name).exists():
        time.sleep(0.01)


def holding_up(
    method: Callable[[WorkerHeartbeat], None], name: str, wanted: Callable[[WorkerHeartbeat], bool]
) -> Callable[..., None]:
    def held_up(self: WorkerHeartbeat) -> None:
        if wanted(self):
            wait_while(name)
        method(self)

    return held_up


if "TEST_STICK" in os.environ:
    heartbeats: list[WorkerHeartbeat] = []

    def is_first(heartbeat: WorkerHeartbeat) -> bool:
        heartbeats.append(heartbeat)
        return heartbeat is heartbeats[0]

    WorkerHeartbeat._round = holding_up(WorkerHeartbeat._round, "stuck", is_first)
    WorkerHeartbeat._renew_lease = holding_up(
        WorkerHeartbeat._renew_lease, "breathless", lambda heartbeat: not is_first(heartbeat)
    )

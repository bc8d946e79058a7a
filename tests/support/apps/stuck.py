"""The jobs of ``faults``. With TEST_STICK a worker's first keeper is stuck while there is a file ``stuck``, and the one
that takes its place has no heartbeat while there is a file ``breathless``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from celery_orchestration.worker.keeper import Keeper
from support.apps.faults import app, free, held, noted, scratch

__all__ = ["app", "free", "held", "noted"]


def wait_while(name: str) -> None:
    while scratch(name).exists():
        time.sleep(0.01)


def holding_up(method: Callable[[Keeper], None], name: str, wanted: Callable[[Keeper], bool]) -> Callable[..., None]:
    def held_up(self: Keeper) -> None:
        if wanted(self):
            wait_while(name)
        method(self)

    return held_up


if "TEST_STICK" in os.environ:
    keepers: list[Keeper] = []

    def is_first(keeper: Keeper) -> bool:
        keepers.append(keeper)
        return keeper is keepers[0]

    Keeper._round = holding_up(Keeper._round, "stuck", is_first)
    Keeper._renew = holding_up(Keeper._renew, "breathless", lambda keeper: not is_first(keeper))

"""The processes of ``up`` besides workers end with it, whatever they do."""

from __future__ import annotations

import io
import sys

import pytest

from celery_orchestration.pools.merged_log import MergedLog
from celery_orchestration.pools.services import CommandService
from support.wait import until

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('there', flush=True); time.sleep(600)"
)


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("celery_orchestration.pools.services.ENDING_SECONDS", 0.5)
    out = io.StringIO()
    service = CommandService("stubborn", [sys.executable, "-c", STUBBORN], MergedLog(out))
    service.start()
    try:
        until(lambda: "there" in out.getvalue(), 20)
        service.drain()

        def has_ended() -> bool:
            service.step()
            return service.ended

        until(has_ended, 10)
    finally:
        service.stop()
        service.step()

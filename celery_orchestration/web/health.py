"""The answer of ``/health`` for probes: whether the ledger answers and runs may start. It needs no login."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_orchestration.operate.doctor.models import Health


def answer(health: Health) -> tuple[int, bytes]:
    """The HTTP status, and a JSON document without host names and the address of Redis."""
    document = {
        "ok": health.ok,
        "ledger": "answers" if health.at is not None else "does not answer",
        "workers": health.workers,
        "leader": health.leader is not None,
        "gate_opens_in_seconds": health.opens_in_seconds,
    }
    return 200 if health.ok else 503, json.dumps(document).encode()

"""The events besides the executions: one line each, in one file that the soak and its workers write.

``spy`` makes a worker record the messages that it received and the ledger's answers to its outcomes: only these answers
show which outcome of a run was accepted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery.signals import task_received

from celery_orchestration.worker.settlement import Settlement

VARIABLE = "TEST_JOURNAL"


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "at": time.monotonic(), **fields}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def read(self) -> list[dict[str, Any]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


# -- in the worker processes


def note(kind: str, **fields: Any) -> None:
    """Writes into the journal that the environment names. A client of the app has no journal."""
    if VARIABLE in os.environ:
        Journal(Path(os.environ[VARIABLE])).write(kind, **fields)


def spy() -> None:
    task_received.connect(_received, weak=False)
    settle: Callable[..., None] = Settlement.settle

    def settled(self: Settlement, request: Any, outcome: str, then: Callable[[str], None] | None = None) -> None:
        told = {"run": request.id, "attempt": request.attempt, "fence": int(request.fence or 0), "outcome": outcome}

        def answered(answer: str) -> None:
            note("settled", answer=answer, worker=request.hostname, **told)
            if then is not None:
                then(answer)

        settle(self, request, outcome, answered)

    Settlement.settle = settled  # type: ignore[method-assign]


def _received(sender: Any, request: Any, **_: Any) -> None:
    note("received", run=request.id, retries=request.request_dict.get("retries") or 0, worker=request.hostname)

"""One run: its whole history."""

from __future__ import annotations

from typing import Any

from celery_orchestration.errors import LedgerError, OrchestrationError
from celery_orchestration.operate.models import Letter
from celery_orchestration.web.pages import PageData, Query


def view(data: PageData, asked: Query) -> dict[str, Any]:
    id = asked.get("id", "")
    found = data.client.explain(id, ask_workers=bool(asked.get("ask")))
    run = next((link.run for link in found.chain if link.run and link.run.id == id), None)
    waiting = next((one for one in data.status.waits if one.id == id), None)
    letter = _letter(data, id)
    return {
        "explanation": found,
        "run": run or waiting,
        "ended": found.last if found.last and found.last.id == id and run is None else None,
        "letter": letter,
        "args": data.redact(letter.args) if letter and letter.args else "",
        "named_args": data.redact(letter.named_args) if letter and letter.named_args else "",
        "id": id,
    }


def _letter(data: PageData, id: str) -> Letter | None:
    try:
        return data.client.dead_letter(id)
    except LedgerError:
        raise
    except OrchestrationError:
        return None

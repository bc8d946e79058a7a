"""Reads the ledger's records of active runs into models, and the gate's words about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from celery_orchestration.job import queues, reasons
from celery_orchestration.job.options import Priority
from celery_orchestration.ledger.keys import decode_job, retries
from celery_orchestration.operate.clock import clock, optional_time
from celery_orchestration.operate.models import (
    Paused,
    Progress,
    RunStatus,
)


def run_status(run: Mapping[str, Any], now: int, workers: Mapping[str, Any], reason: str | None = None) -> RunStatus:
    worker = workers.get(run.get("worker") or "")
    # Fields of the same name are taken as they are.
    return RunStatus.model_validate(
        {
            **run,
            "job": decode_job(run["job"]),
            "priority": "forced" if run["priority"] == queues.FORCED else Priority(run["priority"]).label,
            "retries": retries(run["attempt"]),
            "worker": worker["name"] if worker else None,
            "fence": int(run["fence"]) if run.get("fence") else None,
            "arrived": optional_time(run["arrived"]),
            "since": optional_time(run["since"]),
            "seconds": max(0.0, (now - run["since"]) / 1000),
            "expires": optional_time(run.get("expires")),
            "reason": reason,
            "timed_out": optional_time((run.get("over") or {}).get("at")),
            "progress": _progress(run.get("progress")),
        }
    )


def _progress(found: Mapping[str, Any] | None) -> Progress | None:
    return Progress(**json.loads(found["what"]), at=optional_time(found["at"])) if found else None


def reason_words(reason: Sequence[str]) -> list[str]:
    if reason[0] == "disabled":
        off = json.loads(reason[1])
        if off["by"] == "failures":
            return ["disabled", off["why"]]
        return ["disabled", f"{off['why']} ({off['by']})" if off["why"] else f"by {off['by']}"]
    if reason[0] == "due":
        return ["due", clock(optional_time(int(reason[1])))]
    return [decode_job(word) if index == 1 else word for index, word in enumerate(reason)]


def past_reason(recorded: str) -> str:
    """Puts a reason into words as the history and observe mode record it: separated by spaces."""
    rule, *details = recorded.split(" ")
    return reasons.past([rule, *map(decode_job, details[:1])])


def pause_of(text: str | None) -> Paused | None:
    if not text:
        return None
    found = json.loads(text)
    return Paused(by=found["by"], why=found["why"], at=optional_time(found["at"]))

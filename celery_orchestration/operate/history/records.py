"""Reads the ledger's records of ended runs, dead letters and audited changes into models."""

from __future__ import annotations

import json
from typing import Any

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.text import show
from celery_orchestration.ledger import HistoryLine
from celery_orchestration.ledger.keys import decode_entry, decode_job, retries
from celery_orchestration.ledger.records import figures_of
from celery_orchestration.operate.clock import optional_time
from celery_orchestration.operate.models import (
    Change,
    DeadLetter,
    Ended,
    Letter,
)
from celery_orchestration.operate.status.runs import past_reason


def read_change(text: str) -> Change:
    """A change of a run has the run's id as `about` and its job as `why`. Only names of jobs are encoded."""
    found = json.loads(text)
    found["at"] = optional_time(found["at"])
    if not found["what"].endswith(" entry"):
        encoded = "why" if found["what"] in ("cancel", "requeue", "purge") else "about"
        found[encoded] = decode_job(found[encoded])
    return Change(**found)


def run_id_of(text: str) -> str:
    """The id of the run in a record of the history."""
    return HistoryLine.read(text).id


def read_ended(job: str, text: str) -> Ended:
    """A record of fires that made no run has their number."""
    line = HistoryLine.read(text)
    made_run = line.fires is None
    return Ended(
        id=line.id,
        job=job,
        outcome=line.outcome,
        retries=retries(line.attempt),
        key=line.key,
        arrived=optional_time(line.arrived),
        started=optional_time(line.started),
        ended=optional_time(line.ended),
        seconds=None if line.started is None else (line.ended - line.started) / 1000,
        waited_seconds=max(0, (line.started or line.ended) - line.arrived) / 1000 if made_run else 0,
        waited_for=past_reason(line.waited_for) if line.waited_for else None,
        waited_rule=line.waited_for.split(" ")[0] if line.waited_for else None,
        worker=line.worker,
        fence=int(line.fence) if line.fence else None,
        **line.figures(),
        error=line.error,
        entry=decode_entry(line.entry) if line.entry else None,
        due=optional_time(line.due),
        fires=1 if line.fires is None else line.fires,
        made_run=made_run,
    )


def read_dead_letter(text: str, revoked: bool) -> DeadLetter:
    return DeadLetter(**_letter(text), revoked=revoked)


def read_letter(text: str, revoked: bool, message: bytes) -> Letter:
    envelope = Envelope.unpack(message)
    headers = envelope.headers
    return Letter(
        **_letter(text),
        revoked=revoked,
        args=headers.get("argsrepr"),
        named_args=headers.get("kwargsrepr"),
        headers={key: show(value) for key, value in headers.items()},
        content_type=envelope.content_type,
        content_encoding=envelope.content_encoding,
        body_bytes=len(envelope.body),
    )


def _letter(text: str) -> dict[str, Any]:
    found = json.loads(text)
    return {
        **{name: found[name] for name in ("id", "error", "traceback", "key", "queue")},
        **figures_of(found),
        "job": decode_job(found["job"]),
        "at": optional_time(found["at"]),
        "arrived": optional_time(found["arrived"]),
        "retries": retries(found["attempt"]),
        "worker": found.get("worker"),
    }

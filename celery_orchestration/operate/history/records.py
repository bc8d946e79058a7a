"""Reads the ledger's records of ended runs, dead letters and audited changes into models."""

from __future__ import annotations

import json
from typing import Any

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.text import show
from celery_orchestration.ledger.keys import decode_entry, decode_job, retries
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
    return str(json.loads(text)[0])


def read_ended(job: str, text: str) -> Ended:
    """A record without its last fields ends with the room key. A record of fires that made no run has their number."""
    fields = json.loads(text)
    id, attempt, outcome, arrived, started, over, worker, fence, recoveries, waited_for, error, key = fields[:12]
    entry, due, *fires = fields[12:] or (None, None)
    recorded = str(waited_for) if waited_for else None
    return Ended(
        id=id,
        job=job,
        outcome=outcome,
        retries=retries(attempt),
        key=key,
        arrived=optional_time(arrived),
        started=optional_time(started or None),
        ended=optional_time(over),
        seconds=(over - started) / 1000 if started else None,
        waited_seconds=0 if fires else max(0, (started or over) - arrived) / 1000,
        waited_for=past_reason(recorded) if recorded else None,
        waited_rule=recorded.split(" ")[0] if recorded else None,
        worker=worker or None,
        fence=int(fence) if fence else None,
        recoveries=recoveries,
        error=error or None,
        entry=decode_entry(entry) if entry else None,
        due=optional_time(due or None),
        fires=fires[0] if fires else 1,
        made_run=not fires,
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
        **{name: found[name] for name in ("id", "error", "traceback", "key", "queue", "recoveries")},
        "job": decode_job(found["job"]),
        "at": optional_time(found["at"]),
        "arrived": optional_time(found["arrived"]),
        "retries": retries(found["attempt"]),
        "worker": found.get("worker"),
    }

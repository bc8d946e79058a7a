"""The chain of waits (verb ``explain``): from the job or run in question down to the root cause. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_orchestration.job import reasons
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.explain.models import Cause, Link
from celery_orchestration.operate.models import RunStatus
from celery_orchestration.operate.status.runs import reason_words, run_status


@dataclass(frozen=True)
class Step:
    """A link of the chain: it waits for the next one. Without a run, `words` say why a new run would wait."""

    job: str
    run: RunStatus | None
    #: The gate's reason (``job/reasons.py``); empty if the run does not wait.
    words: list[str]
    found: Mapping[str, Any]

    @property
    def rule(self) -> str:
        return self.words[0] if self.words else ""


def steps(found: Mapping[str, Any]) -> list[Step]:
    workers = found.get("workers") or {}
    return [
        Step(
            job=decode_job(one["job"]),
            run=run_status(one["run"], found["now"], workers) if one.get("run") else None,
            words=reason_words(one["why"]) if one.get("why") else [],
            found=one,
        )
        for one in found["chain"] or ()
    ]


def links(chain: Sequence[Step]) -> list[Link]:
    return [Link(job=step.job, run=step.run, text=_text(step)) for step in chain]


def _text(step: Step) -> str:
    if step.rule == "unknown":
        return "no worker has registered this job yet"
    waits = reasons.sentence(step.words, lambda _: "") if step.words else ""
    if step.run is None:
        return f"nobody has asked for a run; one would not start: {waits}" if waits else "nobody has asked for a run"
    return waits or activity(step.run)


def activity(run: RunStatus) -> str:
    """The activity of a run that does not wait."""
    since = lasting(run.seconds)
    past = ", past its time limit" if run.timed_out else ""
    return {
        "running": f"has been running on {run.worker or 'a worker that is gone'} for {since}{past}",
        "granted": f"has been on its way to queue {run.queue} for {since}",
        "queued": f"was handed over to queue {run.queue} {since} ago, and has not started",
        "retrying": f"failed {since} ago, and will be retried",
        "ending": "is about to end: a worker is reporting that to Celery",
        "released": "is being published without the gate",
    }.get(run.state, f"is {run.state}")


def summary(about: str, chain: Sequence[Step], cause: Cause) -> str:
    """One sentence: the jobs of the chain in order, then the root cause."""
    jobs = list(dict.fromkeys(step.job for step in chain))
    if jobs[1:]:
        return f"{about} waits for {', which waits for '.join(jobs[1:])}: {cause.text}"
    if len(chain) > 1:
        return f"{about} waits for {'room' if chain[0].rule == 'room' else 'another run of it'}: {cause.text}"
    return cause.text if cause.text.startswith(f"{about} ") else f"{about}: {cause.text}"

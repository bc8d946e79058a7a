"""Why a run waits, in a sentence: from the words that the gate gives (``closed`` in ``lua/rules.lua``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.hints import command

_DEPENDENCY = {
    "unknown": "no worker has brought that job yet",
    "never": "it has never ended",
    "failed": "its last run failed",
    "disabled": "it is disabled",
    "old": "its last run is too long ago",
    "stale": "it has not ended since this job's last start",
    "fires": "a run of it came first, and has not ended",
}


_RULES = {
    "epoch": "the ledger may have forgotten something: waiting until the workers have told what they run",
    "paused": "everything is paused",
    "disabled": "the job is disabled: {0}",
    "room": "waiting for room: as many runs of {0} as allowed",
    "global": "waiting for room: as many runs of all jobs as allowed",
    "blocked": "waiting for {0}",
    "depends": "waiting for {0}",
    "behind": "waiting behind a run of {0} that came first",
    "attempt": "waiting for the attempt before it to end",
    "slot": "waiting for a free slot on queue {0}",
    "nobody": "no live worker has this job",
    "astray": "its message came to a worker without this job: waiting for one that has it",
    "due": "not to start before {0}",
    "alone": "waiting to be tried alone on a worker, after its workers died",
}


def sentence(words: Sequence[str], holder: Callable[[str], str]) -> str:
    """`holder(job)` tells who holds room of a job: 'running on w1@host for 12 s', or ''."""
    rule, *rest = words
    name, more, why = (*rest, "", "", "")[:3]
    said = _RULES[rule].format(f"{name} with key {more!r}" if rule == "room" and more else name)
    detail = ""
    if rule in ("room", "blocked") or more == "busy":
        detail = holder(name)
    elif rule == "nobody" and more:
        detail = f"it was last seen in release {more}"
    elif rule == "depends":
        detail = _DEPENDENCY[more] + (f", {why}" if why else "")
    return f"{said}: {detail}" if detail else said


#: Rules that name a job: a run waits for that one.
_NAMES_A_JOB = ("room", "blocked", "depends", "behind")


def job_of(words: Sequence[str]) -> str | None:
    """The job that a run waits for, if it is one."""
    rule, *rest = words
    return rest[0] if rule in _NAMES_A_JOB and rest else None


def no_release(job: str, last: str) -> str:
    """`last`: the release that had it last, or ''."""
    return f"no live worker has job {job}" + (f"; it was last seen in release {last}" if last else "")


def rid_of(job: str) -> str:
    return (
        f"start a worker whose code has it, or {command('cancel', '--job', job)}, "
        f"or {command('requeue', '--as', 'NEW_JOB', '--job', job)}"
    )


_PAST = {
    "epoch": "the workers to tell what they run",
    "paused": "the end of a pause",
    "disabled": "its job to be enabled",
    "global": "room for all jobs",
    "room": "room of {0}",
    "behind": "a run of {0} that came first",
    "alone": "a worker of its own",
}


def past(words: Sequence[str]) -> str:
    """What a run that is over once waited for; what one would have waited for."""
    rule, *rest = words
    return _PAST.get(rule, "{0}").format(decode_job(rest[0]) if rest else rule)

"""The reasons why a run waits: one table for status, history, explain, observe mode, forecast, dashboard and metrics.

The gate names a reason in words (``["depends", "shop.fetch", "failed"]``): the rule first, then its details. The status
adds a fourth word: why that job is disabled, if it is. A new rule of the gate needs one entry in :data:`REASONS`, and
everything that shows reasons to people can show it. ``explain`` says more about some of them:
``operate/explain/root_cause.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

#: The root causes that ``explain`` knows, as scripts see them.
RootCause = Literal[
    "alone",
    "astray",
    "behind",
    "blocked",
    "busy",
    "cycle",
    "dead_letter",
    "disabled_by_failures",
    "disabled_by_person",
    "due_later",
    "ended",
    "ending",
    "entry_missing",
    "entry_paused",
    "epoch",
    "failed",
    "fetched",
    "global_cap",
    "handed_over",
    "never_ran",
    "no_release",
    "no_scheduler",
    "no_slot",
    "no_worker",
    "not_asked_for",
    "old",
    "past_time_limit",
    "paused",
    "pool_at_rest",
    "rate_limit",  # Celery's own
    "redis_evicts",
    "redis_full",
    "released",
    "retrying",
    "room",
    "running",
    "scheduled",
    "stale",
    "unknown_job",
    "unserved_queue",
    "worker_died",
    "worker_of_another_app",
    "worker_without_extension",
]
#: The dashboard has one colour for each kind of reason.
Kind = Literal["dependency", "blocked", "room", "slot", "held", "later"]

#: What a run of each kind waits for, for a legend.
KINDS: dict[Kind, str] = {
    "dependency": "a dependency",
    "blocked": "a job it must not run beside",
    "room": "room",
    "slot": "a free worker",
    "held": "a pause, or a disabled job",
    "later": "its time",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason. In both texts ``{0}`` stands for the first detail."""

    word: str
    #: A sentence about a run that waits now.
    present: str
    #: Completes "it waited for", "it would have waited for" and "it will wait for".
    past: str
    kind: Kind
    #: The root cause that ``explain`` names, and whether somebody has to do something about it.
    root_cause: RootCause
    needs_somebody: bool = False
    #: The words of the command that fixes it, if one does; ``{0}`` stands for the waiting run's job.
    fix: tuple[str, ...] = ()
    #: The first detail is a job that the run waits for.
    names_job: bool = False
    #: The sentence ends with the run that holds the room.
    shows_holder: bool = False


@dataclass(frozen=True, slots=True)
class MissingCondition:
    """What a dependency lacks: the second detail of the reason "depends"."""

    word: str
    #: Of the dependency ("it"), as a part of a sentence.
    present: str
    root_cause: RootCause
    #: The same about the dependency by name: "shop.fetch ...". Empty if the root cause is never the dependency alone.
    about_dependency: str = ""


_CONDITIONS = (
    MissingCondition("busy", "", "busy"),
    MissingCondition("earlier", "a run of it came first, and has not ended", "busy"),
    MissingCondition("never", "it has never ended", "never_ran", "has never ended"),
    MissingCondition("failed", "its last run failed", "failed", "failed the last time it ran"),
    MissingCondition("old", "its last run is too long ago", "old", "ended too long ago for the jobs that depend on it"),
    MissingCondition(
        "stale",
        "it has not ended since this job's last start",
        "stale",
        "has not ended since the last start of the job that depends on it",
    ),
    MissingCondition("disabled", "it is disabled", "busy"),
    MissingCondition("unknown", "no worker has registered that job yet", "busy"),
)
CONDITIONS = {one.word: one for one in _CONDITIONS}

#: The rules of the gate in the order in which it tries them, then the reasons that arise elsewhere.
_REASONS = (
    Reason(
        "epoch",
        "the ledger may have lost data: waiting until the workers have reported their runs",
        "the workers to report their runs",
        "held",
        "epoch",
        needs_somebody=True,
    ),
    Reason(
        "paused",
        "everything is paused",
        "the end of a pause",
        "held",
        "paused",
        needs_somebody=True,
        fix=("resume",),
    ),
    Reason(
        "disabled",
        "the job is disabled: {0}",
        "its job to be enabled",
        "held",
        "disabled_by_person",
        needs_somebody=True,
        fix=("enable", "{0}"),
    ),
    Reason(
        "room",
        "waiting for room: as many runs of {0} as allowed",
        "room of {0}",
        "room",
        "room",
        names_job=True,
        shows_holder=True,
    ),
    Reason(
        "global",
        "waiting for room: as many runs of all jobs as allowed",
        "room for all jobs",
        "room",
        "global_cap",
    ),
    Reason("blocked", "waiting for {0}", "{0}", "blocked", "blocked", names_job=True, shows_holder=True),
    Reason("depends", "waiting for {0}", "{0}", "dependency", "busy", names_job=True),
    Reason(
        "behind",
        "waiting behind a run of {0} that came first",
        "a run of {0} that came first",
        "blocked",
        "behind",
        names_job=True,
    ),
    Reason("attempt", "waiting for the attempt before it to end", "the attempt before it to end", "later", "running"),
    Reason("slot", "waiting for a free slot on queue {0}", "a free slot", "slot", "no_slot"),
    Reason(
        "nobody",
        "no live worker has this job",
        "a worker that has the job",
        "slot",
        "no_release",
        needs_somebody=True,
    ),
    Reason(
        "astray",
        "its message came to a worker without this job: waiting for one that has it",
        "a worker that has the job",
        "slot",
        "astray",
    ),
    Reason("due", "not due before {0}", "its time", "later", "due_later"),
    Reason(
        "alone",
        "waiting to be tried alone on a worker, after its workers died",
        "a worker of its own",
        "room",
        "alone",
    ),
)
REASONS = {one.word: one for one in _REASONS}


def sentence(words: Sequence[str], holder: Callable[[str], str]) -> str:
    """Why a run waits. `holder(job)` says which run holds the room of a job: 'running on w1@host for 12 s', or ''."""
    rule, name, more, why = (*words, "", "", "")[:4]
    reason = REASONS[rule]
    text = reason.present.format(f"{name} with key {more!r}" if rule == "room" and more else name)
    detail = ""
    if reason.shows_holder or more == "busy":
        detail = holder(name)
    elif rule == "nobody" and more:
        detail = f"it was last seen in release {more}"
    elif rule == "depends":
        detail = CONDITIONS[more].present + (f", {why}" if why else "")
    return f"{text}: {detail}" if detail else text


def past(words: Sequence[str]) -> str:
    """Completes "it waited for", "it would have waited for" and "it will wait for"."""
    rule, name = (*words, "")[:2]
    return REASONS[rule].past.format(name) if rule in REASONS else name or rule


def job_of(words: Sequence[str]) -> str | None:
    """The job that a run waits for, if it is one."""
    reason = REASONS.get(words[0])
    return words[1] if reason is not None and reason.names_job and len(words) > 1 else None


def kind_of(rule: str | None) -> Kind:
    """Runs without a known reason wait in a queue, for a worker."""
    return REASONS[rule].kind if rule in REASONS else "slot"

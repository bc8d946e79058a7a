"""Orders jobs by urgency, and says whether anything is wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from celery_orchestration.operate.models import JobStatus, Status

#: How many names a sentence lists.
_NAMED = 3


def problems_of(status: Status) -> list[str]:
    """All problems of a status, jobs that failures have disabled and overdue jobs included."""
    failed = [job.name for job in status.jobs if job.disabled is not None and is_disabled_by_failures(job)]
    # A job that a person has disabled is overdue on purpose.
    late = [job.name for job in status.jobs if job.overdue and job.disabled is None]
    found = [*status.problems]
    if failed:
        found.append(f"disabled by failures: {_named(failed)}")
    if late:
        found.append(f"overdue: {_named(late)}")
    return found


def is_disabled_by_failures(job: JobStatus) -> bool:
    """Whether failures have disabled the job, and not only a person."""
    return job.disabled is not None and (job.disabled.by == "failures" or job.disabled.failures is not None)


def is_failing(job: JobStatus) -> bool:
    return job.failures > 0 or job.last_outcome == "failed"


def is_disabled(job: JobStatus) -> bool:
    return job.disabled is not None


def by_urgency(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    return sorted(jobs, key=lambda job: (_urgency(job), job.name))


def _urgency(job: JobStatus) -> int:
    order = (job.state == "disabled", job.overdue, is_failing(job), job.state == "running", job.state == "waiting")
    return next((place for place, holds in enumerate(order) if holds), len(order))


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

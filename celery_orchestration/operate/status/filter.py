"""Filters a status by jobs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

from celery_orchestration.errors import BadCall, UnknownJob
from celery_orchestration.job import queues
from celery_orchestration.job.text import show, suggest
from celery_orchestration.operate.models import JobStatus, Status

STATES = ("idle", "running", "waiting", "disabled", "overdue")


def filtered(
    status: Status,
    jobs: Collection[str] = (),
    states: Collection[str] = (),
    pools: Collection[str] = (),
    sent: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Status:
    """Keeps the jobs that match every condition, with their runs, their queues, the workers of those queues, and counts
    of these alone. Problems are not filtered.

    `jobs`: patterns such as ``shop.*``, or parts of names. `states`: see STATES. `sent`: queues, each with the jobs
    that are sent there.
    """
    if unknown := [state for state in states if state not in STATES]:
        raise BadCall(f"unknown state {show(unknown[0])}{suggest(unknown[0], STATES)}; states: {', '.join(STATES)}")
    for pattern in jobs:
        if not any(matches(job.name, pattern) for job in status.jobs):
            hint = suggest(pattern, [job.name for job in status.jobs])
            raise UnknownJob(f"no registered job matches {show(pattern)}{hint}")
    if pools and not any(job.pool in pools for job in status.jobs):
        known = {job.pool for job in status.jobs if job.pool is not None}
        wanted = sorted(pools)[0]
        raise UnknownJob(f"no job of this app's code uses pool {show(wanted)}{suggest(wanted, known)}")
    if not (jobs or states or pools):
        return status
    kept = [job for job in status.jobs if _is_meant(job, jobs, states, pools)]
    names = {job.name for job in kept}
    runs = [run for run in status.runs if run.job in names]
    waits = [run for run in status.waits if run.job in names]
    to = {run.queue for run in (*runs, *waits)} | {queue for queue, senders in sent.items() if names & {*senders}}
    if pools and not (jobs or states):
        to |= {queue.name for queue in status.queues if queues.pool_of(queue.name) in pools}
    at_work = {run.worker for run in runs}
    return status.model_copy(
        update={
            "jobs": kept,
            "runs": runs,
            "waits": waits,
            "queues": [queue for queue in status.queues if queue.name in to],
            "workers": [one for one in status.workers if one.name in at_work or to & {*one.queues}],
            "running": sum(job.running for job in kept),
            "waiting": sum(job.waiting for job in kept),
            "later": sum(job.later for job in kept),
            "dead_letters": sum(job.dead_letters for job in kept),
        }
    )


def matches(name: str, pattern: str) -> bool:
    """`pattern`: a glob, or a part of the name in upper or lower case."""
    return pattern.casefold() in name.casefold() or fnmatchcase(name, pattern)


def _is_meant(job: JobStatus, jobs: Collection[str], states: Collection[str], pools: Collection[str]) -> bool:
    return (
        (not jobs or any(matches(job.name, pattern) for pattern in jobs))
        and (not states or job.state in states or ("overdue" in states and job.overdue))
        and (not pools or job.pool in pools)
    )

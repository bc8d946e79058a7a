"""Gathers the plan of a forecast: the schedule, the jobs' options and usual durations, running and waiting runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from celery import Celery

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import queues, rules
from celery_orchestration.job.app import signature_of
from celery_orchestration.job.graph import Graph
from celery_orchestration.job.options import Priority
from celery_orchestration.job.policy import Policy
from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.operate.forecast.simulation import Plan, PlannedEntry, PlannedJob, Present, Source
from celery_orchestration.operate.history.statistics import Statistics, summed
from celery_orchestration.operate.models import RunStatus, Status
from celery_orchestration.operate.schedule import PART
from celery_orchestration.scheduler.entries import Entry, from_code
from celery_orchestration.scheduler.entry_documents import as_entry, written

#: Hours of statistics from which usual durations are taken.
USUAL_HOURS = 7 * 24


def plan(
    app: Celery,
    jobs: Mapping[str, Policy],
    status: Status,
    usual: Statistics,
    known: Mapping[str, Mapping[str, str]],
    hours: float,
) -> Plan:
    """`known`: the ledger's entries of the schedule, by their keys."""
    now_ms = round(status.at.timestamp() * 1000)
    graph = Graph.build(jobs, plain=[name for name in app.tasks if name not in jobs])
    durations = _durations(status, usual)
    return Plan(
        now_ms=now_ms,
        until_ms=now_ms + round(hours * 3_600_000),
        jobs={
            name: PlannedJob(
                rules=rules.Job.of(policy, graph.never_beside(name)),
                priority=int(policy.priority),
                pool=policy.pool,
                drops=policy.when_disabled == "drop",
                typical_ms=durations.get(name, (0, "unknown"))[0],
                source=durations.get(name, (0, "unknown"))[1],
            )
            for name, policy in jobs.items()
        },
        entries=list(_entries(app, jobs, known, now_ms)),
        present=[*_present(status.runs, jobs), *_present(status.waits, jobs)],
        ended={
            one.name: None
            if one.last_end is None
            else rules.Last(one.last_outcome == "succeeded", one.last_end.timestamp())
            for one in status.jobs
        },
        started={one.name: one.last_start.timestamp() for one in status.jobs if one.last_start is not None},
        disabled={one.name: one.disabled.why for one in status.jobs if one.disabled is not None},
        paused=status.paused,
        max_running=status.max_running,
        slots=_slots(app, status),
    )


def entries_of(ledger: Ledger) -> dict[str, dict[str, str]]:
    """The ledger's entries of this service, by their keys."""
    found: dict[str, dict[str, str]] = {}
    skip = 0
    while part := ledger.read_entries(skip, PART):
        found.update((key, entry) for key, entry in part if keys.service_of_entry(key) == ledger.service)
        skip += len(part)
    return found


def _durations(status: Status, usual: Statistics) -> dict[str, tuple[int, Source]]:
    """The average duration of each job's runs by the statistics; if there are none, the duration of the last run."""
    found: dict[str, tuple[int, Source]] = {
        one.name: (round(one.last_seconds * 1000), "last run") for one in status.jobs if one.last_seconds is not None
    }
    for job in usual.jobs:
        mean = summed(job.counts).run.mean
        if mean is not None:
            found[job.job] = round(mean * 1000), "statistics"
    return found


def _entries(
    app: Celery, jobs: Mapping[str, Policy], known: Mapping[str, Mapping[str, str]], now_ms: int
) -> Iterator[PlannedEntry]:
    in_code, _ = from_code(app, jobs, {})
    for entry in (*in_code.values(), *_of_people(app, jobs, known)):
        found = known.get(entry.id, {})
        if entry.policy is not None and "paused" not in found:
            yield PlannedEntry(
                name=entry.name,
                job=entry.policy.name,
                times=entry.times,
                last_ms=int(found.get("last") or now_ms),
                overlap=entry.policy.overlap,
                key=_key(app, entry),
                gap_ms=entry.gap_ms or 0,
            )


def _of_people(app: Celery, jobs: Mapping[str, Policy], known: Mapping[str, Mapping[str, str]]) -> Iterator[Entry]:
    """Skips broken entries: ``schedule list`` shows them."""
    for key, found in known.items():
        if found.get("source") == "people":
            try:
                yield as_entry(app, written(key, found.get("written", "")), jobs)
            except ConfigurationError:
                continue


def _key(app: Celery, entry: Entry) -> str:
    """The room key of the entry's runs; '' if the job has none, or the arguments lack it: then the runs fail."""
    policy = entry.policy
    if policy is None or policy.key is None:
        return ""
    try:
        return keys.room_key(policy.room_key(entry.call.args, entry.call.kwargs, signature_of(app.tasks[policy.name])))
    except ValueError:
        return ""


def _present(runs: Iterable[RunStatus], jobs: Mapping[str, Policy]) -> Iterator[Present]:
    for run in runs:
        at_work = run.state in ("running", "granted", "queued")
        if run.job in jobs and (at_work or run.state == "waiting"):
            since = round(run.since.timestamp() * 1000) if at_work else None
            yield Present(run.job, run.key, _priority(run.priority), since)


def _priority(label: str) -> int:
    return queues.FORCED if label == "forced" else int(Priority.parse(label))


def _slots(app: Celery, status: Status) -> dict[str, int]:
    """The slots of each pool that live workers serve."""
    found: Counter[str] = Counter()
    for worker in status.workers:
        if worker.state in ("idle", "busy"):
            names: set[Any] = {
                queues.DEFAULT_POOL if queue == app.conf.task_default_queue else queues.pool_of(queue)
                for queue in worker.queues
            }
            found.update(dict.fromkeys(names - {None}, worker.slots))
    return dict(found)

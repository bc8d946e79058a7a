"""Reads the ledger's status document into a :class:`Status`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from celery_orchestration.job import reasons
from celery_orchestration.job.limits import Limit
from celery_orchestration.job.policy import Policy
from celery_orchestration.ledger import BEAT
from celery_orchestration.ledger.keys import decode_job, decode_service
from celery_orchestration.operate.clock import lasting, optional_time
from celery_orchestration.operate.models import (
    Disabled,
    JobStatus,
    QueueStatus,
    RunStatus,
    SchedulerStatus,
    ServiceLeader,
    Status,
)
from celery_orchestration.operate.status import overdue
from celery_orchestration.operate.status.problems import (
    current_problems,
    jobs_without_release,
    missing_scheduler,
    unkept_limits,
)
from celery_orchestration.operate.status.runs import past_reason, pause_of, reason_words, run_status
from celery_orchestration.operate.status.workers import is_dead, read_death, worker_status


def read_status(
    namespace: str,
    found: Mapping[str, Any],
    sent: Mapping[str, list[str]],
    limits: Mapping[str, Limit],
    scheduled: Callable[[], bool] = lambda: False,
    policies: Mapping[str, Policy] = MappingProxyType({}),
) -> Status:
    """Lua's empty tables come as {} where a list is meant.

    `sent`: the queues that jobs are sent to, each with its jobs. `limits`: the time limits of jobs. `scheduled`:
    whether there is anything to fire; called if no scheduler leads. `policies`: of the app's jobs.
    """
    now = found["now"]
    nodes = found["workers"] or ()
    beats = [one for one in nodes if one["kind"] == BEAT and not is_dead(one, now)]
    scheduler = _scheduler(namespace, found, beats)
    found = {**found, "workers": [one for one in nodes if one["kind"] != BEAT]}
    workers = {worker["id"]: worker for worker in found["workers"]}
    runs = [run_status(run, now, workers) for run in found["running"] or ()]
    waits = _waits(found, runs, workers)
    all_queues = _queues(found, waits, sent)
    fires = found.get("fires") or {}
    listed = {run.job: run.arrived for run in sorted(waits, key=lambda run: run.arrived, reverse=True)}
    jobs = [_job(job, now, fires.get(job["name"], ()), policies, listed) for job in found["jobs"] or ()]
    return Status(
        namespace=namespace,
        at=optional_time(now),
        paused=found["paused"],
        pause=pause_of(found.get("pause")),
        running=found["total"],
        max_running=found.get("max_running"),
        waiting=found["waiting"],
        later=found["later"],
        dead_letters=found["dead_letters"],
        jobs=sorted(jobs, key=lambda job: job.name),
        runs=runs,
        waits=waits,
        workers=sorted((worker_status(worker, now) for worker in workers.values()), key=lambda worker: worker.name),
        died=[read_death(one) for one in map(json.loads, found["gone"] or ()) if one.get("kind") != BEAT],
        queues=all_queues,
        problems=[
            *current_problems(all_queues, found, sent),
            *jobs_without_release(found),
            *unkept_limits(found, sent, limits),
            *missing_scheduler(scheduler, scheduled),
        ],
        scheduler=scheduler,
    )


def _waits(found: Mapping[str, Any], runs: Sequence[RunStatus], workers: Mapping[str, Any]) -> list[RunStatus]:
    """The waiting runs, each with its reason in words."""
    now, records = found["now"], found["waits"] or ()
    retried = [run_status(one, now, workers) for one in records if one["state"] == "later" and one["started"]]
    holder = partial(_holder, [*runs, *retried])
    disabled = [job for job in found["jobs"] or () if job.get("disabled")]
    why_off = {decode_job(job["name"]): json.loads(job["disabled"])["why"] for job in disabled}
    waits = []
    for record in records:
        words = reason_words(record["reason"])
        if words[-1] == "disabled" and words[1] in why_off:
            words.append(why_off[words[1]])
        run = run_status(record, now, workers, reasons.sentence(words, holder))
        waits.append(run.model_copy(update={"rule": words[0], "waits_for": reasons.job_of(words)}))
    return waits


def _holder(runs: Sequence[RunStatus], job: str) -> str:
    """The activity of the first run of a job, for the reason of a run that waits for it; '' if there is none."""
    name = decode_job(job)
    run = next((run for run in runs if run.job == name), None)
    if run is None:
        return ""
    if run.state == "running":
        past = ", past its time limit" if run.timed_out else ""
        return f"running on {run.worker} for {lasting(run.seconds)}{past}"
    if run.state in ("retrying", "later"):
        return f"waiting for its retry, for {lasting(run.seconds)}"
    return "about to end" if run.state == "ending" else f"on its way to a worker for {lasting(run.seconds)}"


def _queues(found: Mapping[str, Any], waits: Sequence[RunStatus], sent: Mapping[str, list[str]]) -> list[QueueStatus]:
    slots, under_way = found.get("slots") or {}, found.get("under_way") or {}
    waiting = Counter(run.queue for run in waits)
    return [
        QueueStatus(
            name=name,
            slots=slots.get(name, 0),
            under_way=under_way.get(name, 0),
            waiting=waiting[name],
        )
        for name in sorted({*slots, *under_way, *waiting, *sent})
    ]


def _scheduler(namespace: str, found: Mapping[str, Any], alive: Sequence[Mapping[str, Any]]) -> SchedulerStatus:
    lead = found.get("lead") or {}
    service = found.get("service", "")
    others = [one for one in found.get("leads") or () if one["service"] != service]
    own = [one for one in alive if one.get("service", "") == service]
    return SchedulerStatus(
        leader=lead.get("name"),
        since=optional_time(lead.get("since")),
        standbys=sorted(one["name"] for one in own if one["id"] != lead.get("who")),
        entries=found.get("entries", 0),
        others=sorted((_service_leader(namespace, one) for one in others), key=lambda one: one.service),
    )


def _service_leader(namespace: str, lead: Mapping[str, Any]) -> ServiceLeader:
    service = decode_service(lead["service"]) if lead["service"] else namespace
    return ServiceLeader(service=service, leader=lead["name"], since=optional_time(lead["since"]))


def _job(
    job: Mapping[str, Any],
    now: int,
    fires: Sequence[Mapping[str, Any]],
    policies: Mapping[str, Policy],
    listed: Mapping[str, datetime],
) -> JobStatus:
    """`listed`: the earliest arrival among the listed waiting runs of each job."""
    name = decode_job(job["name"])
    policy = policies.get(name)
    state = "running" if job["running"] else "waiting" if job["waiting"] or job["later"] else "idle"
    oldest = [when for when in (optional_time(job.get("oldest")), listed.get(name)) if when and job["waiting"]]
    # Fields of the same name are taken as they are.
    return JobStatus.model_validate(
        {
            **job,
            "name": name,
            "state": "disabled" if job.get("disabled") else state,
            "priority": policy.priority.label if policy else None,
            "pool": policy.pool if policy else None,
            "oldest_arrival": min(oldest, default=None),
            "last_start": optional_time(job.get("begun")),
            "last_end": optional_time(job.get("ended")),
            "last_outcome": None if job.get("ended") is None else "succeeded" if job.get("succeeded") else "failed",
            "last_success": optional_time(job.get("succeeded_at")),
            "last_seconds": job["took"] / 1000 if "took" in job else None,
            "failures": job.get("failures") or 0,
            "last_error": job.get("last_error") or None,
            "disabled": _disabled(job.get("disabled")),
            "next_probe": optional_time(job.get("cools")),
            "next_fire": optional_time(overdue.next_fire(fires)),
            "overdue": overdue.is_overdue(now, fires, job.get("succeeded_at"), job.get("took")),
            "would_have_waited": _observed(job.get("observed") or {}),
        }
    )


def _observed(counts: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for recorded, count in counts.items():
        found[past_reason(recorded)] += count
    return dict(found)


def _disabled(off: str | None) -> Disabled | None:
    if not off:
        return None
    found = json.loads(off)
    return Disabled(by=found["by"], why=found["why"], at=optional_time(found["at"]), failures=found.get("failures"))

"""The problems of a status, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_orchestration.job import queues, reasons
from celery_orchestration.job.limits import Limit, sentences
from celery_orchestration.ledger.keys import decode_job
from celery_orchestration.operate.hints import CELERY, no_release
from celery_orchestration.operate.models import (
    QueueStatus,
    SchedulerStatus,
)
from celery_orchestration.operate.status import redis_problems
from celery_orchestration.operate.status.workers import is_dead

NO_LEADER = f"no scheduler leads: nothing is fired; start one with {CELERY} beat"


def current_problems(
    all_queues: list[QueueStatus], found: Mapping[str, Any], sent: Mapping[str, list[str]]
) -> list[str]:
    if all(is_dead(worker, found["now"]) for worker in found["workers"] or ()):
        problems = ["no worker is alive"]
    else:
        problems = [_unserved(queue, sent.get(queue.name, [])) for queue in all_queues if queue.slots == 0]
    if found["paused"]:
        problems.append(reasons.REASONS["paused"].present)
    return [*problems, *redis_problems.problems(found)]


def limits_served(
    found: Mapping[str, Any], sent: Mapping[str, list[str]], limits: Mapping[str, Limit]
) -> dict[str, dict[str, Limit]]:
    """The time limits of the tasks that live workers serve, by the kind of execution pool."""
    served: dict[str, dict[str, Limit]] = {}
    for worker in found["workers"] or ():
        if not is_dead(worker, found["now"]):
            tasks = {task for queue in worker.get("queues") or () for task in sent.get(queue, ())}
            served.setdefault(worker["kind"], {}).update({task: limits[task] for task in tasks & limits.keys()})
    return served


def jobs_without_release(found: Mapping[str, Any]) -> list[str]:
    """Jobs that have waiting runs, and that no live worker has."""
    jobs = {one["job"]: one["reason"][2] for one in found["waits"] or () if one["reason"][0] == "nobody"}
    jobs |= {one["name"]: one["gone"] for one in found["jobs"] or () if "gone" in one and one["waiting"] + one["later"]}
    return [f"{no_release(decode_job(job), last)}; its runs wait" for job, last in sorted(jobs.items())]


def unkept_limits(found: Mapping[str, Any], sent: Mapping[str, list[str]], limits: Mapping[str, Limit]) -> list[str]:
    served = limits_served(found, sent, limits)
    return sorted(sentence for kind, jobs in served.items() for sentence in sentences(kind, jobs, {}))


def _unserved(queue: QueueStatus, jobs: list[str]) -> str:
    why = []
    if queue.waiting or queue.under_way:
        why.append("runs wait to be handed over")
    if jobs:
        why.append(queues.sent_there(jobs))
    return f"no live worker serves queue {queue.name}, where {' and '.join(why)}"


def missing_scheduler(scheduler: SchedulerStatus, scheduled: Callable[[], bool]) -> list[str]:
    if scheduler.leader is not None or not scheduled():
        return []
    if scheduler.standbys:
        return ["no scheduler leads at the moment: nothing is fired until a standby takes over"]
    return [NO_LEADER]

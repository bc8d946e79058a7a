"""What the ledger says, as models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from celery_orchestration.job import queues
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.limits import Limit, sentences
from celery_orchestration.job.policy import Policy, Priority, show
from celery_orchestration.ledger import BEAT, HistoryLine
from celery_orchestration.ledger.keys import decode_entry, decode_job, decode_service, retries
from celery_orchestration.operate import overdue, reasons, redis_problems
from celery_orchestration.operate.clock import clock, lasting, when
from celery_orchestration.operate.hints import CELERY
from celery_orchestration.operate.models import (
    Change,
    DeadLetter,
    Death,
    Disabled,
    Ended,
    JobStatus,
    Letter,
    Paused,
    Progress,
    QueueStatus,
    RunStatus,
    SchedulerStatus,
    ServiceLeader,
    Status,
    WorkerStatus,
)

NO_LEADER = f"no scheduler leads: nothing is fired; start one with {CELERY} beat"


def status(
    namespace: str,
    found: Mapping[str, Any],
    sent: Mapping[str, list[str]],
    limits: Mapping[str, Limit],
    scheduled: Callable[[], bool] = lambda: False,
    policies: Mapping[str, Policy] = MappingProxyType({}),
) -> Status:
    """The ledger's document as a model. Lua's empty tables come as {} where a list is meant.

    `sent`: the queues that jobs are sent to, each with its jobs. `limits`: of jobs, hard and soft. `scheduled`:
    whether a scheduler of ours should fire something; asked if none leads. `policies`: of the app's jobs.
    """
    now = found["now"]
    members = found["workers"] or ()
    beats = [one for one in members if one["kind"] == BEAT and not _is_dead(one, now)]
    scheduler = _scheduler(namespace, found, beats)
    found = {**found, "workers": [one for one in members if one["kind"] != BEAT]}
    workers = {worker["id"]: worker for worker in found["workers"]}
    runs = [run_status(run, now, workers) for run in found["running"] or ()]

    def holder(encoded: str) -> str:
        name = decode_job(encoded)
        run = next((run for run in (*runs, *put_off) if run.job == name), None)
        if run is None:
            return ""
        if run.state == "running":
            past = ", past its time limit" if run.timed_out else ""
            return f"running on {run.worker} for {lasting(run.seconds)}{past}"
        if run.state in ("retrying", "later"):
            return f"to be tried again, for {lasting(run.seconds)}"
        if run.state == "ending":
            return "about to end"
        return f"about to start for {lasting(run.seconds)}"

    off = {
        decode_job(job["name"]): json.loads(job["disabled"])["why"]
        for job in found["jobs"] or ()
        if job.get("disabled")
    }
    retried = [one for one in found["waits"] or () if one["state"] == "later" and one["started"]]
    put_off = [run_status(one, now, workers) for one in retried]
    waits = []
    for wait in found["waits"] or ():
        told = reason_words(wait["reason"])
        if told[-1] == "disabled" and told[1] in off:
            told.append(off[told[1]])
        run = run_status(wait, now, workers, reasons.sentence(told, holder))
        waits.append(run.model_copy(update={"rule": told[0], "waits_for": reasons.job_of(told)}))
    slots, under_way = found.get("slots") or {}, found.get("under_way") or {}
    to_queue = Counter(wait.queue for wait in waits)
    all_queues = [
        QueueStatus(
            name=name,
            slots=slots.get(name, 0),
            under_way=under_way.get(name, 0),
            waiting=to_queue[name],
        )
        for name in sorted({*slots, *under_way, *to_queue, *sent})
    ]
    fires = found.get("fires") or {}
    listed = {run.job: run.arrived for run in sorted(waits, key=lambda run: run.arrived, reverse=True)}
    jobs = [_job(job, now, fires.get(job["name"], ()), policies, listed) for job in found["jobs"] or ()]
    return Status(
        namespace=namespace,
        at=_when(now),
        paused=found["paused"],
        pause=pause_of(found.get("pause")),
        running=found["total"],
        max_running=found.get("max_running"),
        waiting=found["waiting"],
        later=found["later"],
        dead_letters=found["letters"],
        jobs=sorted(jobs, key=lambda job: job.name),
        runs=runs,
        waits=waits,
        workers=sorted((_worker(worker, now) for worker in workers.values()), key=lambda worker: worker.name),
        died=[_death(one) for one in map(json.loads, found["gone"] or ()) if one.get("kind") != BEAT],
        queues=all_queues,
        problems=[
            *_problems(all_queues, found, sent),
            *_without_release(found),
            *_unkept_limits(found, sent, limits),
            *_without_scheduler(scheduler, scheduled),
        ],
        scheduler=scheduler,
    )


def _scheduler(namespace: str, found: Mapping[str, Any], alive: Sequence[Mapping[str, Any]]) -> SchedulerStatus:
    lead = found.get("lead") or {}
    service = found.get("service", "")
    others = [one for one in found.get("leads") or () if one["service"] != service]
    own = [one for one in alive if one.get("service", "") == service]
    return SchedulerStatus(
        leader=lead.get("name"),
        since=_when(lead.get("since")),
        standbys=sorted(one["name"] for one in own if one["id"] != lead.get("who")),
        entries=found.get("entries", 0),
        others=sorted((_service_leader(namespace, one) for one in others), key=lambda one: one.service),
    )


def _service_leader(namespace: str, lead: Mapping[str, Any]) -> ServiceLeader:
    service = decode_service(lead["service"]) if lead["service"] else namespace
    return ServiceLeader(service=service, leader=lead["name"], since=_when(lead["since"]))


def _without_scheduler(scheduler: SchedulerStatus, scheduled: Callable[[], bool]) -> list[str]:
    if scheduler.leader is not None or not scheduled():
        return []
    if scheduler.standbys:
        return ["no scheduler leads at the moment: nothing is fired until one of those that stand by does"]
    return [NO_LEADER]


def reason_words(reason: Sequence[str]) -> list[str]:
    if reason[0] == "disabled":
        off = json.loads(reason[1])
        if off["by"] == "failures":
            return ["disabled", off["why"]]
        return ["disabled", f"{off['why']} ({off['by']})" if off["why"] else f"by {off['by']}"]
    if reason[0] == "due":
        return ["due", clock(_when(int(reason[1])))]
    return [decode_job(word) if index == 1 else word for index, word in enumerate(reason)]


def _problems(all_queues: list[QueueStatus], found: Mapping[str, Any], sent: Mapping[str, list[str]]) -> list[str]:
    if all(_is_dead(worker, found["now"]) for worker in found["workers"] or ()):
        problems = ["no worker is alive"]
    else:
        problems = [_unserved(queue, sent.get(queue.name, [])) for queue in all_queues if queue.slots == 0]
    if found["paused"]:
        problems.append("everything is paused")
    return [*problems, *redis_problems.with_redis(found)]


def limits_served(
    found: Mapping[str, Any], sent: Mapping[str, list[str]], limits: Mapping[str, Limit]
) -> dict[str, dict[str, Limit]]:
    """Limits of the tasks that live workers serve, by the kind of execution pool."""
    served: dict[str, dict[str, Limit]] = {}
    for worker in found["workers"] or ():
        if not _is_dead(worker, found["now"]):
            tasks = {task for queue in worker["queues"] or () for task in sent.get(queue, ())}
            served.setdefault(worker["kind"], {}).update({task: limits[task] for task in tasks & limits.keys()})
    return served


def _without_release(found: Mapping[str, Any]) -> list[str]:
    """Jobs with runs that wait, and that no live worker has."""
    jobs = {one["job"]: one["reason"][2] for one in found["waits"] or () if one["reason"][0] == "nobody"}
    jobs |= {one["name"]: one["gone"] for one in found["jobs"] or () if "gone" in one and one["waiting"] + one["later"]}
    return [f"{reasons.no_release(decode_job(job), last)}; its runs wait" for job, last in sorted(jobs.items())]


def _unkept_limits(found: Mapping[str, Any], sent: Mapping[str, list[str]], limits: Mapping[str, Limit]) -> list[str]:
    served = limits_served(found, sent, limits)
    return sorted(sentence for kind, jobs in served.items() for sentence in sentences(kind, jobs, {}))


def _unserved(queue: QueueStatus, jobs: list[str]) -> str:
    why = []
    if queue.waiting or queue.under_way:
        why.append("runs are to be handed over")
    if jobs:
        why.append(queues.sent_there(jobs))
    return f"no live worker serves queue {queue.name}, where {' and '.join(why)}"


def _job(
    job: Mapping[str, Any],
    now: int,
    fires: Sequence[Mapping[str, Any]],
    policies: Mapping[str, Policy],
    listed: Mapping[str, datetime],
) -> JobStatus:
    """`listed`: the earliest arrival of the waiting runs that are listed, by job."""
    name = decode_job(job["name"])
    policy = policies.get(name)
    state = "running" if job["running"] else "waiting" if job["waiting"] or job["later"] else "idle"
    oldest = [when for when in (_when(job.get("oldest")), listed.get(name)) if when and job["waiting"]]
    return JobStatus(
        name=name,
        state="disabled" if job.get("disabled") else state,
        priority=policy.priority.label if policy else None,
        pool=policy.pool if policy else None,
        running=job["running"],
        max_running=job.get("max_running"),
        keyed=job["keyed"],
        waiting=job["waiting"],
        later=job["later"],
        oldest_arrival=min(oldest, default=None),
        last_start=_when(job.get("begun")),
        last_end=_when(job.get("ended")),
        last_outcome=None if job.get("ended") is None else "succeeded" if job.get("succeeded") else "failed",
        last_success=_when(job.get("succeeded_at")),
        last_seconds=job["took"] / 1000 if "took" in job else None,
        failures=job.get("failures") or 0,
        max_consecutive_failures=job.get("max_consecutive_failures"),
        last_error=job.get("last_error") or None,
        disabled=_disabled(job.get("disabled")),
        probe=job.get("probe"),
        next_probe=_when(job.get("cools")),
        dead_letters=job["letters"],
        dropped_copies=job["copies"],
        next_fire=_when(overdue.next_fire(fires)),
        overdue=overdue.is_overdue(now, fires, job.get("succeeded_at"), job.get("took")),
        would_have_waited=_observed(job.get("observed") or {}),
    )


def _observed(counts: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for words, count in counts.items():
        found[reasons.past(words.split(" "))] += count
    return dict(found)


def pause_of(text: str | None) -> Paused | None:
    if not text:
        return None
    found = json.loads(text)
    return Paused(by=found["by"], why=found["why"], at=_when(found["at"]))


def _disabled(off: str | None) -> Disabled | None:
    if not off:
        return None
    found = json.loads(off)
    return Disabled(by=found["by"], why=found["why"], at=_when(found["at"]), failures=found.get("failures"))


def run_status(run: Mapping[str, Any], now: int, workers: Mapping[str, Any], reason: str | None = None) -> RunStatus:
    worker = workers.get(run.get("worker") or "")
    return RunStatus(
        id=run["id"],
        job=decode_job(run["job"]),
        state=run["state"],
        key=run["key"],
        priority="forced" if run["priority"] == queues.FORCED else Priority(run["priority"]).label,
        retries=retries(run["attempt"]),
        worker=worker["name"] if worker else None,
        queue=run["queue"],
        fence=int(run["fence"]) if run.get("fence") else None,
        recoveries=run["recoveries"],
        arrived=_when(run["arrived"]),
        since=_when(run["since"]),
        seconds=max(0.0, (now - run["since"]) / 1000),
        expires=_when(run.get("expires")),
        reason=reason,
        timed_out=_when((run.get("over") or {}).get("at")),
        progress=_progress(run.get("progress")),
    )


def _progress(found: Mapping[str, Any] | None) -> Progress | None:
    return Progress(**json.loads(found["what"]), at=_when(found["at"])) if found else None


def _death(found: Mapping[str, Any]) -> Death:
    return Death(name=found["name"], at=_when(found["at"]), runs=found["runs"])


def _is_dead(worker: Mapping[str, Any], now: int) -> bool:
    """By the ledger clock, or, as that stands still while nobody sweeps, by its silence."""
    return bool(worker["left"] <= 0 or now - worker["beat"] > worker["lease"])


def worker_state(worker: Mapping[str, Any], now: int) -> Literal["idle", "busy", "draining", "dead"]:
    if _is_dead(worker, now):
        return "dead"
    return "draining" if worker["draining"] else "busy" if worker["running"] else "idle"


def _worker(worker: Mapping[str, Any], now: int) -> WorkerStatus:
    return WorkerStatus(
        name=worker["name"],
        host=worker["host"],
        pid=worker["pid"],
        state=worker_state(worker, now),
        execution_pool=worker["kind"],
        slots=worker["slots"],
        running=worker["running"],
        done=worker["done"],
        failed=worker["failed"],
        queues=worker["queues"] or [],
        mode=worker["mode"],
        since=_when(worker["since"]),
        last_beat=_when(worker["beat"]),
    )


def _when(ms: int | None) -> Any:
    return None if ms is None else when(ms)


def change(text: str) -> Change:
    """What is done to a run names it, and its job as the reason; ids and names of entries are not encoded."""
    found = json.loads(text)
    found["at"] = _when(found["at"])
    if not found["what"].endswith(" entry"):
        encoded = "why" if found["what"] in ("cancel", "requeue", "purge") else "about"
        found[encoded] = decode_job(found[encoded])
    return Change(**found)


def id_of(text: str) -> str:
    """Of a run, as a record of the history has it."""
    return HistoryLine.read(text).id


def ended(job: str, text: str) -> Ended:
    line = HistoryLine.read(text)
    words = line.waited_for.split(" ") if line.waited_for else None
    made_run = line.fires is None
    return Ended(
        id=line.id,
        job=job,
        outcome=line.outcome,
        retries=retries(line.attempt),
        key=line.key,
        arrived=_when(line.arrived),
        started=_when(line.started),
        ended=_when(line.ended),
        seconds=None if line.started is None else (line.ended - line.started) / 1000,
        waited_seconds=max(0, (line.started or line.ended) - line.arrived) / 1000 if made_run else 0,
        waited_for=reasons.past(words) if words else None,
        waited_rule=words[0] if words else None,
        worker=line.worker,
        fence=int(line.fence) if line.fence else None,
        recoveries=line.recoveries,
        error=line.error,
        entry=decode_entry(line.entry) if line.entry else None,
        due=_when(line.due),
        fires=1 if line.fires is None else line.fires,
        made_run=made_run,
    )


def dead_letter(text: str, revoked: bool) -> DeadLetter:
    return DeadLetter(**_letter(text), revoked=revoked)


def letter(text: str, revoked: bool, message: bytes) -> Letter:
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
        "at": _when(found["at"]),
        "arrived": _when(found["arrived"]),
        "retries": retries(found["attempt"]),
        "worker": found.get("worker"),
    }

"""The doctor: gathers facts about an app's ledger, workers, broker and code, and runs the ``checks`` on them.

It continues where other commands fail: invalid code is a finding, and so is a broker that does not answer. Only if the
ledger does not answer, that is its one finding.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any

from celery import Celery

from celery_orchestration import commands
from celery_orchestration.errors import ConfigurationError, LedgerError, LedgerRefused
from celery_orchestration.job import graph, queues
from celery_orchestration.job.app import limits_of, owner_of
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.pool import pool_problems
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Ledger
from celery_orchestration.node.stores import Names
from celery_orchestration.operate import app_jobs, broker
from celery_orchestration.operate.doctor import checks
from celery_orchestration.operate.doctor.checks.code import CODE
from celery_orchestration.operate.doctor.checks.facts import Facts
from celery_orchestration.operate.doctor.checks.redis import REDIS
from celery_orchestration.operate.doctor.models import Check, Diagnosis
from celery_orchestration.operate.pools.status import Pools, pools_status, without_idle_pools
from celery_orchestration.operate.schedule import Schedule
from celery_orchestration.operate.status.problems import limits_served
from celery_orchestration.operate.status.reader import read_status

#: How many runs the status lists: no check looks at them.
_MOST_RUNNING, _MOST_WAITING = 1, 1


def diagnose_invalid_settings(problem: ConfigurationError) -> Diagnosis:
    """The diagnosis of an app with invalid settings: its ledger is unknown."""
    lines = str(problem).splitlines()
    return _diagnosis([CODE.problem(line, "change it in the app's configuration") for line in lines])


def diagnose(app: Celery, settings: Settings, ledger: Ledger, schedule: Schedule) -> Diagnosis:
    try:
        facts = _gather(app, settings, ledger, schedule)
    except LedgerRefused as exc:
        return _diagnosis([REDIS.problem(str(exc), "app.conf.orchestration_namespace = '…'")])
    except LedgerError as exc:
        found = f"the ledger at {ledger.address} does not answer: {exc}"
        fix = "start it, or set its address: app.conf.orchestration_redis_url = '…'"
        return _diagnosis([REDIS.problem(found, fix)])
    return _diagnosis(checks.examine(facts), facts.status.at)


def _diagnosis(found: Sequence[Check], at: datetime | None = None) -> Diagnosis:
    ok = all(check.state != "problem" for check in found)
    return Diagnosis(at=at or datetime.now(timezone.utc), checks=list(found), ok=ok)


def _gather(app: Celery, settings: Settings, ledger: Ledger, schedule: Schedule) -> Facts:
    ledger.check(owner_of(app))
    before = time.time()
    ahead = -ledger.time()
    ahead += (before + time.time()) / 2
    jobs, mistakes = app_jobs.valid_jobs(app)
    sent = queues.destinations(app, jobs)
    # Ask the workers first: a worker that is just starting answers before it is in the ledger.
    answers = broker.answers(app, "active_queues")
    inspected = broker.answers(app, commands.INSPECT, answers.replies)
    found = ledger.read_status(_MOST_RUNNING, _MOST_WAITING)
    scheduled = partial(_is_scheduled, schedule, found["entries"])
    limits = limits_of(app)
    status = read_status(settings.namespace, found, sent, limits, scheduled, jobs)
    snapshots = Pools(app, ledger, lambda call: call(), settings.pools).snapshots()
    problems = without_idle_pools(status.problems, snapshots)
    status = status.model_copy(update={"pools": pools_status(snapshots, status).pools, "problems": problems})
    plain = [name for name in limits if name not in jobs]
    listed = ledger.list_nodes()
    known = {node.name for node in listed.nodes}
    # If a module cannot be imported, the names of its jobs would seem wrong wherever other jobs name them.
    misnamed, cycles = ([], []) if app_jobs.load(app) else _names(app, jobs)
    return Facts(
        status=status,
        settings=settings,
        address=str(ledger.address),
        nodes=listed,
        info=ledger.info(),
        save=ledger.setting("save"),
        ahead=ahead,
        jobs=jobs,
        mistakes=[line for mistake in mistakes for line in mistake.splitlines()],
        misnamed=misnamed,
        cycles=cycles,
        releases=dict(zip(listed.releases.split(), ledger.read_releases(listed.releases), strict=True)),
        entries=_entries(schedule),
        beat_is_ours=schedule.is_ours(),
        broker_problem=answers.problem,
        broker_is_redis=broker.kind(app) == "redis",
        broker_is_amqp=broker.kind(app) == "amqp",
        strangers=broker.unknown(answers, inspected, known, sent.keys(), settings.namespace),
        replies=inspected,
        kept=broker.kept(app, Names.in_app(app, settings.namespace)),
        prefetch=app.conf.worker_prefetch_multiplier,
        visibility=float((app.conf.broker_transport_options or {}).get("visibility_timeout") or 3600),
        limits=limits_served(found, sent, limits),
        plain_limits=limits_served(found, queues.destinations(app, plain), limits),
        late={name: app.tasks[name].time_limit for name in jobs if app.tasks[name].acks_late},
        pool_problems=pool_problems(settings.pools, jobs),
    )


def _names(app: Celery, jobs: Mapping[str, Policy]) -> tuple[list[str], list[str]]:
    """Wrong names of jobs in the options of other jobs; and dependency cycles."""
    others = [name for name in app.tasks if name not in jobs]
    # A job with invalid options is known: its own error is reported.
    unread = [name for name in others if getattr(app.tasks[name], "mistake", None) is not None]
    try:
        return list(graph.misnamed(jobs, known=unread, plain=others)), list(graph.circular(jobs))
    except ConfigurationError as exc:  # a job names something that is no task
        return str(exc).splitlines(), []


def _entries(schedule: Schedule) -> list[Any]:
    try:
        return schedule.list()
    except ConfigurationError:
        return []  # the code is invalid, which is a finding of its own


def _is_scheduled(schedule: Schedule, entries: int) -> bool:
    return schedule.is_ours() and bool(entries or schedule.has_code())

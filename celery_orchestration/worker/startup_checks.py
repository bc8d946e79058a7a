"""Checks at the start of a worker, so that mistakes show before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import queues
from celery_orchestration.job.app import SCHEDULER, limits_of
from celery_orchestration.job.limits import CANNOT_INTERRUPT, sentences, soft_sentence
from celery_orchestration.job.policy import Policy
from celery_orchestration.worker import custom, internals

logger = get_logger(__name__)


def jobs_served(destinations: Mapping[str, Sequence[str]], served: Sequence[str]) -> set[str]:
    """Jobs that are sent to the queues of this worker."""
    return {job for queue, jobs in destinations.items() if queue in served for job in jobs}


def check_pool_can_stop(pool_cls: Any, kind: str, jobs: Iterable[str]) -> None:
    """Raises if one of these jobs has ``on_lease_lost="stop"`` and the execution pool cannot end a run's process."""
    if internals.pool.can_kill(pool_cls):
        return
    names = sorted(jobs)
    if names:
        raise ConfigurationError(
            f"on_lease_lost='stop' needs an execution pool that can end a run's process (prefork), "
            f"not {CANNOT_INTERRUPT.get(kind, kind)}: {', '.join(names)}. Serve their queues with "
            "-P prefork, or write on_lease_lost='continue'"
        )


def warn_of_other_scheduler(app: Celery, jobs: Mapping[str, Policy]) -> None:
    """Logs the jobs that another scheduler than ours would never run."""
    ours = app.conf.beat_scheduler == SCHEDULER
    never = [name for name, job in jobs.items() if job.mode == "continuous" and not ours]
    if never:
        logger.warning(
            "These continuous jobs run only under a beat with -S %s (or with that as app.conf.beat_scheduler): %s",
            SCHEDULER,
            ", ".join(never),
        )


def warn_of_time_limits(
    app: Celery, kind: str, jobs: Mapping[str, Policy], jobs_here: Iterable[str], served: Sequence[str]
) -> None:
    """Logs the tasks whose time limits the execution pool does not enforce."""
    limits = limits_of(app)
    plain = queues.destinations(app, [name for name in limits if name not in jobs])
    limits_of_jobs = {job: limits[job] for job in set(jobs_here) & limits.keys()}
    limits_of_plain = {name: limits[name] for queue in served for name in plain.get(queue, ())}
    soft = soft_sentence(kind, {**limits_of_jobs, **limits_of_plain})
    for sentence in [*sentences(kind, limits_of_jobs, limits_of_plain), *([soft] if soft else [])]:
        logger.warning("The %s", sentence)


def bypasses_gate(app: Celery, jobs: Iterable[str]) -> str:
    """Why this worker must not run; '' if every job asks the gate. Call it after Celery has made the strategies."""
    bypassing = [name for name in jobs if not custom.is_gated(app.tasks[name])]
    if not bypassing:
        return ""
    return (
        "Jobs would run without asking the gate, because a base class has a start_strategy of its own that "
        f"does not call super().start_strategy(): {', '.join(bypassing)}"
    )

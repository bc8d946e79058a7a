"""The table of pools: the queues of each pool, and the values that apply when machines have different tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from celery_orchestration.job import queues
from celery_orchestration.job.pool import Pool

Table = Mapping[str, Pool]

#: Options that decide how many workers a pool has. The other options are each machine's own.
SHARED = ("min", "max", "concurrency", "target_wait_seconds", "scale_up_at", "scale_down_at", "quiet_seconds")


def queues_of(app: Celery, pool: str) -> list[str]:
    """The queues of a pool. The default pool also has the queues of workers without ``-Q``."""
    own = [queues.granted_name(pool), *queues.pool_queues(pool)]
    if pool != queues.DEFAULT_POOL:
        return own
    configured = [str(getattr(queue, "name", queue)) for queue in app.conf.task_queues or ()]
    others = [name for name in configured or [app.conf.task_default_queue] if queues.pool_of(name) is None]
    return list(dict.fromkeys([*own, *others]))


def arguments_of(app: Celery, pool: str) -> list[str]:
    """The queue arguments of ``celery worker``. A worker adds the granted queues of its pools by itself."""
    if pool != queues.DEFAULT_POOL:
        return ["-Q", ",".join(queues.pool_queues(pool))]
    configured = [str(getattr(queue, "name", queue)) for queue in app.conf.task_queues or ()]
    foreign = [name for name in configured if queues.pool_of(name) not in (None, pool)]
    return ["-X", ",".join(foreign)] if foreign else []


def shared(pool: Pool) -> dict[str, Any]:
    """The options of a pool that other supervisors need to know."""
    return {name: getattr(pool, name) for name in SHARED}


def strictest(pool: Pool, others: Sequence[Mapping[str, Any]]) -> Pool:
    """The values that apply while supervisors declare a pool differently: those that ask for fewer workers.

    That is the smallest ``max``; the largest ``min`` within it; the smallest ``concurrency`` and ``quiet_seconds``; the
    largest ``target_wait_seconds`` and ``scale_up_at``, or durations if one supervisor scales by these.
    """
    declared = [shared(pool), *({**shared(pool), **other} for other in others)]
    most = min(one["max"] for one in declared)
    by_depth = all(one["scale_up_at"] is not None for one in declared)
    up = max(one["scale_up_at"] for one in declared) if by_depth else None
    down = [one["scale_down_at"] for one in declared if one["scale_down_at"] is not None]
    return pool.model_copy(
        update={
            "max": most,
            "min": min(most, max(one["min"] for one in declared)),
            "concurrency": min(one["concurrency"] for one in declared),
            "target_wait_seconds": max(one["target_wait_seconds"] for one in declared),
            "quiet_seconds": min(one["quiet_seconds"] for one in declared),
            "scale_up_at": up,
            "scale_down_at": max(down) if by_depth and down and max(down) < (up or 0) else None,
        }
    )


def differences(name: str, pool: Pool, others: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sentences about how other supervisors declare the pool. `others`: their options, by supervisor."""
    own, found = shared(pool), []
    applies = shared(strictest(pool, list(others.values())))
    for supervisor, one in sorted(others.items()):
        unlike = [option for option in SHARED if option in one and one[option] != own[option]]
        if unlike:
            differing = ", ".join(f"{option}={one[option]} there and {own[option]} here" for option in unlike)
            applied = ", ".join(f"{option}={applies[option]}" for option in unlike)
            found.append(
                f"supervisor {supervisor} has another table of pools: pool {name!r} has {differing}. The stricter one "
                f"applies: {applied}. Start all supervisors with the same configuration"
            )
    return found

"""Pools and priorities as queues, and the routes to them.

A routed job is sent to ``{pool}.{priority}``; a run that is handed over goes to ``{pool}.granted``, which its
workers serve on a channel of its own, so that it never stands behind a backlog. Order of routing: what the
call says, then ``Task.queue``, then the user's ``task_routes``, then ours, and ours only if ``priority`` or
``pool`` was written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.app.routes import prepare
from celery.exceptions import QueueNotFound
from kombu import Queue
from kombu.utils.scheduling import round_robin_cycle

from celery_orchestration.policy import Priority

DEFAULT_POOL = "default"
#: Header of a call that was given a priority of its own: apply_async(priority="high").
PRIORITY_HEADER = "orchestration_priority"
#: Header of a call that was forced: it passes the gate's first rule, and ranks before all others.
FORCE_HEADER = "orchestration_force"
FORCED = 4

STRICT = "celery_orchestration.queues:StrictCycle"

_RANKS = {"granted": -1, **{p.name.lower(): 3 - p for p in Priority}}
_NORMAL = _RANKS["normal"]


def queue_name(pool: str, priority: Priority) -> str:
    return f"{pool}.{priority.name.lower()}"


def granted_name(pool: str) -> str:
    return f"{pool}.granted"


def is_granted(queue: str) -> bool:
    return rank_of(queue) == _RANKS["granted"]


def pool_of(queue: str) -> str | None:
    """The pool a queue belongs to, or None if it is not one of ours."""
    pool, dot, last = queue.rpartition(".")
    return pool if dot and last in _RANKS and "." not in pool else None


def rank_of(queue: str) -> int:
    """Which queue is served first under strict priority: the lowest. The user's own queues count as normal."""
    return _RANKS[queue.rpartition(".")[2]] if pool_of(queue) else _NORMAL


def pool_queues(pool: str) -> list[str]:
    return [queue_name(pool, priority) for priority in sorted(Priority, reverse=True)]


def granted_queue_for(queue: str, default_queue: str) -> str:
    """Where a run that came through `queue` is handed over, or '' for a queue of the user's own."""
    pool = DEFAULT_POOL if queue == default_queue else pool_of(queue)
    return granted_name(pool) if pool else ""


def declared(app: Celery, name: str) -> Queue:
    """The queue of that name, declared as Celery declares missing ones even if the app forbids that for typos."""
    queues = app.amqp.queues
    if name in queues or queues.create_missing:
        return queues[name]
    return queues.add(queues.new_missing(name))


def route(app: Celery) -> Any:
    """A router that comes after the user's own."""

    def orchestration_route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
        if options.get("queue") or options.get("exchange") or options.get("routing_key"):
            return None
        job = getattr(task or app._tasks.get(name), "orchestration", None)
        if job is None:
            return None
        moved = (options.get("headers") or {}).get(PRIORITY_HEADER)
        if not (job.routed or moved):
            return None
        priority = Priority.parse(moved) if moved else job.priority
        return {"queue": declared(app, queue_name(job.pool, priority))}

    return orchestration_route


def install_route(app: Celery) -> None:
    """Appends our router to the app's; it stays the last one when task_routes is changed later.

    A job may be bound before the app is configured: nothing that depends on the configuration is made here.
    """
    amqp = app.amqp
    if "flush_routes" in vars(amqp):
        return
    ours = route(app)

    def flush_routes() -> None:
        amqp._rtable = [*prepare(app.conf.task_routes), ours]

    amqp.flush_routes = flush_routes
    amqp._rtable = None
    vars(amqp).pop("router", None)


def destinations(app: Celery, jobs: Iterable[str]) -> dict[str, list[str]]:
    """The queues that jobs are sent to unless a call says otherwise, each with its jobs."""
    found: dict[str, list[str]] = {}
    for name in sorted(jobs):
        task = app.tasks[name]
        written = {option: getattr(task, option, None) for option in ("queue", "exchange", "routing_key")}
        try:
            options = app.amqp.router.route({k: v for k, v in written.items() if v}, name, task_type=task)
        except QueueNotFound:
            continue  # who calls it hears of that
        queue = options.get("queue")
        if queue is not None:
            found.setdefault(getattr(queue, "name", queue), []).append(name)
    return found


def sent_there(jobs: list[str]) -> str:
    shown = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
    return f"{shown} {'are' if len(jobs) > 1 else 'is'} sent"


def select(app: Celery, chosen: bool, strict: bool) -> list[str]:
    """Settles which queues a worker consumes; returns those it serves on a channel of ours.

    `chosen`: queues were named with -Q. Without, the worker serves the default pool too. Queues that we add
    stay off the channel that Celery uses, so that plain tasks are fetched as ever; under strict priority one
    channel must know the order of all, but for the granted queues, which come first anyway.
    """
    queues = app.amqp.queues
    ours = [] if chosen else pool_queues(DEFAULT_POOL)
    pools = {DEFAULT_POOL} if not chosen else set()
    pools |= {pool for pool in map(pool_of, queues.consume_from) if pool}
    if strict:
        for name in ours:
            queues.select_add(declared(app, name))
        ours = []
    ours = [*sorted(map(granted_name, pools)), *(name for name in ours if name not in queues.consume_from)]
    for name in ours:
        declared(app, name)
    queues.deselect(ours)
    return ours


class StrictCycle(round_robin_cycle):  # type: ignore[misc]
    """Order in which kombu's Redis transport asks for messages: highest priority first, always.

    Its own 'priority' strategy keeps the order in which queues were added only since kombu 5.7.
    """

    def update(self, it: Iterable[str]) -> None:
        self.items[:] = sorted(it, key=lambda name: (rank_of(name), name))

    def rotate(self, last_used: str) -> str:
        return last_used

"""Pools and priorities as queues, and the routes to them.

A routed job is sent to ``{pool}.{priority}``; a run that is handed over goes to ``{pool}.granted``, which its
workers serve on a channel of its own, so that it never stands behind a backlog. Order of routing: what the
call says, then ``Task.queue``, then the user's ``task_routes``, then ours, and ours only if ``priority`` or
``pool`` was written.

A worker without ``-Q`` serves its default queue, the ``default.*`` queues that its jobs are sent to, and any other
``default.*`` queue as soon as the broker has it: ``apply_async(priority="high")`` may send the first run there, or a
release with other options. Queues that nothing is sent to are not declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery
from celery.app.routes import prepare
from celery.exceptions import QueueNotFound
from celery.utils.log import get_logger
from kombu import Exchange, Queue
from kombu.utils.scheduling import round_robin_cycle

from celery_orchestration import commands
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.options import Priority
from celery_orchestration.job.policy import Policy

logger = get_logger(__name__)

DEFAULT_POOL = "default"
#: Header of a call that was given a priority of its own: apply_async(priority="high").
PRIORITY_HEADER = "orchestration_priority"
#: Header of a call that was forced: it passes the gate's first rule, and ranks before all others.
FORCE_HEADER = "orchestration_force"
FORCED = 4

STRICT = "celery_orchestration.job.queues:StrictCycle"

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


def can_be_used(app: Celery, name: str) -> bool:
    """Whether the app has this queue, or lets it be created (task_create_missing_queues)."""
    return name in app.amqp.queues or bool(app.amqp.queues.create_missing)


def declared(app: Celery, name: str) -> Queue:
    """The queue of that name, declared as Celery declares missing ones. A message that goes back to where it came from
    is not lost because the app forbids missing queues: see :func:`can_be_used` for those that may be used."""
    queues = app.amqp.queues
    return queues[name] if name in queues else queues.add(_new(app, name))


def _new(app: Celery, name: str) -> Queue:
    """A missing queue. One of ours has the type of the app's default queue, unless the app has a type for missing ones.
    Quorum queues get a topic exchange: Celery's delayed delivery does not know direct ones, and warns of each."""
    queue = app.amqp.queues.new_missing(name)
    if pool_of(name) and app.conf.get("task_default_queue_type") == "quorum" and not queue.queue_arguments:
        queue.queue_arguments = {"x-queue-type": "quorum"}
        if queue.exchange and queue.exchange.type == "direct":
            queue.exchange = Exchange(queue.exchange.name, type="topic")
    return queue


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
        queue = queue_name(job.pool, Priority.parse(moved) if moved else job.priority)
        return {"queue": declared(app, queue) if can_be_used(app, queue) else queue}  # Celery refuses the latter

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


def check(app: Celery, jobs: Mapping[str, Policy]) -> None:
    """Raises if a job is to be sent to a queue of ours that the app does not have and does not let be created."""
    for name, job in sorted(jobs.items()):
        queue = queue_name(job.pool, job.priority)
        if job.routed and not can_be_used(app, queue):
            try:
                app.amqp.router.route({}, name, task_type=app.tasks[name])
            except QueueNotFound:
                raise ConfigurationError(
                    f"job {name} is sent to queue {queue}, which task_queues does not have, and "
                    f'task_create_missing_queues is False: add Queue("{queue}") to task_queues'
                ) from None


def select(app: Celery, chosen: bool, destinations: Iterable[str]) -> None:
    """Settles which queues a worker consumes from, but for the granted ones: see :func:`granted_queues`.

    `chosen`: queues were named with -Q. Without, the worker serves the queues of the default pool too that its jobs are
    sent to.
    """
    queues = app.amqp.queues
    if chosen:
        configured = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
        for name in [name for name in queues.consume_from if pool_of(name) and name not in configured]:
            queues.select_add(_new(app, name))  # as who sends there declares it
    else:
        ours = {name for name in destinations if name in pool_queues(DEFAULT_POOL)}
        for name in pool_queues(DEFAULT_POOL):
            if name in ours:
                queues.select_add(declared(app, name))


def granted_queues(app: Celery, chosen: bool) -> list[str]:
    """Where runs are handed over to a worker that consumes from what it does: one queue for each pool it serves."""
    served = list(app.amqp.queues.consume_from)  # others may read it while remote control changes it
    pools = {pool for pool in map(pool_of, served) if pool}
    if not chosen and app.conf.task_default_queue in served:
        pools.add(DEFAULT_POOL)
    names = sorted(map(granted_name, pools))
    return [name for name in names if name not in served and can_be_used(app, name)]


def announce(app: Celery, name: str, jobs: Iterable[str]) -> None:
    """Tell the live workers that a queue comes into use that no job is sent to by its options.

    Workers without ``-Q`` serve the default pool's queues that are in use. They look for new ones only now and then;
    this makes them begin at once. Once a process and queue; a call never fails because of it.
    """
    announced = app.__dict__.setdefault("_orchestration_announced", set())
    if name in announced or pool_of(name) != DEFAULT_POOL:
        return
    announced.add(name)
    try:
        if name not in destinations(app, jobs):
            app.control.broadcast(commands.SERVE, arguments={"queue": name})
    except Exception as exc:
        logger.debug("Queue %s could not be announced to the workers: %r", name, exc)


def may_come(app: Celery, chosen: bool) -> list[str]:
    """Queues that a worker begins to serve once the broker has them."""
    if chosen or not app.amqp.queues.create_missing:
        return []
    return [name for name in pool_queues(DEFAULT_POOL) if name not in app.amqp.queues.consume_from]


class StrictCycle(round_robin_cycle):  # type: ignore[misc]
    """Order in which kombu's Redis transport asks for messages: highest priority first, always.

    Its own 'priority' strategy keeps the order in which queues were added only since kombu 5.7.
    """

    def update(self, it: Iterable[str]) -> None:
        self.items[:] = sorted(it, key=lambda name: (rank_of(name), name))

    def rotate(self, last_used: str) -> str:
        return last_used

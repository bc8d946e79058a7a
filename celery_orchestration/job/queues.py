"""The queues of pools and priorities, and the routes to them.

A routed job is sent to ``{pool}.{priority}``. A handed-over run goes to ``{pool}.granted``, which workers serve on a
channel of its own, so that the run never waits behind a backlog. Routing uses the first of: the options of the call,
``Task.queue``, the user's ``task_routes``, and our route, which applies only if ``priority`` or ``pool`` was written.

A worker without ``-Q`` serves its default queue, the ``default.*`` queues of its jobs, and any other ``default.*``
queue as soon as the broker has it: ``apply_async(priority="high")``, or another release, may send the first run there.
Queues without messages are not declared.
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
#: Header of a call with its own priority: apply_async(priority="high").
PRIORITY_HEADER = "orchestration_priority"
#: Header of a forced call: neither a pause nor a disabled job holds it back, and it ranks before all others.
FORCE_HEADER = "orchestration_force"
#: The priority of a forced call in the ledger: above critical (3).
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
    """The pool of a queue, or None if the queue is not one of ours."""
    pool, dot, last = queue.rpartition(".")
    return pool if dot and last in _RANKS and "." not in pool else None


def rank_of(queue: str) -> int:
    """Under strict priority the queue with the lowest rank is served first. The user's own queues count as normal."""
    return _RANKS[queue.rpartition(".")[2]] if pool_of(queue) else _NORMAL


def pool_queues(pool: str) -> list[str]:
    return [queue_name(pool, priority) for priority in sorted(Priority, reverse=True)]


def granted_queue_for(queue: str, default_queue: str) -> str:
    """The granted queue of a run that came through `queue`, or '' for one of the user's own queues."""
    pool = DEFAULT_POOL if queue == default_queue else pool_of(queue)
    return granted_name(pool) if pool else ""


def can_be_used(app: Celery, name: str) -> bool:
    """Whether the app has this queue, or allows to create it (task_create_missing_queues)."""
    return name in app.amqp.queues or bool(app.amqp.queues.create_missing)


def declared(app: Celery, name: str) -> Queue:
    """The queue of that name, declared as Celery declares missing queues, even if the app forbids those: a message that
    goes back to its queue must not be lost. :func:`can_be_used` says which queues may be used otherwise."""
    queues = app.amqp.queues
    return queues[name] if name in queues else queues.add(_new(app, name))


def _new(app: Celery, name: str) -> Queue:
    """A missing queue. Our queues have the type of the app's default queue, unless the app sets a type for missing
    ones. Quorum queues get a topic exchange: Celery's delayed delivery does not support direct ones, and warns."""
    queue = app.amqp.queues.new_missing(name)
    if pool_of(name) and app.conf.get("task_default_queue_type") == "quorum" and not queue.queue_arguments:
        queue.queue_arguments = {"x-queue-type": "quorum"}
        if queue.exchange and queue.exchange.type == "direct":
            queue.exchange = Exchange(queue.exchange.name, type="topic")
    return queue


def route(app: Celery) -> Any:
    """Our router; it comes after the user's own."""

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
        return {"queue": declared(app, queue) if can_be_used(app, queue) else queue}  # Celery refuses a name alone

    return orchestration_route


def install_route(app: Celery) -> None:
    """Append our router to the app's; it stays the last one when task_routes changes later.

    A job may be bound before the app is configured, so nothing here reads the configuration.
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
    """The queues that jobs are sent to by default, each with its jobs."""
    found: dict[str, list[str]] = {}
    for name in sorted(jobs):
        task = app.tasks[name]
        written = {option: getattr(task, option, None) for option in ("queue", "exchange", "routing_key")}
        try:
            options = app.amqp.router.route({k: v for k, v in written.items() if v}, name, task_type=task)
        except QueueNotFound:
            continue  # the caller of the job gets this error
        queue = options.get("queue")
        if queue is not None:
            found.setdefault(getattr(queue, "name", queue), []).append(name)
    return found


def sent_there(jobs: list[str]) -> str:
    shown = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
    return f"{shown} {'are' if len(jobs) > 1 else 'is'} sent"


def check(app: Celery, jobs: Mapping[str, Policy]) -> None:
    """Raise if a job is routed to a queue of ours that the app does not have and does not allow to create."""
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
    """Select the queues that a worker consumes from, except the granted ones: see :func:`granted_queues`.

    `chosen`: queues were named with -Q. Otherwise the worker also serves the queues of the default pool that its jobs
    are sent to.
    """
    queues = app.amqp.queues
    if chosen:
        configured = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
        for name in [name for name in queues.consume_from if pool_of(name) and name not in configured]:
            queues.select_add(_new(app, name))  # declared as the senders do
    else:
        ours = {name for name in destinations if name in pool_queues(DEFAULT_POOL)}
        for name in pool_queues(DEFAULT_POOL):
            if name in ours:
                queues.select_add(declared(app, name))


def granted_queues(app: Celery, chosen: bool) -> list[str]:
    """The granted queues of a worker: one for each pool whose queues it consumes."""
    served = list(app.amqp.queues.consume_from)  # a copy, because remote control may change it meanwhile
    pools = {pool for pool in map(pool_of, served) if pool}
    if not chosen and app.conf.task_default_queue in served:
        pools.add(DEFAULT_POOL)
    names = sorted(map(granted_name, pools))
    return [name for name in names if name not in served and can_be_used(app, name)]


def announce(app: Celery, name: str, jobs: Iterable[str]) -> None:
    """Tell the live workers about a queue that comes into use although no job is sent there by its options.

    Workers without ``-Q`` serve the queues of the default pool that are in use. They look for new ones only now and
    then; this makes them start at once. It happens once per process and queue, and a call never fails because of it.
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
    """Queues that a worker will serve as soon as the broker has them."""
    if chosen or not app.amqp.queues.create_missing:
        return []
    return [name for name in pool_queues(DEFAULT_POOL) if name not in app.amqp.queues.consume_from]


class StrictCycle(round_robin_cycle):  # type: ignore[misc]
    """The order in which kombu's Redis transport reads queues: always the highest priority first.

    kombu's own 'priority' strategy keeps the order in which queues were added only since version 5.7.
    """

    def update(self, it: Iterable[str]) -> None:
        self.items[:] = sorted(it, key=lambda name: (rank_of(name), name))

    def rotate(self, last_used: str) -> str:
        return last_used

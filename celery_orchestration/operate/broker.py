"""Asks the broker: how many messages its queues have, and which workers answer.

Nothing here raises or hangs: if the broker does not answer, the result has a sentence about it. A DNS lookup may take
longer than any socket timeout, so each question has its own thread, which is abandoned when its time is over.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from kombu import Connection
from redis import Redis

from celery_orchestration import commands
from celery_orchestration.node.stores import Names, Store, Stores
from celery_orchestration.pools.backlog import Queued, read_queues

#: Seconds for a whole question, and for each step of connecting.
SECONDS, CONNECT_SECONDS = 2.0, 1.5
#: Seconds in which workers have to answer; each answer extends the time.
ANSWER_SECONDS = 1.0
_MOST_ANSWER_SECONDS = 5.0

#: The timeout options of each kind of transport. py-amqp derives its other timeouts from connect_timeout.
_TIMEOUTS: Mapping[str, Mapping[str, Any]] = {
    "redis": {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": CONNECT_SECONDS,
        "retry_on_timeout": False,
    },
    "amqp": {"read_timeout": CONNECT_SECONDS, "write_timeout": CONNECT_SECONDS},
}


@dataclass(frozen=True)
class Depths:
    """How many messages each queue has, without those that workers have fetched. None: unknown."""

    messages: dict[str, int | None]
    problem: str | None = None
    #: How many messages each worker has fetched and not acknowledged; empty if the broker is not Redis.
    fetched: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """The replies of workers to a broadcast, by their names."""

    replies: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Stranger:
    """A worker that the ledger does not know, and that takes messages of jobs."""

    name: str
    #: The queues of jobs that it serves.
    queues: tuple[str, ...]
    #: The namespace of its own ledger, if it has the extension.
    namespace: str | None = None


@dataclass(frozen=True)
class Kept:
    """The stores of workers in a Redis broker, with how many messages each has."""

    stores: Sequence[tuple[Store, int]] = ()
    #: The version of the broker's Redis; '' if unknown.
    version: str = ""
    problem: str | None = None


def depths(app: Celery, queues: Iterable[str], stores: Names | None = None) -> Depths:
    """`stores`: the names of the lists that hold fetched messages."""
    names = list(dict.fromkeys(queues))
    found: dict[str, int | None] = dict.fromkeys(names)
    fetched: Counter[str] = Counter()
    if not names:
        return Depths(found)

    def ask(connection: Connection) -> None:
        is_redis = connection.transport.driver_type == "redis"
        found.update((_llen if is_redis else _declare)(connection, names))
        if is_redis and stores is not None:
            for store, count in _stores(connection, stores).counts():
                fetched[store.name] += count

    problem = _on_a_connection(app, SECONDS, ask)
    return Depths(dict(found), problem, dict(fetched))


def queued(app: Celery, queues: Iterable[str]) -> tuple[dict[str, Queued] | None, str]:
    """The messages of each queue by task, for pools; or None and the error."""
    found: dict[str, Queued] = {}
    problem = _on_a_connection(app, SECONDS, lambda connection: found.update(read_queues(connection, queues)))
    return (None, problem) if problem else (found, "")


def kept(app: Celery, names: Names) -> Kept:
    """The messages that workers have fetched and not acknowledged."""
    found: list[tuple[list[tuple[Store, int]], str]] = []

    def ask(connection: Connection) -> None:
        if connection.transport.driver_type == "redis":
            stores = _stores(connection, names)
            found.append((stores.counts(), stores.redis_version()))

    problem = _on_a_connection(app, SECONDS, ask)
    return Kept(*found[0], problem) if found else Kept(problem=problem)


def give_back_all(app: Celery, names: Names) -> int:
    """Empties the stores of all workers. Returns how many messages went back to their queues."""
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            return 0
        stores = _stores(connection, names)
        return sum(stores.end(store.id) for store in stores.all())


def answers(app: Celery, command: str, destination: Collection[str] | None = None) -> Answers:
    """The replies of all workers, or of those named: then it returns as soon as all of them have replied."""
    if destination is not None and not destination:
        return Answers()
    replies: list[Mapping[str, Any]] = []

    def ask(connection: Connection) -> None:
        app.control.broadcast(
            command,
            destination=None if destination is None else list(destination),
            reply=True,
            timeout=ANSWER_SECONDS,
            callback=replies.append,
            connection=connection,
        )

    problem = _on_a_connection(app, _MOST_ANSWER_SECONDS, ask)
    return Answers({name: reply for one in list(replies) for name, reply in one.items()}, problem)


def held(app: Celery, how: str, workers: Collection[str] | None = None) -> dict[str, tuple[str, str]]:
    """Runs that workers have and that the ledger may not know, in order: job and worker of each. `how`: ``fetched``
    (no slot is free there) or ``rate_limited``."""
    return {
        str(run["id"]): (str(run["job"]), worker)
        for worker, reply in answers(app, commands.INSPECT, workers).replies.items()
        for run in (reply.get(how) or () if isinstance(reply, Mapping) else ())
    }


def kind(app: Celery) -> str:
    """The kind of broker: redis, amqp or another one of kombu; '' if its address is invalid. Does not connect."""
    try:
        return str(app.connection_for_write().transport.driver_type)
    except Exception:  # the error is reported where the address is used
        return ""


def strangers(
    app: Celery, known: Collection[str], queues: Collection[str], namespace: str
) -> tuple[list[Stranger], str | None]:
    """Finds workers without the extension, with orchestration off, or of another app, on one of these queues. Returns
    them, and the error if they could not be asked.

    `known`: the names of the workers of the ledger, `namespace`: its own.
    """
    found = answers(app, "active_queues")
    # Celery does not list the queues that a worker serves on this extension's own channel.
    inspected = answers(app, commands.INSPECT, found.replies.keys() - known)
    return unknown(found, inspected, known, queues, namespace), found.problem


def unknown(
    found: Answers, inspected: Answers, known: Collection[str], queues: Collection[str], namespace: str
) -> list[Stranger]:
    """`found`: the replies to ``active_queues``; `inspected`: to ``orchestration``, if they have it."""
    strangers = []
    for name in sorted(found.replies.keys() - known):
        reply = inspected.replies.get(name)
        reply = reply if isinstance(reply, Mapping) else {}
        served = (_names(found.replies[name]) | {*(reply.get("queues") or ())}) & {*queues}
        # A worker of this app that is just starting, or has lost its lease.
        if served and reply.get("namespace") != namespace:
            strangers.append(Stranger(name, tuple(sorted(served)), reply.get("namespace")))
    return strangers


def _names(reply: Any) -> set[str]:
    """The names of the queues in a worker's reply to ``active_queues``; an error has none."""
    served = reply if isinstance(reply, list) else []
    return {str(queue.get("name")) for queue in served if isinstance(queue, Mapping)}


# -- inside kombu -----------------------------------------------------------------------------------


def _stores(connection: Connection, names: Names) -> Stores:
    """Uses kombu's connections, but not its client, which would put ``global_keyprefix`` before some keys."""
    return Stores(Redis(connection_pool=connection.default_channel.pool), names)


def _llen(connection: Connection, names: list[str]) -> dict[str, int | None]:
    """Counts in one round trip; kombu counts one queue at a time (``Channel._size``). Each message priority has its own
    list, named by ``_q_for_pri``, and kombu's client puts ``global_keyprefix`` before that name."""
    channel = connection.channel()
    steps = list(channel.priority_steps)
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        for name in names:
            for step in steps:
                pipe.llen(channel._q_for_pri(name, step))
        lengths = iter(pipe.execute(raise_on_error=False))
    parts = {name: [next(lengths) for _ in steps] for name in names}
    # A key that is no list is no queue.
    return {name: sum(some) if all(isinstance(one, int) for one in some) else None for name, some in parts.items()}


def _declare(connection: Connection, names: list[str]) -> dict[str, int | None]:
    """Declares the queue passively, which creates none. A queue that does not exist closes the channel."""
    found: dict[str, int | None] = {}
    channel = connection.channel()
    for name in names:
        try:
            found[name] = channel.queue_declare(queue=name, passive=True).message_count
        except connection.channel_errors as exc:
            found[name] = 0 if getattr(exc, "reply_code", None) == _NOT_FOUND or _NOT_FOUND in exc.args else None
            channel = connection.channel()
    return found


_NOT_FOUND = 404


def _on_a_connection(app: Celery, seconds: float, ask: Callable[[Connection], None]) -> str | None:
    """Returns the error, if there was one."""
    reply: list[str | None] = []
    try:
        connection = app.connection_for_write(connect_timeout=CONNECT_SECONDS)
    except Exception as exc:  # kombu raises various errors for a wrong address
        return f"the broker's address cannot be read: {type(exc).__name__}"

    def work() -> None:
        try:
            options = connection.transport_options or {}
            connection.transport_options = {**options, **_TIMEOUTS.get(connection.transport.driver_type, {})}
            # kombu would retry after a pause. It still tries the other addresses of a list at once.
            connection.ensure_connection(max_retries=len(connection.alt or [None]) - 1, interval_start=0)
            ask(connection)
            reply.append(None)
        except Exception as exc:  # a transport may raise anything, and this thread must end
            reply.append(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__)
        finally:
            with suppress(Exception):
                connection.release()

    thread = threading.Thread(target=work, name="orchestration-broker", daemon=True)
    thread.start()
    thread.join(seconds)
    problem = reply[0] if reply else f"no answer within {seconds:g} s"
    return None if problem is None else f"the broker at {connection.as_uri()} does not answer: {problem}"

"""The number of messages in the broker's queues, read once a second on a connection that is kept.

On a Redis broker one script returns the length of each queue and the tasks of its next messages; other brokers know
only the length. A broker that does not answer blocks only this thread.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from time import monotonic
from typing import Any

from celery import Celery
from redis import Redis
from redis.exceptions import NoScriptError

#: How many messages of each list are read for their task.
SAMPLE = 10
#: Seconds that connecting and each answer may take.
ANSWER_SECONDS = 3.0
_NOT_FOUND = 404

_TEXT = (files(__package__) / "lua" / "queued.lua").read_text()
_SHA = hashlib.sha1(_TEXT.encode()).hexdigest()
_TIMEOUTS: Mapping[str, Mapping[str, Any]] = {
    "redis": {"socket_connect_timeout": ANSWER_SECONDS, "socket_timeout": ANSWER_SECONDS, "retry_on_timeout": False},
    "amqp": {"read_timeout": ANSWER_SECONDS, "write_timeout": ANSWER_SECONDS},
}


@dataclass(frozen=True, slots=True)
class Queued:
    """The messages of one queue, without those that workers have fetched."""

    length: int
    #: Tasks of the next messages, if the broker can tell.
    tasks: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Reading:
    queues: Mapping[str, Queued]
    #: By the monotonic clock.
    at: float


class Broker:
    """A connection to an app's broker that is kept between reads. For one thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Any = None

    def read(self, queues: Iterable[str]) -> dict[str, Queued]:
        """Raises the errors of the transport."""
        try:
            if self._connection is None:
                self._connection = self._connected()
            return read_queues(self._connection, queues)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _connected(self) -> Any:
        connection = self._app.connection_for_write(connect_timeout=ANSWER_SECONDS)
        options = connection.transport_options or {}
        connection.transport_options = {**options, **_TIMEOUTS.get(connection.transport.driver_type, {})}
        connection.ensure_connection(max_retries=len(connection.alt or [None]) - 1, interval_start=0)
        return connection


def read_queues(connection: Any, queues: Iterable[str]) -> dict[str, Queued]:
    """`connection`: kombu's."""
    names = list(queues)
    if connection.transport.driver_type != "redis":
        return {queue: Queued(passive_count(connection, queue) or 0) for queue in names}
    channel = connection.default_channel
    steps = list(channel.priority_steps)
    # Not with kombu's client, which puts global_keyprefix before the keys of some commands.
    client = Redis(connection_pool=channel.pool)
    prefix = getattr(channel, "global_keyprefix", "") or ""
    keys = [f"{prefix}{channel._q_for_pri(queue, step)}" for queue in names for step in steps]
    try:
        lists: Any = client.evalsha(_SHA, len(keys), *keys, SAMPLE)
    except NoScriptError:
        lists = client.eval(_TEXT, len(keys), *keys, SAMPLE)
    parts = [lists[at : at + len(steps)] for at in range(0, len(lists), len(steps))]
    return {queue: _together(part) for queue, part in zip(names, parts, strict=True)}


def passive_count(connection: Any, queue: str) -> int | None:
    """Messages in a queue, without creating it. None: unknown. A missing queue closes the channel."""
    channel = connection.default_channel
    try:
        return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors as exc:
        connection._default_channel = None
        return 0 if getattr(exc, "reply_code", None) == _NOT_FOUND or _NOT_FOUND in exc.args else None


def _together(lists: list[list[Any]]) -> Queued:
    """kombu's Redis transport has a list for each message priority of a queue."""
    length = sum(max(0, one[0]) for one in lists)
    return Queued(length, Counter(_text(name) for one in lists for name in one[1:] if name))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class Backlog(threading.Thread):
    """Keeps reading the broker's queues. It never raises; :attr:`problem` has the last error."""

    def __init__(self, app: Celery, queues: Callable[[], Iterable[str]], interval: float = 1.0) -> None:
        super().__init__(name="orchestration-backlog", daemon=True)
        self._broker = Broker(app)
        self._queues = queues
        self._interval = interval
        self._over = threading.Event()
        self.reading: Reading | None = None
        self.problem = "the broker was not asked yet"

    def run(self) -> None:
        self._read()
        while not self._over.wait(self._interval):
            self._read()
        self._broker.close()

    def _read(self) -> None:
        try:
            self.reading = Reading(self._broker.read(self._queues()), monotonic())
            self.problem = ""
        except Exception as exc:
            self.problem = f"the broker does not answer: {type(exc).__name__}: {exc}"

    def stop(self) -> None:
        self._over.set()

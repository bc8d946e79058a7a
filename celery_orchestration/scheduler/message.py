"""The message of a fire: made as ``apply_async`` makes it, but not published. The ledger decides what happens to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery import Celery, Task
from celery.beat import BeatLazyFunc
from celery.result import denied_join_result
from kombu import Queue, compression
from kombu.serialization import dumps

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.envelope import PROPERTIES, Envelope
from celery_orchestration.scheduler.hooks import sending_is_patched

#: Stands for the run's id in a message that many runs share; it is as long as an id. ``lib/entries.lua`` replaces it,
#: too.
MARK = "0rch0000-0000-4000-8000-000000000000"
#: Options of a call whose value in the message depends on the time of the call.
_TIMED = ("countdown", "eta", "expires")

#: Types of values that are serialized the same way each time.
_PLAIN = (type(None), bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID)


class Unroutable(Exception):
    """The message goes to an exchange, and its queue is unknown: the ledger cannot hand over the run."""


@dataclass(frozen=True, slots=True)
class Call:
    """The task that an entry calls, with its arguments and options."""

    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]

    def evaluated(self) -> tuple[list[Any], dict[str, Any]]:
        args = [value() if isinstance(value, BeatLazyFunc) else value for value in self.args]
        return args, {key: value() if isinstance(value, BeatLazyFunc) else value for key, value in self.kwargs.items()}

    def options_of(self, id: str) -> dict[str, Any]:
        """The options of one call, as Celery's beat sets them."""
        headers = {**(self.options.get("headers") or {}), "celery_beat_task": True}
        return {**self.options, "headers": headers, "task_id": id}


@dataclass(frozen=True, slots=True)
class Message:
    queue: str
    envelope: Envelope
    #: Its arguments, for the room key.
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class CapturingProducer:
    """A producer that keeps its message instead of publishing it."""

    def __init__(self) -> None:
        self.connection: Any = self
        self.message: Message | None = None

    def _reraise_as_library_errors(self) -> Any:
        return nullcontext()

    def publish(
        self,
        body: Any,
        *,
        headers: dict[str, Any],
        routing_key: str = "",
        exchange: Any = "",
        serializer: str | None = None,
        compression: str | None = None,
        declare: Sequence[Queue] = (),
        **properties: Any,
    ) -> None:
        if self.message is not None:
            return  # the second message is the task-sent event (task_send_sent_event)
        name = getattr(exchange, "name", exchange) or ""
        if not declare or (name and not _leads_to(declare[0], name, routing_key)):
            raise Unroutable(f"its messages go to exchange {name!r}, and their queue is unknown")
        content_type, content_encoding, data = dumps(body, serializer)
        if compression:
            headers["compression"] = _content_type(compression)
        envelope = Envelope(
            headers=headers,
            properties={name: value for name, value in properties.items() if name in PROPERTIES and value is not None},
            content_type=content_type,
            content_encoding=content_encoding,
            exchange=name,
            routing_key=routing_key or "",
            body=data.encode() if isinstance(data, str) else data,
        )
        self.message = Message(declare[0].name, envelope, *_arguments(body))


def _arguments(body: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments as the worker will see them."""
    return (body["args"], body["kwargs"]) if isinstance(body, Mapping) else (body[0], body[1])


def _leads_to(queue: Queue, exchange: str, routing_key: str) -> bool:
    found = queue.exchange
    return (found.name, queue.routing_key) == (exchange, routing_key) and bool(found.type != "fanout")


def _content_type(name: str) -> str:
    return str(compression.compress(b"", name)[1])


def make(app: Celery, call: Call, id: str) -> Message:
    """Raises :class:`Unroutable` if its queue is unknown."""
    args, kwargs = call.evaluated()
    producer = CapturingProducer()
    task: Task = app.tasks[call.task]
    with denied_join_result():  # nobody waits for its result here
        # The id of the fire identifies it: it needs no message id.
        task.apply_async(args, kwargs, producer=producer, **{"message_id": None, **call.options_of(id)})
    if producer.message is None:
        raise ConfigurationError(f"task {call.task!r} publishes nothing when it is called")
    return producer.message


def make_for_all(app: Celery, call: Call) -> Message:
    """A message that any number of runs share, with ``MARK`` instead of an id. It leaves out headers and properties
    that differ between two calls, such as times and trace ids: they would be wrong for all runs but one."""
    one = make(app, call, MARK)
    if is_constant(app, call):
        return one
    other = make(app, call, MARK)
    envelope = replace(
        one.envelope,
        headers=_in_both(one.envelope.headers, other.envelope.headers),
        properties=_in_both(one.envelope.properties, other.envelope.properties),
    )
    return replace(one, envelope=envelope)


def _in_both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in one.items():
        if isinstance(value, dict) and isinstance(other.get(name), dict):
            found[name] = _in_both(value, other[name])
        elif name in other and other[name] == value:
            found[name] = value
    return found


def is_constant(app: Celery, call: Call) -> bool:
    """Whether the messages of a job's call differ only by their id, and no other code sees each of them."""
    task = app.tasks[call.task]
    timed = task.expires or any(call.options.get(name) for name in _TIMED)
    plain = all(map(_is_plain, (*call.args, *call.kwargs.values())))
    return plain and not timed and not sending_is_patched(app, task)


def _is_plain(value: Any) -> bool:
    """False for values that may be serialized differently each time, and for lazy ones, which are evaluated each
    time."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return type(value) in _PLAIN

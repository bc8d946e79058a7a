"""Celery's worker and its consumer: requests, queues, messages that it refuses, its shutdown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from celery.apps.worker import Worker
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.worker import state

logger = get_logger(__name__)


def requests_here() -> set[Any]:
    """Requests that wait for a slot or run. Both sets are needed: before Celery 5.7, requests that run are no longer
    reserved once the connection to the broker was lost."""
    while True:
        try:
            return {*state.reserved_requests, *state.active_requests}
        except RuntimeError:
            continue  # another thread has changed a set during the iteration


def given_to_pool() -> list[Any]:
    """Requests that the execution pool has, also those whose begin it has not reported yet."""
    while True:
        try:
            # Before Celery 5.7, requests that have begun are no longer reserved once the consumer was closed.
            reserved = [req for req in state.reserved_requests if req._apply_result]
            return list({*reserved, *state.active_requests})
        except RuntimeError:
            continue  # the main thread has changed a set during the iteration


def rate_limited(consumer: Any) -> Iterator[Any]:
    """The requests that Celery holds back by their tasks' ``rate_limit``."""
    for bucket in list(consumer.task_buckets.values()):
        yield from (held for held, _ in list(bucket.contents)) if bucket else ()


def cancel_active(consumer: Any) -> None:
    """Cancels the active requests as a cold shutdown does."""
    cancel = getattr(consumer, "cancel_active_requests", None) or consumer.cancel_all_unacked_requests  # before 5.6
    cancel()


def queues_were_chosen(app: Any) -> bool:
    """Whether the worker was started with -Q."""
    return app.amqp.queues._consume_from is not None


def is_amqp(connection: Any) -> bool:
    return bool(connection.transport.driver_type == "amqp")


def queue_of(message: Any, consumers: Iterable[Any]) -> str:
    """The queue that a message was delivered from.

    Celery's own messages go through the default exchange, where the routing key is the queue. For other messages the
    consumer tag identifies the queue. kombu's virtual transports have no consumer tags: there the bindings are used.
    """
    info = message.delivery_info or {}
    exchange, routing_key = info.get("exchange") or "", info.get("routing_key") or ""
    if not exchange:
        return routing_key
    tag = info.get("consumer_tag")
    consumed = []
    for consumer in consumers:
        for queue, its_tag in consumer._active_tags.items():
            if tag and its_tag == tag:
                return str(queue)
            consumed.append(str(queue))
    lookup = getattr(message.channel, "_lookup", None)
    for queue in lookup(exchange, routing_key) if lookup else ():
        if queue in consumed:
            return str(queue)
    return routing_key


def consume_with(consumer: Any, prepare: Callable[[Any], Any]) -> None:
    """Calls `prepare(connection)` with each connection for consuming, before it connects."""

    def connection_for_read(heartbeat: Any = None) -> Any:
        return consumer.ensure_connected(prepare(consumer.app.connection_for_read(heartbeat=heartbeat)))

    consumer.connection_for_read = connection_for_read


def on_queue_changes(consumer: Any, adding: Callable[[str], bool], changed: Callable[[str, bool], None]) -> None:
    """Watches remote control add or cancel queues. `adding(name)` is called before a queue is added, and returns
    whether Celery is not to add it; `changed(name, cancelled)` is called after either."""
    if "add_task_queue" in vars(consumer):
        return
    add, cancel = consumer.add_task_queue, consumer.cancel_task_queue

    def add_task_queue(queue: str, *args: Any, **options: Any) -> None:
        if not adding(queue):
            add(queue, *args, **options)
        changed(queue, False)

    def cancel_task_queue(queue: str) -> None:
        cancel(queue)
        changed(queue, True)

    consumer.add_task_queue, consumer.cancel_task_queue = add_task_queue, cancel_task_queue


def on_refused_messages(
    consumer: Any, refused: Callable[[Any], None], strayed: Callable[[Any, Callable[[], None]], None]
) -> None:
    """Handles messages that Celery refuses before it makes a request. `strayed(message, discard)` is called instead of
    discarding a message of an unknown task. `refused(message)` is called after another message was discarded, for
    example because Celery may not read its content."""
    if "on_unknown_task" in vars(consumer):
        return

    def reporting(refuse: Callable[..., None], position: int) -> Callable[..., None]:
        def refuse_and_report(*args: Any) -> None:
            refuse(*args)
            try:
                refused(args[position])
            except Exception:  # such a message may contain anything
                logger.exception("A message that Celery refused cannot be read: the ledger may keep its run")

        return refuse_and_report

    discard = consumer.on_unknown_task
    consumer.on_unknown_task = lambda body, message, exc: strayed(message, lambda: discard(body, message, exc))
    consumer.on_invalid_task = reporting(consumer.on_invalid_task, 1)
    consumer.on_decode_error = reporting(consumer.on_decode_error, 0)


#: Errors that ordinary code raises, too, although kombu's Redis transport takes them for a broken connection (most are
#: an OSError).
_ERRORS_OF_CODE = (KeyError, FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def contain_errors(consumer: Any, failed: Callable[[Any, Exception], None]) -> None:
    """Calls `failed(message, exc)` if a message makes Celery, our code or a user's class raise an error: such an error
    would end the worker. Errors of the broker's connection are left to Celery."""
    if "create_task_handler" in vars(consumer):
        return
    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = create(*args, **kwargs)
        errors = (*consumer.connection_errors, MemoryError)

        def on_task_received(message: Any) -> Any:
            try:
                check_headers(message.headers)
                return handle(message)
            except _ERRORS_OF_CODE as exc:
                return failed(message, exc)
            except errors:
                raise
            except Exception as exc:
                return failed(message, exc)

        return on_task_received

    consumer.create_task_handler = create_task_handler


def check_headers(headers: Any) -> None:
    """Raises if a message has time limits or stamps on which Celery would fail later, in the event loop."""
    if not isinstance(headers, dict):
        return
    limits = headers.get("timelimit") or (None, None)
    if not isinstance(limits, list | tuple) or len(limits) != 2 or not all(map(_is_time_limit, limits)):
        raise InvalidTaskError(f"invalid time limits {limits!r}")
    stamped, stamps = headers.get("stamped_headers") or [], headers.get("stamps") or {}
    if not isinstance(stamped, list | tuple) or not all(isinstance(name, str) for name in stamped):
        raise InvalidTaskError(f"invalid stamped headers {stamped!r}")
    if stamped and not isinstance(stamps, dict):
        raise InvalidTaskError(f"invalid stamps {stamps!r}")


def _is_time_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value <= threading.TIMEOUT_MAX)


def owns_process(controller: Any) -> bool:
    """Whether it is a worker of the command line, and not one that runs inside another program."""
    return isinstance(controller, Worker)


def before_cold_shutdown(controller: Any, function: Callable[[], None]) -> None:
    """Calls a function when a cold shutdown begins. Celery's signal for that comes only after its soft shutdown."""
    wait = controller.wait_for_soft_shutdown

    def wait_for_soft_shutdown() -> Any:
        function()
        return wait()

    controller.wait_for_soft_shutdown = wait_for_soft_shutdown

"""Every place where we reach into Celery, kombu or billiard beyond their extension points, and why.

:func:`verify` looks at all of them when a worker starts; if one is not as expected the worker refuses to start,
because a gate that is bypassed silently is worse than none.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import amqp
import billiard.pool
import celery
from amqp import spec
from celery.app.amqp import Queues
from celery.apps.worker import Worker, on_cold_shutdown
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.base import BasePool
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.exceptions import InvalidTaskError
from celery.utils.log import get_logger
from celery.utils.quorum_queues import detect_quorum_queues
from celery.worker import control, request, state
from celery.worker.consumer import Consumer
from celery.worker.loops import asynloop, synloop
from celery.worker.request import task_ready
from celery.worker.worker import WorkController
from kombu import Connection
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.common import PREFETCH_COUNT_MAX, QoS
from kombu.message import Message
from kombu.messaging import Consumer as MessageConsumer
from kombu.transport import virtual
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import MultiChannelPoller
from kombu.transport.redis import QoS as RedisQoS
from kombu.transport.redis import Transport as RedisTransport
from kombu.utils.functional import maybe_list
from kombu.utils.limits import TokenBucket
from vine import promise

from celery_orchestration.errors import ConfigurationError

logger = get_logger(__name__)

# -- checks -----------------------------------------------------------------------------------------


def verify() -> None:
    """Raises if Celery's internals are not as the gate expects."""
    missing = [what for what, there in _expectations() if not there]
    if missing:
        raise ConfigurationError(
            f"celery_orchestration does not know the inside of Celery {celery.__version__} "
            f"({'; '.join(missing)}), so its gate could be bypassed: install a supported version (celery>=5.5,<5.8), "
            "or set CELERY_ORCHESTRATION_MODE=off to run without it"
        )


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""  # replaced by something without source


def _expectations() -> Iterator[tuple[str, bool]]:
    source = _source(request.create_request_cls)
    made = ("class Request(base)", "def execute_using_pool", "def on_success", "callback=self.on_success")
    yield "create_request_cls does not subclass Task.Request", all(part in source for part in made)
    for name in ("on_accepted", "on_failure", "on_timeout", "_announce_revoked", "acknowledge", "reject", "revoked"):
        yield f"no Request.{name}", callable(getattr(request.Request, name, None))
    yield "no state.task_ready", callable(getattr(request, "task_ready", None))
    process = _source(WorkController._process_task)
    yield "_process_task does not call execute_using_pool", "req.execute_using_pool(self.pool)" in process
    yield "no BasePool.num_processes", isinstance(getattr(BasePool, "num_processes", None), property)
    buckets = _source(Consumer._limit_task)
    yield "no rate limit's buckets", "bucket.add((request, tokens))" in buckets and hasattr(TokenBucket(1), "contents")
    semaphore = LaxBoundedSemaphore(1)
    yield "the slots' semaphore is another", semaphore.value == 1 and hasattr(semaphore, "_waiting")
    yield "Consumer.on_close does not flush the pool", "self.pool.flush()" in _source(Consumer.on_close)
    handler = _source(Consumer.create_task_handler)
    for name in ("on_unknown_task", "on_invalid_task", "on_decode_error"):
        yield f"no Consumer.{name}", f"self.{name}" in handler
    for name in ("revoke", "active_queues", "scheduled", "reserved", "query_task"):
        yield f"no control command {name}", callable(control.Panel.data.get(name))
    for name in ("add_task_queue", "cancel_task_queue"):
        yield f"no Consumer.{name}", f"consumer.{name}" in _source(control)
    loops = _source(asynloop), _source(synloop)
    yield "the worker's loops do not make their handler", all("obj.create_task_handler()" in loop for loop in loops)
    yield "Request.terminate is another", "self._announce_revoked(" in _source(request.Request.terminate)
    yield "no QoS.callback", "self.callback" in _source(QoS)
    yield "AsynPool does not watch its children", "self._event_process_exit" in _source(AsynPool)
    yield "AsynPool has no on_partial_read", "if not job._accepted" in _source(AsynPool.on_partial_read)
    job = inspect.signature(billiard.pool.ApplyResult.__init__).parameters
    yield (
        "billiard's ApplyResult is another",
        "accept_callback" in job and hasattr(billiard.pool.ApplyResult, "_write_to"),
    )
    ack = _source(RedisQoS.ack)
    yield "QoS.ack of the Redis transport is another", "self._remove_from_indices(delivery_tag).execute()" in ack
    yield "a cold shutdown is another", "worker.wait_for_soft_shutdown()" in _source(on_cold_shutdown)
    cancelling = ("cancel_active_requests", "cancel_all_unacked_requests")
    yield "no Consumer.cancel_active_requests", any(hasattr(Consumer, name) for name in cancelling)
    yield "no Channel._in_poll", "self._brpop_read()" in _source(RedisChannel.close)
    yield "no Queues._consume_from", hasattr(Queues, "_consume_from")
    yield "no Consumer._active_tags", "_active_tags" in _source(MessageConsumer.__init__)
    yield from _expectations_of_fetch()
    yield from _expectations_of_amqp()


def _expectations_of_amqp() -> Iterator[tuple[str, bool]]:
    """What ``prefetch`` relies on in py-amqp."""
    dispatch = _source(amqp.Channel.dispatch_method)
    yield (
        "py-amqp answers in another way",
        "self._pending.pop(method_sig)" in dispatch and "if not listeners" in dispatch,
    )
    getting = _source(amqp.Channel.basic_get)
    yield "py-amqp gets in another way", "spec.Basic.Get, argsig, (0, queue, no_ack)" in getting
    yield "py-amqp's basic_qos is another", "argsig='lBb'" in _source(amqp.Channel.basic_qos)
    receiving = _source(MessageConsumer._receive_callback)
    yield "consumers do not ask message_to_python", "'message_to_python'" in receiving
    acking = _source(Message.ack), _source(Message.reject)
    calls = (
        "self.channel.basic_ack(self.delivery_tag, multiple=multiple)",
        "self.channel.basic_reject(self.delivery_tag",
    )
    yield "messages are acknowledged in another way", all(map(str.__contains__, acking, calls))


def _expectations_of_fetch() -> Iterator[tuple[str, bool]]:
    """What ``fetch`` relies on in kombu's Redis transport, from 5.5 to 5.7."""
    connecting = _source(Consumer.connect)
    yield "Consumer.connect does not call connection_for_read", "self.connection_for_read(" in connecting
    making = _source(Connection.create_transport)
    yield "Connection does not ask get_transport_cls", "self.get_transport_cls()" in making
    asks = ("cycle.on_poll_start", "cycle.fds", "self.on_readable")
    registering = _source(RedisTransport.register_with_event_loop)
    yield "the Redis transport's poller is another", all(part in registering for part in asks)
    for name in ("_register_BRPOP", "_register_LISTEN", "on_readable", "handle_event", "maybe_restore_messages"):
        yield f"no MultiChannelPoller.{name}", callable(getattr(MultiChannelPoller, name, None))
    yield "no MultiChannelPoller._fd_to_chan", "_fd_to_chan" in _source(MultiChannelPoller.__init__)
    poll = _source(MultiChannelPoller.get)
    yield "MultiChannelPoller.get is another", "self.handle_event(fileno, event)" in poll and "after_read.pop()" in poll
    keys = _source(RedisChannel._brpop_start)
    in_order = "for pri in self.priority_steps\n                for queue in queues]" in keys
    yield "queues are consumed in another order", in_order and "self._queue_cycle.consume(" in keys
    reading = _source(RedisChannel._brpop_read)
    yield "messages are delivered in another way", "self.connection._deliver(loads(bytes_to_str(item))" in reading
    for name in ("_basic_cancel", "_after_fork", "_connparams", "_q_for_pri", "pool"):
        yield f"no Channel.{name} of the Redis transport", hasattr(RedisChannel, name)
    consume = _source(virtual.Channel.basic_consume)
    yield "deliveries are counted in another way", "self.qos.append(message, message.delivery_tag)" in consume
    yield "messages are made in another way", "self.Message(raw_message, channel=self)" in consume
    closing = _source(virtual.Channel.close)
    yield "channels give back in another way", "restore_unacked_once()" in closing
    yield "no WorkController._process_task", "self._process_task" in _source(WorkController._process_task_sem)


# -- slots: prefork gives execute_using_pool a slot of the worker's semaphore, and takes it back itself


def size_of(pool: Any) -> int | None:
    """How many processes, threads or greenlets an execution pool has by now; None before it has started."""
    try:
        size = getattr(pool, "num_processes", None)
    except TypeError:
        return None  # before Celery 5.6 that of gevent has nothing to count yet
    return size if isinstance(size, int) else None


def rate_limited(consumer: Any) -> Iterator[Any]:
    """The requests that Celery holds back by their tasks' ``rate_limit``."""
    for bucket in list(consumer.task_buckets.values()):
        yield from (held for held, _ in list(bucket.contents)) if bucket else ()


def take_free_slot(semaphore: LaxBoundedSemaphore) -> bool:
    """A slot, if one is free right now; never queues for one."""
    if semaphore.value <= 0:
        return False
    semaphore.acquire(_nothing)
    return True


def _nothing() -> None:
    pass


# -- prefork: what the pool does to jobs it accepted but has not started when the broker connection is lost


def guard_flush(pool: Any, ours: Callable[[], Iterable[Any]], lost: Callable[[list[Any]], None]) -> None:
    """Keeps runs from vanishing when the broker connection is lost.

    Consumer.on_close calls pool.flush(), which forgets every job that no child has accepted yet (before Celery 5.7 also
    those that run), without a callback: Celery counts on the broker to deliver it again. But some of them were written
    to a child already and will run there, unheard. So after flush: what a child has (or is getting) is known to the
    pool again, and what never left the main process is given to `lost`. The same for plain tasks when the worker stops:
    a message that a child has must not go back, and the pool must not wait for its end in vain.

    `ours` gives the requests of runs that were handed to the pool.
    """
    inner, flush = pool._pool, pool.flush
    if not hasattr(inner, "outbound_buffer") or hasattr(flush, "guarded"):
        return

    def guarded_flush() -> None:
        jobs = [(req, req._apply_result() if req._apply_result else None) for req in ours()]
        buffered = {id(job) for job in inner.outbound_buffer}
        known = {id(job) for _, job in jobs}
        plain = [job for job in inner._cache.values() if id(job) not in known]
        flush()
        for job in plain:
            if not job.ready() and (job._accepted or (id(job) not in buffered and hasattr(job, "_write_to"))):
                inner._cache.setdefault(job._job, job)
        gone = []
        for req, job in jobs:
            if req.time_start is None and (job is None or (id(job) in buffered and not job._accepted)):
                gone.append(req)
            elif job is not None and not job.ready():
                inner._cache.setdefault(job._job, job)
        lost(gone)

    guarded_flush.guarded = True  # type: ignore[attr-defined]
    pool.flush = guarded_flush


def watch_exits(pool: Any) -> None:
    """A dead child is noticed at once, and all it said before is heard.

    The hub tells the pool when a child's pipe closes, which the kernel does a moment before the child can be
    reaped; the pool looks once, sees a living process, and looks again only after five seconds.

    Of two children that die within a moment the pool empties the pipe of the one it noticed first. That the other one
    had accepted its job may still be unread: the job would be given to a third, and run again under the same fence.
    """
    inner = pool._pool
    noticed = getattr(inner, "_event_process_exit", None)
    if noticed is None or hasattr(noticed, "watching"):
        return

    def look_again(hub: Any, process: Any, tries: int) -> None:
        if process in inner._pool and tries > 0:
            inner.maintain_pool()
            hub.call_later(0.01, look_again, hub, process, tries - 1)

    def event_process_exit(hub: Any, process: Any) -> None:
        noticed(hub, process)
        look_again(hub, process, 100)

    def on_partial_read(job: Any, process: Any) -> None:
        if not job._accepted and not process.dead:
            inner.process_flush_queues(process)
        partly_read(job, process)

    partly_read, inner.on_partial_read = inner.on_partial_read, on_partial_read
    event_process_exit.watching = True  # type: ignore[attr-defined]
    inner._event_process_exit = event_process_exit


def process_of(pool: Any, pid: int | None) -> Any:
    """The child process of a prefork pool, or None if the pool has no such child (any more, or at all)."""
    for process in getattr(getattr(pool, "_pool", None), "_pool", None) or ():
        if getattr(process, "pid", None) == pid:
            return process
    return None


def is_gone(process: Any) -> bool:
    return not process._is_alive()


# -- the worker stops -------------------------------------------------------------------------------


def before_cold_shutdown(controller: Any, function: Callable[[], None]) -> None:
    """Calls it when a cold shutdown begins: the signal for that comes after Celery has slept in its soft shutdown."""
    wait = controller.wait_for_soft_shutdown

    def wait_for_soft_shutdown() -> Any:
        function()
        return wait()

    controller.wait_for_soft_shutdown = wait_for_soft_shutdown


def children(pool: Any) -> list[Any]:
    """The processes of a prefork pool; none of another pool, or of one that is down."""
    found = getattr(getattr(pool, "_pool", None), "_pool", None)
    return [process for process in found or () if getattr(process, "pid", None)] if isinstance(found, list) else []


def can_kill(pool: Any) -> bool:
    """Whether code in this pool, or a pool of this class, has processes of its own."""
    return isinstance(pool, PreforkPool) or (isinstance(pool, type) and issubclass(pool, PreforkPool))


def kill(process: Any) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)


def take_back(result: Any) -> None:
    """Threads that have not begun a run will not: before Celery 5.7 the pool begins all it has while it stops. (Prefork
    gives back what it has not begun when the consumer is closed, see guard_flush.)"""
    if hasattr(result, "f"):
        result.f.cancel()


def is_over(result: Any) -> bool:
    """What apply_async of threads and gevent gave; the results of other pools do not outlive them."""
    if hasattr(result, "f"):
        return bool(result.f.done())
    return bool(result.ready()) if hasattr(result, "link") else True


def given_to_pool() -> list[Any]:
    """Requests that the execution pool has, whether it said already that they began or not."""
    while True:
        try:
            # Before Celery 5.7 those that began are not reserved any more when the consumer was closed.
            reserved = [req for req in state.reserved_requests if req._apply_result]
            return list({*reserved, *state.active_requests})
        except RuntimeError:
            continue  # the main thread has changed the set meanwhile


def requests_here() -> set[Any]:
    """Requests that wait for a slot or run. Before Celery 5.7 those that run are not reserved any more once the
    connection to the broker was lost."""
    while True:
        try:
            return {*state.reserved_requests, *state.active_requests}
        except RuntimeError:
            continue  # another thread has changed a set meanwhile


def cancel_active(consumer: Any) -> None:
    """As in a cold shutdown."""
    cancel = getattr(consumer, "cancel_active_requests", None) or consumer.cancel_all_unacked_requests  # before 5.6
    cancel()


def owns_process(controller: Any) -> bool:
    """Whether it is a worker of the command line, and not one in somebody else's process."""
    return isinstance(controller, Worker)


#: Longest time that the Redis transport lets BRPOP wait, and a bit.
BRPOP_SECONDS = 1.2


def stop_fetching(connection: Any, consumers: Iterable[Any]) -> None:
    """Ends what was asked of the broker, while its connection stays: what it still sends goes back.

    kombu's Redis channel waits at its close for the answer to the BRPOP under way, so that no message is lost with it.
    But it also thinks that one is under way while a message is being dealt with (on solo: while its task runs), and it
    puts what came back through another channel that is open: so this is done before any of them is closed.
    """
    for consumer in consumers:
        with suppress(Exception):
            consumer.cancel()
    for channel in list(getattr(getattr(connection, "transport", None), "channels", None) or ()):
        if isinstance(channel, RedisChannel) and channel._in_poll:
            with suppress(Exception):
                if channel._in_poll.can_read(BRPOP_SECONDS):
                    channel._brpop_read()
            channel._in_poll = None


# -- acknowledging: kombu's Redis channel counts deliveries (here), and keeps them in a hash (there) ------


def can_ack_late(message: Any) -> bool:
    qos = getattr(message.channel, "qos", None)
    return type(qos) is RedisQoS and not message.acknowledged


def ack_here(message: Any) -> None:
    virtual.QoS.ack(message.channel.qos, message.delivery_tag)
    message._state = "ACK"


def ack_there(messages: list[Any]) -> None:
    qos = messages[0].channel.qos  # all channels of a connection keep their messages in the same hash
    with qos.pipe_or_acquire() as pipe:
        for message in messages:
            qos._remove_from_indices(message.delivery_tag, pipe)
        pipe.execute()


# -- revoke: a run that waits is in no worker's memory, so the broadcast has to reach the ledger too


def hear_revokes(heard: Callable[[Any, list[str], bool, Any], None]) -> None:
    """`heard(consumer, ids, terminate, signal)` is called for every revoke that this process receives."""
    revoke = control.Panel.data["revoke"]
    if hasattr(revoke, "heard"):
        revoke.heard = heard
        return

    def revoke_and_tell(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **kwargs: Any) -> Any:
        result = revoke(state, task_id, terminate, signal, **kwargs)
        ids = [task_id] if isinstance(task_id, str) else list(task_id or ())
        revoke_and_tell.heard(state.consumer, ids, terminate, signal)  # type: ignore[attr-defined]
        return result

    revoke_and_tell.heard = heard  # type: ignore[attr-defined]
    control.Panel.data["revoke"] = revoke_and_tell


# -- a message that Celery refuses at once (an unknown task, content that it must not read): no request is made


def hear_refused_messages(
    consumer: Any, heard: Callable[[Any], None], strayed: Callable[[Any, Callable[[], None]], None]
) -> None:
    """`strayed(message, discard)` is called in place of discarding one of an unknown task, `heard(message)` for every
    other one, when it is discarded."""
    if "on_unknown_task" in vars(consumer):
        return

    def telling(refuse: Callable[..., None], position: int) -> Callable[..., None]:
        def refuse_and_tell(*args: Any) -> None:
            refuse(*args)
            try:
                heard(args[position])
            except Exception:  # whatever such a message may contain
                logger.exception("A message that Celery refused could not be looked at")

        return refuse_and_tell

    discard = consumer.on_unknown_task
    consumer.on_unknown_task = lambda body, message, exc: strayed(message, lambda: discard(body, message, exc))
    consumer.on_invalid_task = telling(consumer.on_invalid_task, 1)
    consumer.on_decode_error = telling(consumer.on_decode_error, 0)


# -- a message that makes Celery, or us, or a class of the user's fail with an error: it would end the worker


#: Errors that kombu's Redis transport, or OSError, takes for trouble with a connection, and that code makes too.
_OF_CODE = (KeyError, FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def contain_errors(consumer: Any, failed: Callable[[Any, Exception], None]) -> None:
    """`failed(message, exc)` is called for every such message. Errors of the broker's connection are Celery's."""
    if "create_task_handler" in vars(consumer):
        return
    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = create(*args, **kwargs)
        errors = (*consumer.connection_errors, MemoryError)

        def on_task_received(message: Any) -> Any:
            try:
                check_time_limits(message.headers)
                return handle(message)
            except _OF_CODE as exc:
                return failed(message, exc)
            except errors:
                raise
            except Exception as exc:
                return failed(message, exc)

        return on_task_received

    consumer.create_task_handler = create_task_handler


def check_time_limits(headers: Any) -> None:
    """The execution pool would stumble over them, in the event loop."""
    limits = headers.get("timelimit") if isinstance(headers, dict) else None
    if not limits:
        return
    if not isinstance(limits, list | tuple) or len(limits) != 2 or not all(map(_is_time_limit, limits)):
        raise InvalidTaskError(f"invalid time limits {limits!r}")


def _is_time_limit(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and 0 <= value <= threading.TIMEOUT_MAX)


# -- fetching: the transport of the connection that a worker consumes with ----------------------------


def consume_with(consumer: Any, made: Callable[[Any], Any]) -> None:
    """`made(connection)` is called with each connection for consuming, before it connects."""

    def connection_for_read(heartbeat: Any = None) -> Any:
        return consumer.ensure_connected(made(consumer.app.connection_for_read(heartbeat=heartbeat)))

    consumer.connection_for_read = connection_for_read


def hear_ends(pool: Any, heard: Callable[[], None]) -> None:
    """`heard()` is called, in whatever thread, when code in the pool has ended. Threads and gevent: prefork tells the
    event loop by itself. Before the first request class is made: that keeps `apply_async`."""
    apply_async = pool.apply_async
    if hasattr(apply_async, "heard"):
        apply_async.heard = heard
        return

    def apply_and_hear(*args: Any, **kwargs: Any) -> Any:
        result = apply_async(*args, **kwargs)
        if hasattr(result, "f"):
            result.f.add_done_callback(lambda _: apply_and_hear.heard())  # type: ignore[attr-defined]
        elif hasattr(result, "link"):
            result.link(lambda _: apply_and_hear.heard())  # type: ignore[attr-defined]
        return result

    apply_and_hear.heard = heard  # type: ignore[attr-defined]
    if not can_kill(pool):
        pool.apply_async = apply_and_hear


def before_beginning(controller: Any, may_begin: Callable[[Any], bool]) -> None:
    """A request that waited for a slot is dropped if `may_begin(request)` says no. Prefork: the other pools get their
    requests at once."""
    begin = controller._process_task

    def process_task(request: Any) -> None:
        if may_begin(request):
            begin(request)
        else:
            task_ready(request)
            controller._quick_release()

    if controller.semaphore is not None:
        controller._process_task = process_task


def is_with_pool(request: Any) -> bool:
    """Whether an execution pool has it, or had: not if it was only waiting for a slot, or the pool forgot it."""
    result = request._apply_result() if callable(request._apply_result) else request._apply_result
    if result is None:
        return request.time_start is not None
    cache = getattr(result, "_cache", None)
    return cache is None or result._job in cache or bool(result.ready())


# -- queues -----------------------------------------------------------------------------------------


def queues_were_chosen(app: Any) -> bool:
    """Whether the worker was started with -Q."""
    return app.amqp.queues._consume_from is not None


def is_amqp(connection: Any) -> bool:
    return bool(connection.transport.driver_type == "amqp")


def hear_queue_changes(consumer: Any, adding: Callable[[str], bool], changed: Callable[[str, bool], None]) -> None:
    """Remote control begins or ceases to consume from a queue. `adding(name)` is called before the former, and says
    whether Celery is to leave it alone; `changed(name, cancelled)` after either."""
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


def show_more_queues(more: Callable[[Any], list[dict[str, Any]]]) -> None:
    """`more(consumer)`: queues for ``inspect active_queues`` that are not Celery's own consumer's."""
    active_queues = control.Panel.data["active_queues"]
    if hasattr(active_queues, "more"):
        active_queues.more = more
        return

    def with_more(state: Any) -> list[dict[str, Any]]:
        return [*active_queues(state), *with_more.more(state.consumer)]  # type: ignore[attr-defined]

    with_more.more = more  # type: ignore[attr-defined]
    control.Panel.data["active_queues"] = with_more


def report_waiting(reports: Callable[[Any], Any]) -> None:
    """`reports(consumer)` (or None) adds to what ``inspect scheduled``, ``reserved`` and ``query_task`` answer."""
    if hasattr(control.Panel.data["scheduled"], "reports"):
        control.Panel.data["scheduled"].reports = reports
        return
    scheduled, reserved, query_task = (control.Panel.data[name] for name in ("scheduled", "reserved", "query_task"))

    def more_of(state: Any) -> Any:
        return with_scheduled.reports(state.consumer)  # type: ignore[attr-defined]

    def with_scheduled(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        more = more_of(state)
        return [*scheduled(state, **kwargs), *(more.scheduled() if more else ())]

    def with_reserved(state: Any, **kwargs: Any) -> list[dict[str, Any]]:
        more = more_of(state)
        return [*reserved(state, **kwargs), *(more.reserved() if more else ())]

    def with_query_task(state: Any, ids: Any, **kwargs: Any) -> dict[str, Any]:
        more, asked = more_of(state), [one for one in maybe_list(ids) or () if isinstance(one, str)]
        return {**(more.query(asked) if more else {}), **query_task(state, ids, **kwargs)}

    with_scheduled.reports = reports  # type: ignore[attr-defined]
    control.Panel.data.update(scheduled=with_scheduled, reserved=with_reserved, query_task=with_query_task)
    aliases = {"dump_schedule": with_scheduled, "dump_reserved": with_reserved}
    control.Panel.data.update({name: command for name, command in aliases.items() if name in control.Panel.data})


def fetch_only_while(channel: Any, wanted: Callable[[], bool]) -> None:
    """kombu's virtual channels ask their QoS before they fetch; Celery's worker_disable_prefetch works like that."""
    can_consume = channel.qos.can_consume
    channel.qos.can_consume = lambda: wanted() and can_consume()


def prefetch_is_shared(consumer: Any) -> bool:
    """Whether all queues of a channel share one window: Celery's choice for the broker at hand."""
    chosen = getattr(consumer, "qos_global", None)
    if chosen is not None:
        return bool(chosen)
    # Before Celery 5.6 it does not say which it has chosen.
    app, connection = consumer.app, consumer.connection
    detects = app.conf.worker_detect_quorum_queues
    quorum = detects and detect_quorum_queues(app, connection.transport.driver_type)[0]
    return not connection.qos_semantics_matches_spec and not quorum


def can_bound_prefetch(consumer: Any) -> bool:
    """Whether the broker can be told, at any time, how many messages it may send: RabbitMQ, but for quorum queues."""
    return prefetch_is_shared(consumer) and isinstance(consumer.task_consumer.channel, amqp.Channel)


def set_prefetch(channel: Any, count: int) -> None:
    """As basic_qos for the whole channel, without waiting for the answer. At least 1: 0 would be no limit."""
    channel.send_method(spec.Basic.Qos, "lBb", (0, min(count, PREFETCH_COUNT_MAX), True))


def watch_deliveries(channel: Any, came: Callable[[int], None], leaving: Callable[[int], None]) -> None:
    """`came(delivery_tag)` is called for each message of a consumer, `leaving(delivery_tag)` before one is acknowledged
    or goes back."""
    to_python, ack, reject = channel.message_to_python, channel.basic_ack, channel.basic_reject

    def message_to_python(raw: Any) -> Any:
        tag = raw.delivery_info.get("consumer_tag")
        if tag and tag not in channel.no_ack_consumers and "pulled" not in raw.delivery_info:
            came(raw.delivery_tag)
        return to_python(raw)

    def basic_ack(delivery_tag: int, *args: Any, **options: Any) -> Any:
        leaving(delivery_tag)
        return ack(delivery_tag, *args, **options)

    def basic_reject(delivery_tag: int, *args: Any, **options: Any) -> Any:
        leaving(delivery_tag)
        return reject(delivery_tag, *args, **options)

    channel.message_to_python, channel.basic_ack, channel.basic_reject = message_to_python, basic_ack, basic_reject


def pull(consumer: Any, queue: str, heard: Callable[[bool], None]) -> None:
    """Has a message of a queue delivered to kombu's consumer, outside of its prefetch count; `heard(whether there was
    one)` is called after that. As basic_get, but nobody waits: under gevent another greenlet may be reading."""
    channel = consumer.channel
    answers = (spec.Basic.GetOk, spec.Basic.GetEmpty)

    def answered(method: Any, *args: Any) -> None:
        for one in answers:
            channel._pending.pop(one, None)
        found = method == spec.Basic.GetOk
        if found:
            raw = channel._on_get_ok(*args)
            raw.delivery_info.update(consumer_tag=consumer._active_tags.get(queue), pulled=True)
            consumer._receive_callback(raw)
        heard(found)

    channel._pending.update(dict.fromkeys(answers, promise(answered)))
    channel.send_method(spec.Basic.Get, "Bsb", (0, queue, False))


def prefetch_per_queue(channel: Any, count: int) -> None:
    """RabbitMQ: each queue has its own window, so that a backlog of low priority does not fill the one they share."""
    channel.basic_qos(0, 0, True)
    channel.basic_qos(0, count, False)


def say_nothing_of_returned(ours: Callable[[str], bool]) -> None:
    """A worker whose slots are all busy stops fetching handed-over runs. kombu's Redis transport may have asked for one
    already: it puts it back, as it should, with a warning that would worry people."""

    def is_worth_saying(record: logging.LogRecord) -> bool:
        args = record.args or ()
        return not (record.msg == virtual.base.W_NO_CONSUMERS and isinstance(args, tuple) and ours(str(args[0])))

    virtual.base.logger.addFilter(is_worth_saying)


def queue_of(message: Any, consumers: Iterable[Any]) -> str:
    """The queue a message was delivered from.

    Celery's own messages go through the default exchange, where the routing key is the queue. For others the consumer
    tag tells; kombu's virtual transports have none, there the bindings do.
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

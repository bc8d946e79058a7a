"""Checks that the internals of Celery, kombu, billiard and py-amqp are as the other modules of this package expect."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import amqp
import billiard.pool
import celery
from celery.app.amqp import Queues
from celery.apps.worker import on_cold_shutdown
from celery.concurrency.asynpool import AsynPool, ResultHandler
from celery.concurrency.base import BasePool
from celery.worker import control, request
from celery.worker.consumer import Consumer
from celery.worker.loops import asynloop, synloop
from celery.worker.worker import WorkController
from kombu import Connection
from kombu.asynchronous.semaphore import LaxBoundedSemaphore
from kombu.common import QoS
from kombu.message import Message
from kombu.messaging import Consumer as MessageConsumer
from kombu.transport import virtual
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import MultiChannelPoller
from kombu.transport.redis import QoS as RedisQoS
from kombu.transport.redis import Transport as RedisTransport
from kombu.utils.limits import TokenBucket

from celery_orchestration.errors import ConfigurationError


def verify() -> None:
    """Raises if Celery's internals are not as the gate expects."""
    missing = [what for what, there in _expectations() if not there]
    if missing:
        raise ConfigurationError(
            f"celery_orchestration does not support Celery {celery.__version__} "
            f"({'; '.join(missing)}), so its gate could be bypassed: install a supported version (celery>=5.5,<5.8), "
            "or set CELERY_ORCHESTRATION_MODE=off to run without it"
        )


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""  # other code has replaced it, and has no source


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
    reading = _source(ResultHandler._make_process_result)
    parts = ("recv_message = self._recv_message", "it = recv_message(add_reader, fileno, on_state_change)")
    yield "AsynPool reads results in another way", all(part in reading for part in parts)
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
    """The internals of py-amqp that ``prefetch`` relies on."""
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
    """The internals of kombu's Redis transport, from 5.5 to 5.7, that ``fetch`` relies on."""
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

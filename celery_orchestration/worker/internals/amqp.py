"""RabbitMQ's prefetch count, through kombu and py-amqp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amqp
from amqp import spec
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.common import PREFETCH_COUNT_MAX
from vine import promise


def prefetch_is_shared(consumer: Any) -> bool:
    """Whether all queues of a channel share one prefetch count: Celery decides that by the broker."""
    chosen = getattr(consumer, "qos_global", None)
    if chosen is not None:
        return bool(chosen)
    # Before Celery 5.6 the consumer does not have the attribute.
    app, connection = consumer.app, consumer.connection
    detects = app.conf.worker_detect_quorum_queues
    quorum = detects and detect_quorum_queues(app, connection.transport.driver_type)[0]
    return not connection.qos_semantics_matches_spec and not quorum


def can_bound_prefetch(consumer: Any) -> bool:
    """Whether the number of messages that the broker may send can be changed at any time: on RabbitMQ without quorum
    queues."""
    return prefetch_is_shared(consumer) and isinstance(consumer.task_consumer.channel, amqp.Channel)


def set_prefetch(channel: Any, count: int) -> None:
    """Like basic_qos for the whole channel, without waiting for the answer. `count` is at least 1: 0 means no limit."""
    channel.send_method(spec.Basic.Qos, "lBb", (0, min(count, PREFETCH_COUNT_MAX), True))


def prefetch_per_queue(channel: Any, count: int) -> None:
    """RabbitMQ: gives each queue its own prefetch count, so that a backlog of low priority does not use up a shared
    one."""
    channel.basic_qos(0, 0, True)
    channel.basic_qos(0, count, False)


def watch_deliveries(channel: Any, came: Callable[[int], None], leaving: Callable[[int], None]) -> None:
    """Calls `came(delivery_tag)` for each message of a consumer, and `leaving(delivery_tag)` before one is acknowledged
    or rejected."""
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


def pull(consumer: Any, queue: str, then: Callable[[bool], None]) -> None:
    """Gets one message of a queue, outside the prefetch count, and delivers it to kombu's consumer. After that,
    `then(found)` is called: whether there was a message. Like basic_get, but it does not wait: under gevent another
    greenlet may be reading."""
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
        then(found)

    channel._pending.update(dict.fromkeys(answers, promise(answered)))
    channel.send_method(spec.Basic.Get, "Bsb", (0, queue, False))

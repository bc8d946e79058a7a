"""kombu's Redis transport without reliable fetch.

Its channel counts deliveries in this process, and keeps the messages in a hash in Redis until they are acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from kombu.transport import virtual
from kombu.transport.redis import Channel as RedisChannel
from kombu.transport.redis import QoS as RedisQoS

#: A little longer than the Redis transport lets BRPOP wait.
BRPOP_SECONDS = 1.2


def stop_fetching(connection: Any, consumers: Iterable[Any]) -> None:
    """Stops fetching, but keeps the connection. Messages that the broker still sends go back.

    When kombu's Redis channel is closed, it waits for the answer to the current BRPOP, so that no message is lost. But
    it also believes that there is a BRPOP while a message is being handled (on solo: while its task runs). And it needs
    another open channel to put a message back. So this waits for the answers before any channel is closed.
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


def can_ack_late(message: Any) -> bool:
    """Whether :func:`delete_acknowledged` may follow later."""
    qos = getattr(message.channel, "qos", None)
    return type(qos) is RedisQoS and not message.acknowledged


def count_as_acknowledged(message: Any) -> None:
    """Acknowledges the message in this process."""
    virtual.QoS.ack(message.channel.qos, message.delivery_tag)
    message._state = "ACK"


def delete_acknowledged(messages: list[Any]) -> None:
    """Acknowledges the messages in Redis."""
    qos = messages[0].channel.qos  # all channels of a connection keep their messages in the same hash
    with qos.pipe_or_acquire() as pipe:
        for message in messages:
            qos._remove_from_indices(message.delivery_tag, pipe)
        pipe.execute()


def fetch_only_while(channel: Any, wanted: Callable[[], bool]) -> None:
    """Fetches only while `wanted()` is true. kombu's virtual channels ask their QoS before they fetch; Celery's
    worker_disable_prefetch works in the same way."""
    can_consume = channel.qos.can_consume
    channel.qos.can_consume = lambda: wanted() and can_consume()


def silence_returned_warnings(ours: Callable[[str], bool]) -> None:
    """Silences a harmless warning of kombu. A worker whose slots are all busy stops fetching handed-over runs. The
    Redis transport may have asked for one already. It correctly puts that message back, and logs a warning.
    `ours(queue)`: whether the warning is about one of our queues."""

    def is_worth_logging(record: logging.LogRecord) -> bool:
        args = record.args or ()
        return not (record.msg == virtual.base.W_NO_CONSUMERS and isinstance(args, tuple) and ours(str(args[0])))

    virtual.base.logger.addFilter(is_worth_logging)

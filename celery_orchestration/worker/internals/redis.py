"""kombu's Redis transport, where it fetches by itself.

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

#: Longest time that the Redis transport lets BRPOP wait, and a bit.
BRPOP_SECONDS = 1.2


def stop_fetching(connection: Any, consumers: Iterable[Any]) -> None:
    """Stops fetching, while the connection stays: messages that the broker still sends go back.

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


def can_ack_late(message: Any) -> bool:
    """Whether :func:`delete_acknowledged` may follow later."""
    qos = getattr(message.channel, "qos", None)
    return type(qos) is RedisQoS and not message.acknowledged


def count_as_acknowledged(message: Any) -> None:
    """In this process."""
    virtual.QoS.ack(message.channel.qos, message.delivery_tag)
    message._state = "ACK"


def delete_acknowledged(messages: list[Any]) -> None:
    """In Redis."""
    qos = messages[0].channel.qos  # all channels of a connection keep their messages in the same hash
    with qos.pipe_or_acquire() as pipe:
        for message in messages:
            qos._remove_from_indices(message.delivery_tag, pipe)
        pipe.execute()


def fetch_only_while(channel: Any, wanted: Callable[[], bool]) -> None:
    """kombu's virtual channels ask their QoS before they fetch; Celery's worker_disable_prefetch works like that."""
    can_consume = channel.qos.can_consume
    channel.qos.can_consume = lambda: wanted() and can_consume()


def silence_returned_warnings(ours: Callable[[str], bool]) -> None:
    """A worker whose slots are all busy stops fetching handed-over runs. kombu's Redis transport may have asked for one
    already: it puts that back, as it should, and logs a warning that would worry people. `ours(queue)`: whether the
    warning is about one of our queues."""

    def is_worth_logging(record: logging.LogRecord) -> bool:
        args = record.args or ()
        return not (record.msg == virtual.base.W_NO_CONSUMERS and isinstance(args, tuple) and ours(str(args[0])))

    virtual.base.logger.addFilter(is_worth_logging)

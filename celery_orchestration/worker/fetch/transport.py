"""kombu's Redis transports with reliable channels, for the worker's consuming connection alone.

Publishers, results and other clients keep kombu's own transports. Only the connection's method that chooses the
transport class is replaced: so ``rediss`` keeps its TLS options, and a list of brokers its failover.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import Empty
from time import monotonic
from typing import Any

from celery.utils.functional import noop
from kombu.transport import redis as kombu_redis
from kombu.utils.eventio import ERR, READ
from redis.exceptions import ConnectionError

from celery_orchestration.worker.fetch.channel import LOOK_ANYWAY, ReliableChannel
from celery_orchestration.worker.fetch.fetcher import Fetcher
from celery_orchestration.worker.fetch.link import Link

_FETCH, _WAKE = "FETCH", "WAKE"


class Poller(kombu_redis.MultiChannelPoller):  # type: ignore[misc]
    """Lets reliable channels look for messages before it waits, and wakes up when the next of them is due to look."""

    def __init__(self) -> None:
        super().__init__()
        self._links: dict[Any, int] = {}
        self._hub: Any = None
        self._loop_thread: int | None = None
        self._wakes_at = 0.0
        #: A pipe, once there is a link: see wake.
        self._pipe: tuple[int, int] | None = None
        self._fetcher: Fetcher

    def add_link(self, channel: Any, link: Link) -> None:
        if self._pipe is None:
            self._pipe = os.pipe()
            for end in self._pipe:
                os.set_blocking(end, False)
            self._fd_to_chan[self._pipe[0]] = (None, _WAKE)
            self.poller.register(self._pipe[0], self.eventflags)
            self._fetcher = channel.connection.fetcher
            self._fetcher.pollers.add(self)
        fileno = self._links[channel] = link.fileno()
        self._fd_to_chan[fileno] = (channel, _FETCH)
        self.poller.register(fileno, self.eventflags)

    def remove_link(self, channel: Any) -> None:
        fileno = self._links.pop(channel, None)
        if fileno is None or self._fd_to_chan.get(fileno) != (channel, _FETCH):
            return
        self._forget(fileno)

    def _forget(self, fileno: int) -> None:
        self._fd_to_chan.pop(fileno, None)
        try:
            if self._hub is not None:
                self._hub.remove_reader(fileno)
            else:
                self.poller.unregister(fileno)
        except (KeyError, ValueError, OSError):
            pass  # it was removed already

    def wake(self) -> None:
        """Its channels look now, without waiting for the next message. From any thread."""
        pipe = self._pipe
        if pipe is not None:
            with suppress(OSError):  # the pipe is full, or was just closed
                os.write(pipe[1], b"\0")

    def close(self) -> None:
        for channel in list(self._links):
            self.remove_link(channel)
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._fetcher.pollers.discard(self)
            self._forget(pipe[0])
            for end in pipe:
                os.close(end)
        super().close()

    # -- with an event loop -------------------------------------------------------------------------

    def use(self, hub: Any) -> None:
        self._hub = hub

    def ticks_in(self, thread: int) -> bool:
        """Whether this is the thread of an event loop that calls :meth:`on_poll_start` before it waits."""
        return self._loop_thread == thread

    def stop_ticking(self) -> None:
        """The event loop ends."""
        self._loop_thread = None

    def on_poll_start(self) -> None:
        if self._hub is not None and self._loop_thread is None:
            self._loop_thread = threading.get_ident()
        getattr(self, "_update_brpop_polling", noop)()  # since kombu 5.7
        for channel in list(self._channels):
            if channel.is_reliable:
                channel.look()
            elif channel.active_queues and channel.qos.can_consume():
                self._register_BRPOP(channel)
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)
        if self._hub is not None:
            self._wake_in_time()

    def _due_at(self) -> float:
        return min((channel.due_at for channel in self._channels if channel.is_reliable), default=float("inf"))

    def _wake_in_time(self) -> None:
        now, due = monotonic(), self._due_at()
        if now < due < float("inf") and not now < self._wakes_at <= due:
            self._wakes_at = due
            self._hub.call_later(due - now, noop)

    # -- both ---------------------------------------------------------------------------------------

    def on_readable(self, fileno: int) -> Any:
        channel, kind = self._fd_to_chan.get(fileno, (None, ""))
        if kind == _WAKE:
            with suppress(OSError):
                os.read(fileno, 4096)
            return None
        return channel.receive() if kind == _FETCH else super().on_readable(fileno)

    def handle_event(self, fileno: int, event: int) -> Any:
        if self._fd_to_chan.get(fileno, (None, ""))[1] == _FETCH and event & ERR and not event & READ:
            raise ConnectionError("the connection to the broker broke")
        return super().handle_event(fileno, event)

    # -- without an event loop ----------------------------------------------------------------------

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Like kombu's, but waits no longer than until a channel is due to look."""
        self._in_protected_read = True
        try:
            getattr(self, "maybe_refresh_binding_expiry", noop)()  # since kombu 5.7
            self.on_poll_start()
            due = self._due_at() - monotonic()
            wait = min(LOOK_ANYWAY if timeout is None else timeout, due if due > 0 else LOOK_ANYWAY)
            events = self.poller.poll(wait)
            for fileno, event in events or ():
                if self.handle_event(fileno, event):
                    return
            if not events:
                getattr(self, "maybe_check_brpop_health", noop)()  # since kombu 5.7
            self.maybe_restore_messages()
            raise Empty()
        finally:
            self._in_protected_read = False
            while self.after_read:
                self.after_read.pop()()


class _ReliableTransport:
    """A mixin. It stands before one of kombu's Redis transports in the order of classes."""

    fetcher: Fetcher

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.cycle.use(loop)
        super().register_with_event_loop(connection, loop)  # type: ignore[misc]


class _Channel(ReliableChannel, kombu_redis.Channel):  # type: ignore[misc]
    pass


class _SentinelChannel(ReliableChannel, kombu_redis.SentinelChannel):  # type: ignore[misc]
    pass


class _Transport(_ReliableTransport, kombu_redis.Transport):  # type: ignore[misc]
    Channel = _Channel


class _SentinelTransport(_ReliableTransport, kombu_redis.SentinelTransport):  # type: ignore[misc]
    Channel = _SentinelChannel


_OURS = {kombu_redis.Transport: _Transport, kombu_redis.SentinelTransport: _SentinelTransport}


def make_reliable(connection: Any, fetcher: Fetcher) -> Any:
    """Gives the connection a reliable transport if its broker is Redis. It must not have connected yet."""
    ours = {original: type(cls.__name__, (cls,), {"fetcher": fetcher}) for original, cls in _OURS.items()}
    choose = connection.get_transport_cls

    def get_transport_cls() -> Any:
        chosen = choose()
        acknowledges = connection.transport_options.get("ack_emulation", True)
        return ours.get(chosen, chosen) if acknowledges else chosen

    connection.get_transport_cls = get_transport_cls
    return connection

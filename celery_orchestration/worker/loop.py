"""Lets other threads call a function in the worker's event loop.

With prefork, threads and solo the worker's main thread runs kombu's hub; only that thread may use slots and execution
pool. Under gevent there is no hub: greenlets are cooperative, so the function is called at once.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from celery.utils.log import get_logger

from celery_orchestration.worker.state import GateState

logger = get_logger(__name__)

Call = Callable[[], None]


class Loop(Protocol):
    def call(self, function: Call) -> None:
        """From any thread: calls it in the loop, as soon as possible."""

    def soon(self, function: Call) -> None:
        """From inside the loop: calls it after the current events."""

    def later(self, seconds: float, function: Call) -> None:
        """From inside the loop: calls it after this many seconds."""

    def inside(self) -> bool:
        """Whether the caller is in the loop's thread."""

    def drain(self) -> None:
        """Makes the queued calls now. To be called from outside once the loop is down."""

    def listen(self, socket: Any, function: Call) -> bool:
        """Calls it whenever the socket is readable. False if the loop cannot do that."""

    def unlisten(self) -> None:
        """Stops listening to the socket."""


class InLoop:
    """From any thread: calls a function in the worker's event loop, or right here once the loop is down for good."""

    def __init__(self, loop: Loop, state: GateState) -> None:
        self._loop = loop
        self._state = state

    def __call__(self, function: Call) -> None:
        if self._state.stopping or self._loop.inside():
            function()
        else:
            self._loop.call(function)


def guarded(function: Callable[..., None], *args: Any) -> None:
    """Calls the function and logs its error: an error of one request (a lost broker connection, say) must not keep the
    others from their answers."""
    try:
        function(*args)
    except Exception:
        logger.exception("%s failed", getattr(function, "__qualname__", function))


class Timers:
    """Calls that are due later. They survive the loss of a broker connection, at which Celery before 5.7 clears its
    timers."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[float, Call]] = {}
        self._numbers = itertools.count()

    def later(self, seconds: float, function: Call) -> None:
        number = next(self._numbers)
        self._due[number] = (monotonic() + seconds, function)
        self._schedule(seconds, number)

    def _schedule(self, seconds: float, number: int) -> None:
        raise NotImplementedError

    def _fire(self, number: int) -> None:
        _, function = self._due.pop(number, (0.0, None))
        if function is not None:
            function()

    def schedule_again(self) -> None:
        """Sets the timers again. To be called on every connection to the broker."""
        for number, (due, _) in list(self._due.items()):
            self._schedule(max(0.0, due - monotonic()), number)


class HubLoop(Timers):
    """Calls functions in kombu's hub. A pipe wakes the hub: before 5.7, kombu's call_soon does not wake it."""

    def __init__(self, hub: Any) -> None:
        super().__init__()
        self._hub = hub
        self._calls: deque[Call] = deque()
        self._thread = threading.get_ident()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._listening: tuple[int, Call] | None = None

    def register(self) -> None:
        """On every connection to the broker: losing one clears the hub."""
        self._thread = threading.get_ident()
        self._hub.add_reader(self._read, self._run)
        if self._listening is not None:
            self._hub.add_reader(*self._listening)
        self._wake()  # with the connection, the hub has lost the calls that were queued in it

    def listen(self, socket: Any, function: Call) -> bool:
        self._listening = (socket.fileno(), function)
        self._hub.add_reader(*self._listening)
        return True

    def unlisten(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            self._hub.remove_reader(listening[0])

    def _run(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read, 4096)
        self.drain()

    def drain(self) -> None:
        while self._calls:
            guarded(self._calls.popleft())  # an error would end the worker's hub

    def call(self, function: Call) -> None:
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._write, b"\0")

    def soon(self, function: Call) -> None:
        self._calls.append(function)
        self._hub.call_soon(self.drain)

    def _schedule(self, seconds: float, number: int) -> None:
        self._hub.call_later(seconds, self._fire, number)

    def _fire(self, number: int) -> None:
        super()._fire(number)
        self.drain()  # without this the hub would sleep before it makes calls that `function` has queued

    def inside(self) -> bool:
        return threading.get_ident() == self._thread


class DirectLoop(Timers):
    """For gevent, where there is no hub."""

    def __init__(self, timer: Any) -> None:
        super().__init__()
        self._timer = timer

    def register(self) -> None:
        pass

    def call(self, function: Call) -> None:
        function()

    soon = call

    def _schedule(self, seconds: float, number: int) -> None:
        self._timer.call_after(seconds, self._fire, (number,))

    def inside(self) -> bool:
        return True

    def drain(self) -> None:
        pass

    def listen(self, socket: Any, function: Call) -> bool:
        return False

    def unlisten(self) -> None:
        pass

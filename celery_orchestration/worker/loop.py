"""Getting back into the worker's event loop from another thread.

With prefork, threads and solo the worker's main thread runs kombu's hub; slots and execution pool may only be touched
there. Under gevent there is no hub: everything is cooperative, and a call is just made.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

Call = Callable[[], None]


class Loop(Protocol):
    def call(self, function: Call) -> None:
        """From any thread: call it in the loop, as soon as possible."""

    def soon(self, function: Call) -> None:
        """From inside the loop: call it when the events at hand are dealt with."""

    def later(self, seconds: float, function: Call) -> None:
        """From inside the loop."""

    def inside(self) -> bool:
        """Whether the caller is in the loop's thread."""

    def drain(self) -> None:
        """The loop is down: what was to be called there is called now."""

    def listen(self, socket: Any, function: Call) -> bool:
        """Calls it whenever the socket is readable. False if the loop cannot do that."""

    def unlisten(self) -> None:
        """The socket is not to be listened to any more."""


class HubLoop:
    """A pipe wakes the hub: before 5.7, kombu's call_soon does not."""

    def __init__(self, hub: Any) -> None:
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
            self._calls.popleft()()

    def call(self, function: Call) -> None:
        self._calls.append(function)
        with suppress(BlockingIOError):  # full: it will wake anyway
            os.write(self._write, b"\0")

    def soon(self, function: Call) -> None:
        self._hub.call_soon(function)

    def later(self, seconds: float, function: Call) -> None:
        self._hub.call_later(seconds, function)

    def inside(self) -> bool:
        return threading.get_ident() == self._thread


class DirectLoop:
    def __init__(self, timer: Any) -> None:
        self._timer = timer

    def register(self) -> None:
        pass

    def call(self, function: Call) -> None:
        function()

    soon = call

    def later(self, seconds: float, function: Call) -> None:
        self._timer.call_after(seconds, function)

    def inside(self) -> bool:
        return True

    def drain(self) -> None:
        pass

    def listen(self, socket: Any, function: Call) -> bool:
        return False

    def unlisten(self) -> None:
        pass

"""A TCP proxy in front of Redis that loses replies.

It understands enough of Redis's protocol to know where a request or a reply ends. So it can lose the reply of one given
request, also in a pipeline, and only after Redis has sent it: the script has run, and its caller does not know that.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from support.processes import free_port
from support.wait import until

Request = list[bytes]
# A text or pattern that must be in the request's words, joined by blanks; or a function of the words.
Match = str | bytes | re.Pattern[bytes] | Callable[[Request], bool]

_SUBSCRIBES = {b"SUBSCRIBE", b"PSUBSCRIBE", b"SSUBSCRIBE", b"MONITOR"}
_BULKS = b"$=!"
_AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}


def frame_end(data: bytes | bytearray, at: int = 0) -> int | None:
    """Where the protocol frame that begins at ``at`` ends; None if it is not complete yet."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, rest = bytes(data[at : at + 1]), bytes(data[at + 1 : line_end])
    end = line_end + 2
    if kind in _AGGREGATES:
        for _ in range(max(int(rest), 0) * _AGGREGATES[kind]):
            inner = frame_end(data, end)
            if inner is None:
                return None
            end = inner
        # An attribute comes before the reply that it belongs to.
        return frame_end(data, end) if kind == b"|" else end
    if kind in _BULKS:
        end += int(rest) + 2 if int(rest) >= 0 else 0
        return end if end <= len(data) else None
    return end  # a simple line, or an inline command


def words(frame: bytes) -> Request:
    """The words of a request: ``[b"EVALSHA", b"<sha>", b"1", b"<key>", ...]``."""
    if not frame.startswith(b"*"):
        return frame.split()
    found, at = [], frame.index(b"\r\n") + 2
    while at < len(frame):
        line_end = frame.index(b"\r\n", at)
        length = int(frame[at + 1 : line_end])
        found.append(frame[line_end + 2 : line_end + 2 + length])
        at = line_end + 2 + length + 2
    return found


def _matcher(match: Match) -> Callable[[Request], bool]:
    if callable(match):
        return match
    if isinstance(match, str):
        match = match.encode()
    pattern = re.compile(match, re.DOTALL) if isinstance(match, bytes) else match
    return lambda request: pattern.search(b" ".join(request)) is not None


@dataclass
class Rule:
    """What is to be lost, how often, and what was lost."""

    matches: Callable[[Request], bool]
    remaining: int
    forward: bool
    lost: list[Request] = field(default_factory=list)

    def wait(self, timeout: float = 30) -> Request:
        """Waits until it has happened. Returns the request that it happened to, the last one."""
        until(lambda: self.lost, timeout, "the proxy loses a reply")
        return self.lost[-1]


class _Link:
    """One client's connection, and the matching one to Redis."""

    def __init__(self, proxy: DroppingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        # For each request that Redis has not answered: the rule to apply to its reply, if any.
        self._awaited: deque[tuple[Request, Rule | None]] = deque()
        self._streaming = False
        #: Nothing passes any more, and neither end notices that.
        self.silent = False
        self.threads = [
            threading.Thread(target=self._run, args=(pump,), daemon=True) for pump in (self._requests, self._replies)
        ]

    def cut(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:
            pass  # the other side, or a test, closed it
        finally:
            self.cut()
            self._proxy._ended(self)

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def _requests(self) -> None:
        data = bytearray()
        while True:
            while data and (end := frame_end(data)) is not None:
                frame = bytes(data[:end])
                del data[:end]
                request = words(frame)
                rule = self._proxy._rule_for(request)
                if rule is not None and not rule.forward:
                    rule.lost.append(request)
                    return
                if request and request[0].upper() in _SUBSCRIBES:
                    self._streaming = True
                if self.silent:
                    continue
                self._awaited.append((request, rule))
                self._server.sendall(frame)
                if rule is not None:
                    # The client sends nothing more: its connection ends after the reply.
                    self._drain_client()
                    return
            chunk = self._client.recv(65536)
            if not chunk:
                return
            data += chunk

    def _drain_client(self) -> None:
        while self._client.recv(65536):
            pass

    def _replies(self) -> None:
        data = bytearray()
        while chunk := self._server.recv(65536):
            data += chunk
            while data and (end := frame_end(data)) is not None:
                frame = bytes(data[:end])
                del data[:end]
                # Messages that Redis pushes are no replies.
                if not self._streaming and not frame.startswith(b">"):
                    # A reply without a request: "max number of clients reached".
                    request, rule = self._awaited.popleft() if self._awaited else ([], None)
                    if rule is not None:
                        rule.lost.append(request)
                        return
                if self._proxy.delay_seconds:
                    self._proxy.closing.wait(self._proxy.delay_seconds)
                if not self.silent:
                    self._client.sendall(frame)


class DroppingProxy:
    """Passes everything on, until told otherwise.

    ::

        with DroppingProxy(redis_server.port) as proxy:
            client = redis.Redis.from_url(proxy.url())
            lost = proxy.lose_reply("EVALSHA")
            ...  # the next script runs, its caller's connection breaks
            lost.wait()
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.port = free_port()
        self.delay_seconds = 0.0
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self.accept()

    def __enter__(self) -> DroppingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    # -- faults

    def lose_reply(self, match: Match, times: int = 1) -> Rule:
        """The next ``times`` matching requests run, their replies are lost, and the connection ends."""
        return self._add(Rule(_matcher(match), times, forward=True))

    def lose_request(self, match: Match, times: int = 1) -> Rule:
        """The next ``times`` matching requests never reach Redis, and the connection ends."""
        return self._add(Rule(_matcher(match), times, forward=False))

    def cut(self) -> None:
        """Ends all connections; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def silence(self) -> None:
        """All connections stay open and transport nothing any more, as after a failure of the network; new ones
        work."""
        with self._lock:
            for link in self._links:
                link.silent = True

    def refuse(self) -> None:
        """Ends all connections and refuses new ones, until ``accept``."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def accept(self) -> None:
        """Accepts new connections (again)."""
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener = listener
        self._start(threading.Thread(target=self._serve, args=(listener,), daemon=True))

    def delay(self, seconds: float) -> None:
        """Holds each reply for this many seconds; 0 ends it."""
        self.delay_seconds = seconds

    def pass_all(self) -> None:
        """Removes all faults."""
        with self._lock:
            self._rules.clear()
        self.delay_seconds = 0.0
        self.accept()

    def close(self) -> None:
        self.closing.set()
        self.refuse()
        # A connection that is just being accepted starts threads of its own, which end at once.
        until(lambda: not any(thread.is_alive() for thread in self._threads), 30, "the proxy's threads end", poll=0.01)

    # -- inside

    def _add(self, rule: Rule) -> Rule:
        with self._lock:
            self._rules.append(rule)
        return rule

    def _rule_for(self, request: Request) -> Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.remaining > 0 and rule.matches(request):
                    rule.remaining -= 1
                    return rule
        return None

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # refuse() closed it
            try:
                server = socket.create_connection(("127.0.0.1", self.upstream_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            for thread in link.threads:
                self._start(thread)
            if self._listener is not listener:
                link.cut()  # refuse() came while this one was being made

    def _start(self, thread: threading.Thread) -> None:
        with self._lock:
            thread.start()
            self._threads = [known for known in self._threads if known.is_alive()]
            self._threads.append(thread)

    def _ended(self, link: _Link) -> None:
        """Called by both threads of a link; the last one closes its sockets."""
        with self._lock:
            if link in self._links:
                self._links.discard(link)
                return
        link.close()

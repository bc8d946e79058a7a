"""The connection on which a channel fetches: commands are sent without waiting, replies are read when they come.

It also hears when there is something to fetch. Publishers only push to lists, so the connection has Redis track the
lists that were found empty (``CLIENT TRACKING``, over RESP3): the next push to one of them sends it an invalidation.
Where tracking is refused (an ACL, a proxy) the channel polls instead.

It reads the socket itself: how redis-py tells invalidations from replies changed from release to release.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis
from redis.exceptions import ConnectionError, RedisError, ResponseError

Reply = Callable[[Any], None]

_NOTHING = object()
_BYTES = 65536


class Link:
    def __init__(self, pool: Any, invalidated: Callable[[], None]) -> None:
        """Connects. `pool`: redis-py's, for how to connect. `invalidated` is called when a tracked list changed."""
        self._invalidated = invalidated
        self._expected: deque[Reply] = deque()
        self._packed: list[Any] = []
        self.tracks = True
        #: Why Redis does not track lists for us; for people.
        self.refusal = ""
        try:
            self._connection = self._connect(pool, protocol=3)
            self._ask("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
        except (ResponseError, ConnectionError) as exc:
            self.tracks, self.refusal = False, str(exc)
            self._connection = self._connect(pool, protocol=2)
        self._socket = self._connection._sock
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)

    @staticmethod
    def _connect(pool: Any, protocol: int) -> Any:
        connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": protocol})
        connection.connect()
        return connection

    def _ask(self, *command: Any) -> Any:
        try:
            self._connection.send_command(*command, check_health=False)
            return self._connection.read_response()
        except RedisError:
            self._connection.disconnect()
            raise

    def fileno(self) -> int:
        return int(self._socket.fileno())

    @property
    def waits(self) -> bool:
        """Whether a reply is to come."""
        return bool(self._expected)

    def call(self, then: Reply, *command: Any) -> None:
        """Sent by :meth:`flush`. `then` gets the reply, an error as a value."""
        self._packed.extend(self._connection.pack_command(*command))
        self._expected.append(then)

    def flush(self) -> None:
        if self._packed:
            packed, self._packed = self._packed, []
            self._connection.send_packed_command(packed, check_health=False)

    def receive(self) -> None:
        """What is there to be read: when the socket is readable, or nothing else is left to do."""
        while True:
            data = self._socket.recv(_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._reader.feed(data)
            if not getattr(self._socket, "pending", int)():  # TLS: read already, but not by us
                break
        while (reply := self._reader.gets()) is not _NOTHING:
            if isinstance(reply, list) and reply and reply[0] == b"invalidate":
                self._invalidated()
            else:
                self._expected.popleft()(reply)

    def close(self) -> None:
        self._connection.disconnect()

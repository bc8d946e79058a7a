"""The connection on which a channel fetches: commands are sent without waiting, replies are read when they come.

Redis also reports new messages on it. Publishers only push to lists, so the connection has Redis track the lists that
were found empty (``CLIENT TRACKING``, over RESP3). At the next push to one of them, Redis sends an invalidation. If
tracking is refused (by an ACL or a proxy), the channel polls instead.

The link reads the socket itself, because redis-py's releases differ in how they tell invalidations from replies.
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
        """Connects, with the options of redis-py's connection pool `pool`. `invalidated()` is called when a tracked
        list has changed."""
        self._invalidated = invalidated
        self._expected: deque[Reply] = deque()
        self._packed: list[Any] = []
        self.tracks = True
        #: Why Redis does not track lists, for people; '' if it does.
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
        """Whether a reply has not come yet."""
        return bool(self._expected)

    def call(self, then: Reply, *command: Any) -> None:
        """Queues a command, which :meth:`flush` sends. `then` gets the reply; an error is passed as a value."""
        self._packed.extend(self._connection.pack_command(*command))
        self._expected.append(then)

    def flush(self) -> None:
        if self._packed:
            packed, self._packed = self._packed, []
            self._connection.send_packed_command(packed, check_health=False)

    def receive(self) -> None:
        """Reads the replies that have come, and waits for one if there is none."""
        while True:
            data = self._socket.recv(_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._reader.feed(data)
            # TLS may have read and decrypted more than recv() has returned.
            if not getattr(self._socket, "pending", int)():
                break
        while (reply := self._reader.gets()) is not _NOTHING:
            if isinstance(reply, list) and reply and reply[0] == b"invalidate":
                self._invalidated()
            else:
                self._expected.popleft()(reply)

    def close(self) -> None:
        self._connection.disconnect()

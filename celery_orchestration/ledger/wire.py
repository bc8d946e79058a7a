"""One connection to Redis that calls scripts.

It works on redis-py's connection, without its client: with hiredis a call costs half the processor time, and this is
done once for every run. A wire belongs to one thread. Whatever goes wrong with the connection is a
:class:`LedgerUnavailable`: the caller does not know whether the script ran, and asks again.
"""

import os
from collections.abc import Sequence
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.ledger.scripts import Script

Argument = bytes | str | int | float
#: Replies that say "not now" rather than "no".
_PASSING = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, AuthenticationError)
_PASSING_CODES = ("MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "OOM")


class Wire:
    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._pid = os.getpid()

    def call(self, script: Script, prefix: str, args: Sequence[Argument]) -> Any:
        try:
            return self.command("EVALSHA", script.sha, 1, prefix, *args)
        except NoScriptError:
            self.command("SCRIPT", "LOAD", script.text)
            return self.command("EVALSHA", script.sha, 1, prefix, *args)

    def command(self, *args: Argument) -> Any:
        return self.commands([args])[0]

    def commands(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Several commands in one round trip. The first error is raised when all replies were read."""
        try:
            connection = self._connected()
            packed = connection.pack_commands(commands) if len(commands) > 1 else connection.pack_command(*commands[0])
            connection.send_packed_command(packed, check_health=False)
            replies: list[Any] = []
            error: RedisError | None = None
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except ResponseError as exc:
                    error = error or exc
        except (RedisError, OSError) as exc:
            self.close()
            raise LedgerUnavailable(f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            self.close()  # a reply may be half read
            raise
        if error is not None:
            self._raise(error)
        return replies

    def _raise(self, error: RedisError) -> None:
        if isinstance(error, NoScriptError):
            raise error
        if isinstance(error, _PASSING) or str(error).startswith(_PASSING_CODES):
            self.close()
            raise LedgerUnavailable(f"{type(error).__name__}: {error}") from error
        raise LedgerError(str(error)) from error

    def _connected(self) -> Any:
        if self._connection is not None and self._pid != os.getpid():
            self._connection = None  # the parent's: a forked child must not touch it
        if self._connection is None:
            self._pid = os.getpid()
            # Not through the pool: it counts connections, and redis-py changed how to ask it for one.
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            connection.connect()
            self._connection = connection
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            connection.disconnect()

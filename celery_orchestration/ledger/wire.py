"""One connection to Redis that calls scripts.

A call can be made in two halves, :meth:`Wire.send` and :meth:`Wire.receive`, by who waits for the socket himself.

It works on redis-py's connection, without its client: with hiredis a call costs half the processor time, and this is
done once for every run. A wire belongs to one thread. Whatever goes wrong with the connection is a
:class:`LedgerUnavailable`: the caller does not know whether the script ran, and asks again.
"""

import os
import re
import select
from collections.abc import Sequence
from typing import Any

from redis.connection import ConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    DataError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.ledger.scripts import Script

Argument = bytes | str | int | float
#: Replies that say "not now" rather than "no". Redis 6.2 puts text of its own before the code of an error in a script.
_PASSING = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, AuthenticationError, OutOfMemoryError)
_PASSING_CODES = re.compile(r"(?:^|: -)(?:MASTERDOWN|CLUSTERDOWN|TRYAGAIN|OOM|MISCONF|NOREPLICAS|READONLY)\b")


class Wire:
    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._pid = os.getpid()
        #: Until the caller unsets it: the connection is new, and may be to another Redis.
        self.fresh = True

    def call(self, script: Script, prefix: str, args: Sequence[Argument]) -> Any:
        try:
            return self.command("EVALSHA", script.sha, 1, prefix, *args)
        except NoScriptError:
            return self.command("EVAL", script.text, 1, prefix, *args)  # which makes it known, too

    def command(self, *args: Argument) -> Any:
        try:
            self._send(args)
            return self.receive()
        except Exception:
            raise
        except BaseException:
            self.close()  # Ctrl-C: the reply would be taken for that of the next command
            raise

    def send(self, script: Script, prefix: str, args: Sequence[Argument]) -> None:
        self._send(("EVALSHA", script.sha, 1, prefix, *args))

    def _send(self, args: Sequence[Argument]) -> None:
        try:
            connection = self._connected()
            connection.send_packed_command(connection.pack_command(*args), check_health=False)
        except (UnicodeError, DataError) as exc:
            raise LedgerError(f"{type(exc).__name__}: {exc}") from exc  # what cannot be sent is nothing that passes
        except (RedisError, OSError) as exc:
            self.close()
            raise LedgerUnavailable(f"{type(exc).__name__}: {exc}") from exc

    def receive(self) -> Any:
        """:class:`NoScriptError` is left to the caller, who knows the script."""
        try:
            return self._connected().read_response()
        except NoScriptError:
            raise
        except ResponseError as exc:
            if isinstance(exc, _PASSING) or _PASSING_CODES.search(str(exc)):
                self.close()
                raise LedgerUnavailable(f"{type(exc).__name__}: {exc}") from exc
            raise LedgerError(str(exc)) from exc
        except (RedisError, OSError) as exc:
            self.close()
            raise LedgerUnavailable(f"{type(exc).__name__}: {exc}") from exc
        except BaseException:
            self.close()  # a reply may be half read
            raise

    def readable(self, seconds: float) -> bool:
        """Whether a reply, or the end of the connection, is there within this time."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    @property
    def socket(self) -> Any:
        """The connected socket, or None."""
        return None if self._connection is None else self._connection._sock

    def _connected(self) -> Any:
        if self._connection is not None and self._pid != os.getpid():
            self._connection = None  # the parent's: a forked child must not touch it
        if self._connection is None:
            self._pid = os.getpid()
            # Not through the pool: it counts connections, and redis-py changed how to ask it for one.
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
            connection.connect()
            self._connection = connection
            self.fresh = True
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self.fresh = True
        if connection is not None and self._pid == os.getpid():
            connection.disconnect()

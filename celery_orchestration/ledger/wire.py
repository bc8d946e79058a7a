"""One connection to Redis that calls the ledger's verbs: as functions where Redis has them, else as scripts.

A call can be made in two halves, :meth:`Wire.send` and :meth:`Wire.receive`, by callers that poll the socket.

It works on redis-py's connection, without its client: with hiredis a call costs half the processor time, and this is
done once for every run. A wire belongs to one thread. Every problem with the connection is raised as
:class:`LedgerUnavailable`: the caller does not know whether the script ran, and asks again.
"""

import os
import re
import select
from collections.abc import Sequence
from contextlib import suppress
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
from celery_orchestration.ledger.records import Argument
from celery_orchestration.ledger.scripts import LIBRARY_PREFIX, Script, library, verbs

#: Errors that pass. Redis 6.2 puts text of its own before the code of an error in a script.
_PASSING = (ConnectionError, TimeoutError, BusyLoadingError, ReadOnlyError, AuthenticationError, OutOfMemoryError)
_PASSING_CODES = re.compile(r"(?:^|: -)(?:MASTERDOWN|CLUSTERDOWN|TRYAGAIN|OOM|MISCONF|NOREPLICAS|READONLY)\b")


#: What Redis says if it has no functions, or does not let this user call them. (redis-py removes the code ERR.)
_NO_FUNCTIONS = re.compile(r"unknown command|'fcall'", re.IGNORECASE)
#: What Redis says if it takes no writes now: to a function before it begins, to a script only when it writes.
_NO_WRITES = re.compile(r"(?:MISCONF|NOREPLICAS|READONLY)\b")
_NOT_LOADED, _LOADED_BY_ANOTHER = "Function not found", "already exists"
#: How many libraries of other versions stay in Redis. Deleting one that is in use does no harm: it is loaded again.
_MOST_LIBRARIES = 32


class NotAsFunction(LedgerError):
    """Redis did not run the function: the verb has to be called again, with :meth:`Wire.call`."""

    def __init__(self, why: str) -> None:
        """`why`: unwritable (Redis is full, or takes no writes at all) | missing | refused"""
        super().__init__(f"Redis did not run a function: {why}")
        self.why = why


class Wire:
    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: Any = None
        self._pid = os.getpid()
        #: The connection is new, and may be to another Redis. The caller unsets this.
        self.fresh = True
        #: Whether verbs are called as functions, and whether the last command was such a call.
        self._functions = self._asked_function = True

    def call(self, script: Script, prefix: str, args: Sequence[Argument]) -> Any:
        for _ in range(2):  # the first call may find that the functions have to be loaded
            if self._functions:
                try:
                    return self.command("FCALL", script.function, 1, prefix, *args)
                except NotAsFunction as exc:
                    if not self._load_after(exc.why, script.verb):
                        break
        try:
            return self.command("EVALSHA", script.sha, 1, prefix, *args)
        except NoScriptError:
            return self.command("EVAL", script.text, 1, prefix, *args)  # this also loads the script

    def _load_after(self, why: str, verb: str) -> bool:
        """Loads the functions if they were missing. Otherwise the verb is called as a script: only this time if Redis
        takes no writes, because a script may still read then, and decides by itself what to do when Redis is full; else
        from now on."""
        if why == "missing":
            why = self._load(verb)
        self._functions = why != "refused"
        return why == "loaded"

    def _load(self, verb: str) -> str:
        """loaded | unwritable | refused"""
        try:
            self.command("FUNCTION", "LOAD", library(verb).text)
        except LedgerUnavailable as exc:
            if _takes_no_writes(exc.__cause__):
                return "unwritable"
            raise
        except LedgerError as exc:
            return "loaded" if _LOADED_BY_ANOTHER in str(exc) else "refused"
        with suppress(LedgerError):
            self._delete_others()
        return "loaded"

    def _delete_others(self) -> None:
        found = self.command("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY_PREFIX + "*")
        ours = {library(verb).name for verb in verbs()}
        others = [name for name in map(_name_of, found) if name not in ours]
        for name in others[_MOST_LIBRARIES:]:
            self.command("FUNCTION", "DELETE", name)

    def command(self, *args: Argument) -> Any:
        try:
            self._send(args)
            return self.receive()
        except Exception:
            raise
        except BaseException:
            self.close()  # Ctrl-C: the next command would read this reply
            raise

    def send(self, script: Script, prefix: str, args: Sequence[Argument]) -> None:
        how = ("FCALL", script.function) if self._functions else ("EVALSHA", script.sha)
        self._send((*how, 1, prefix, *args))

    def _send(self, args: Sequence[Argument]) -> None:
        try:
            connection = self._connected()
            self._asked_function = args[0] == "FCALL"
            connection.send_packed_command(connection.pack_command(*args), check_health=False)
        except (UnicodeError, DataError) as exc:
            raise LedgerError(f"{type(exc).__name__}: {exc}") from exc  # it cannot be sent later either
        except (RedisError, OSError) as exc:
            self.close()
            raise LedgerUnavailable(f"{type(exc).__name__}: {exc}") from exc

    def receive(self) -> Any:
        """:class:`NoScriptError` and :class:`NotAsFunction` are left to the caller, who knows the verb."""
        try:
            return self._connected().read_response()
        except NoScriptError:
            raise
        except ResponseError as exc:
            if self._asked_function and (why := _why_not_run(exc)):
                raise NotAsFunction(why) from exc
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
        """Whether a reply, or the end of the connection, comes within this time."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    @property
    def socket(self) -> Any:
        """The connected socket, or None."""
        return None if self._connection is None else self._connection._sock

    def _connected(self) -> Any:
        if self._connection is not None and self._pid != os.getpid():
            self._connection = None  # it is the parent's: a forked child must not touch it
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


def _why_not_run(exc: ResponseError) -> str:
    """Why Redis did not begin the function; '' if it did."""
    if _takes_no_writes(exc):
        return "unwritable"
    if str(exc).startswith(_NOT_LOADED):
        return "missing"
    return "refused" if _NO_FUNCTIONS.search(str(exc)) else ""


def _takes_no_writes(exc: BaseException | None) -> bool:
    return isinstance(exc, OutOfMemoryError | ReadOnlyError) or bool(_NO_WRITES.match(str(exc)))


def _name_of(described: Any) -> str:
    """The name of a library in FUNCTION LIST. It is a map, or with the older protocol a list of names and values."""
    if not isinstance(described, dict):
        described = dict(zip(described[::2], described[1::2], strict=True))
    return str(described[b"library_name"], "utf-8")

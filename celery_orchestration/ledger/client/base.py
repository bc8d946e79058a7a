"""One connection to the ledger, and how the replies of verbs are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from celery import Celery
from redis.connection import ConnectionPool

from celery_orchestration.errors import LedgerError, LedgerRefused, LedgerUnavailable, Superseded
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import keys
from celery_orchestration.ledger.connect import Address, connect, find, key_prefix
from celery_orchestration.ledger.records import Argument, Grant, key_of
from celery_orchestration.ledger.replies import Disabled, Ending
from celery_orchestration.ledger.scripts import script
from celery_orchestration.ledger.wire import Wire

if TYPE_CHECKING:
    from typing_extensions import Self


class NotRegistered(LedgerError):
    """The worker never registered, or its lease ran out: what it runs is void, and it has to register again."""


class NewEpoch(LedgerError):
    """The ledger may have forgotten something: the worker has to register again, and to claim what it runs."""

    def __init__(self, epoch: str) -> None:
        super().__init__(f"a new epoch has begun: {epoch}")
        self.epoch = epoch


class Connection:
    """A connection to the ledger. It belongs to one thread: :meth:`new_connection` makes another."""

    def __init__(self, pool: ConnectionPool, prefix: str, address: Address | None = None, service: str = "") -> None:
        """`service`: this service among those that share the ledger, see :func:`keys.service`."""
        self.prefix = prefix
        self.address = address
        self.service = service
        self._pool = pool
        self._wire = Wire(pool)
        #: Seconds by which this machine's clock was ahead of Redis's at the last heartbeat.
        self.ahead: float | None = None

    @classmethod
    def of(cls, app: Celery, settings: Settings) -> Self:
        """The ledger of an app. Does not connect yet."""
        address = find(app, settings)
        prefix = keys.prefix(settings.namespace, key_prefix(app))
        return cls(connect(address), prefix, address, keys.service(app.main, settings.namespace))

    def new_connection(self) -> Self:
        """Another connection to the same ledger, for another thread."""
        return type(self)(self._pool, self.prefix, self.address, self.service)

    def close(self) -> None:
        self._wire.close()

    def check(self, owner: str) -> None:
        """Raises :class:`LedgerRefused` if the ledger belongs to another app, or has an unknown data layout."""
        ask = partial(self._wire.command, "HMGET", key_of(self.prefix, "ledger"), "owner", "schema")
        found, schema = self._quick(ask)
        self._refuse(None if found is None else text(found), None if schema is None else int(schema), owner)

    def _refuse(self, found: str | None, schema: int | None, owner: str) -> None:
        if found is not None and found != owner:
            _typed(LedgerError(f"FOREIGN {found}"), self)
        if schema is not None and not keys.OLDEST_SCHEMA <= schema <= keys.SCHEMA + 1:
            _typed(LedgerError(f"SCHEMA {schema}"), self)

    def _quick(self, ask: Callable[[], Any]) -> Any:
        """An old connection may have died, so the question is asked twice. Without one, a second try would only take
        time."""
        return ask() if self._wire.socket is None else asked_twice(ask)

    def eviction(self) -> str:
        """Redis's ``maxmemory-policy``, or '' if INFO is not allowed."""
        return self.info("memory").get("maxmemory_policy", "")

    def info(self, *section: str) -> dict[str, str]:
        """Redis's INFO, all of it or one section; empty if INFO is not allowed."""
        try:
            found = legible(self._wire.command("INFO", *section))
        except LedgerUnavailable:
            raise
        except LedgerError:
            return {}
        return dict(line.partition(":")[::2] for line in found.splitlines() if ":" in line)

    def setting(self, name: str) -> str | None:
        """A setting of Redis's configuration; None if it does not exist, or if CONFIG is not allowed."""
        try:
            found = self._wire.command("CONFIG", "GET", name)
        except LedgerUnavailable:
            raise
        except LedgerError:
            return None
        values = [*found.values()] if isinstance(found, dict) else found[1::2]
        return text(values[0]) if values else None

    def time(self) -> float:
        """Redis's clock, in seconds."""
        seconds, micros = self._wire.command("TIME")
        return int(seconds) + int(micros) / 1e6

    def _check_epoch(self) -> None:
        """If Redis has forgotten something, that must be noticed before it is asked to start runs."""
        if self._wire.fresh:
            self._call("check_epoch", ())
            self._wire.fresh = False

    def _read_json(self, verb: str, args: Sequence[Argument]) -> Any:
        """Calls a verb that replies in JSON."""
        return json.loads(text(self._call(verb, args)))

    def _call(self, verb: str, args: Sequence[Argument]) -> Any:
        try:
            return self._wire.call(script(verb), self.prefix, args)
        except LedgerError as exc:
            _typed(exc, self)


def asked_twice(ask: Callable[[], Any]) -> Any:
    """Asks again on a new connection: the one at hand may have died since the last question, maybe long ago."""
    try:
        return ask()
    except LedgerUnavailable:
        return ask()


def _typed(exc: LedgerError, ledger: Connection) -> NoReturn:
    """Error codes of the verbs become typed errors here, and nowhere else."""
    code, _, detail = str(exc).partition(" ")
    if code == "UNKNOWNWORKER":
        raise NotRegistered(detail) from exc
    if code == "NEWEPOCH":
        raise NewEpoch(detail) from exc
    if code == "SUPERSEDED":
        raise Superseded(detail) from exc
    if code == "FOREIGN":
        raise LedgerRefused(
            f"the ledger {ledger.prefix!r} at {ledger.address} belongs to the app {detail!r}: "
            "give each app its own app.conf.orchestration_namespace"
        ) from exc
    if code == "SCHEMA":
        raise LedgerRefused(
            f"the ledger {ledger.prefix!r} at {ledger.address} has data layout {detail}, this version of "
            f"celery_orchestration knows {keys.OLDEST_SCHEMA} to {keys.SCHEMA + 1}: upgrade it"
        ) from exc
    raise exc


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def legible(value: Any) -> str:
    """As :func:`text`, for values that may be corrupt."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def grants_of(parts: list[Any]) -> list[Grant]:
    return [Grant(text(p[0]), text(p[1])) for p in parts]


def endings_of(parts: list[Any]) -> list[Ending]:
    return [Ending(text(p[0]), text(p[1])) for p in parts]


def disabled_of(parts: list[Any]) -> list[Disabled]:
    return [Disabled(keys.decode_job(text(p[0])), text(p[1])) for p in parts]


def due_of(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000

"""Stores keep fetched messages in the broker's Redis until they are acknowledged.

Keys, after the broker's ``global_keyprefix``:

- ``_orchestration.<namespace>.stores``  hash of open stores: id -> JSON {worker, name}
- ``_orchestration.<namespace>.sealed``  the same for sealed stores
- ``_orchestration.<namespace>.store.<id>``  hash: ``<number>:<list it came from>`` -> the unchanged message

An id is random and never used again. A message's field is also its delivery tag.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from celery import Celery
from kombu.utils.json import dumps, loads
from redis import Redis
from redis.exceptions import NoScriptError, ResponseError

from celery_orchestration.ledger.scripts import Script

_LUA = files(__package__) / "lua"

#: How many messages one script moves.
MOST_AT_ONCE = 100
#: Seconds for a call on a store, unless the broker's transport options say otherwise: kombu has no limits by default.
TIMEOUTS = {"socket_timeout": 5.0, "socket_connect_timeout": 3.0}


def _script(name: str) -> Script:
    text = (_LUA / f"{name}.lua").read_text()
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


FETCH, SEAL, GIVE_BACK = _script("fetch"), _script("seal"), _script("give_back")


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one namespace."""

    prefix: str

    @classmethod
    def of(cls, namespace: str, global_keyprefix: str = "") -> Names:
        return cls(f"{global_keyprefix}_orchestration.{namespace}.")

    @classmethod
    def in_app(cls, app: Celery, namespace: str) -> Names:
        options = app.conf.broker_transport_options or {}
        return cls.of(namespace, str(options.get("global_keyprefix") or ""))

    @property
    def open(self) -> str:
        return f"{self.prefix}stores"

    @property
    def sealed(self) -> str:
        return f"{self.prefix}sealed"

    def store(self, id: str) -> str:
        return f"{self.prefix}store.{id}"


@dataclass(frozen=True, slots=True)
class Store:
    id: str
    #: The worker's id in the ledger, and its name.
    worker: str
    name: str
    sealed: bool = False


class Stores:
    """Opens, seals and empties stores. Every call may be repeated at any time, by any node and in any thread."""

    def __init__(self, client: Redis, names: Names) -> None:
        """`client`: without a key prefix of its own."""
        self._client = client
        self.names = names

    def open(self, id: str, worker: str, name: str) -> None:
        self._client.hset(self.names.open, id, json.dumps({"worker": worker, "name": name}))

    def is_open(self, id: str) -> bool:
        return bool(self._client.hexists(self.names.open, id))

    def all(self) -> list[Store]:
        pipe = self._client.pipeline(transaction=True)  # so that a store that is being sealed is in one of them
        pipe.hgetall(self.names.open)
        pipe.hgetall(self.names.sealed)
        found = pipe.execute()
        return [
            _read(id, info, sealed)
            for sealed, stores in zip((False, True), found, strict=True)
            for id, info in stores.items()
        ]

    def counts(self) -> list[tuple[Store, int]]:
        """Each store, and how many messages it has."""
        stores = self.all()
        return [(store, int(self._client.hlen(self.names.store(store.id)))) for store in stores]

    def fields(self, id: str) -> list[str]:
        return [_text(field) for field in self._client.hkeys(self.names.store(id))]

    def redis_version(self) -> str:
        try:
            return str(self._client.info("server").get("redis_version", ""))
        except ResponseError:
            return ""  # INFO is not allowed

    def acknowledge(self, id: str, fields: Iterable[str]) -> None:
        self._client.hdel(self.names.store(id), *fields)

    def seal(self, id: str) -> None:
        self._call(SEAL, [self.names.open, self.names.sealed], [id])

    def give_back(self, id: str, fields: Iterable[str] | None = None, *, last: bool = False) -> int:
        """Moves all messages, or these, back to where they came from. Returns how many.

        They are fetched next, in their old order; with `last`, after all others.
        """
        key = self.names.store(id)
        if fields is None:
            found: dict[str, Any] = {_text(field): message for field, message in self._client.hgetall(key).items()}
        else:
            wanted = list(fields)
            values = self._client.hmget(key, wanted) if wanted else []
            found = {field: value for field, value in zip(wanted, values, strict=True) if value is not None}
        fields = sorted(found, key=number_of, reverse=not last)
        moved = 0
        for start in range(0, max(1, len(fields)), MOST_AT_ONCE):  # at least once: this deletes an empty store
            args: list[Any] = [id, "LPUSH" if last else "RPUSH"]
            for field in fields[start : start + MOST_AT_ONCE]:
                args += (field, redelivered(found[field]))
            moved += self._call(GIVE_BACK, [key, self.names.sealed], args)
        return moved

    def end(self, id: str) -> int:
        """Seals a store, and gives back everything in it."""
        self.seal(id)
        return self.give_back(id)

    def _call(self, script: Script, keys: list[str], args: list[Any]) -> int:
        try:
            found = self._client.evalsha(script.sha, len(keys), *keys, *args)
        except NoScriptError:
            found = self._client.eval(script.text, len(keys), *keys, *args)
        return int(found)


def new_id() -> str:
    return secrets.token_hex(8)


def number_of(field: str) -> int:
    """The place of a message in the order of fetching."""
    return int(field.partition(":")[0])


def key_of(field: str) -> str:
    """The list a message came from."""
    return field.partition(":")[2]


def redelivered(message: bytes) -> bytes | str:
    """The message with kombu's marks for one that is delivered again. Not done in Lua, whose JSON turns an empty list
    into an object."""
    try:
        payload = loads(message.decode())
        payload["headers"]["redelivered"] = True
        payload["properties"]["delivery_info"]["redelivered"] = True
        return str(dumps(payload))
    except Exception:  # it is not a message of kombu's, and goes back unchanged
        return message


def _read(id: bytes | str, info: bytes | str, sealed: bool) -> Store:
    try:
        known = json.loads(info)
        return Store(_text(id), str(known["worker"]), str(known["name"]), sealed)
    except (ValueError, KeyError, TypeError):
        return Store(_text(id), "", "?", sealed)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value

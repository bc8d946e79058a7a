"""Where the ledger is: the setting, else the broker if it is Redis, else the result backend if it is.

Passwords, databases, TLS and Sentinel options are taken over from where the address comes from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.policy import Settings

_PLAIN = ("redis", "rediss", "redis+socket", "unix", "socket", "valkey", "valkeys")
SCHEMES = (*_PLAIN, "sentinel")

#: Seconds. A call that takes longer is made again; scripts take less than a thousandth of this.
SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 3.0


@dataclass(frozen=True)
class Address:
    """Where the ledger is, and what is needed to connect there."""

    url: str
    source: str
    tls: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The address without secrets."""
        return ";".join(_without_password(part) for part in self.url.split(";"))


def find(app: Celery, settings: Settings) -> Address:
    conf = app.conf
    if settings.redis_url:
        tls, options = {}, {}
        if _scheme(settings.redis_url) == "sentinel":
            tls, options = _tls(conf.broker_use_ssl), conf.broker_transport_options
        return _checked(Address(settings.redis_url, "orchestration_redis_url", tls, options))
    broker = conf.broker_write_url or conf.broker_url or ""
    broker = ";".join(broker) if isinstance(broker, list | tuple) else broker
    if _scheme(broker) in SCHEMES:
        return _checked(Address(broker, "broker_url", _tls(conf.broker_use_ssl), conf.broker_transport_options or {}))
    backend = conf.result_backend if isinstance(conf.result_backend, str) else ""
    if _scheme(backend) in SCHEMES:
        tls = _tls(conf.redis_backend_use_ssl)
        return _checked(Address(backend, "result_backend", tls, conf.result_backend_transport_options or {}))
    raise ConfigurationError(
        "celery_orchestration keeps its state in Redis, but neither broker_url nor result_backend is a Redis address: "
        "set app.conf.orchestration_redis_url = 'redis://host:6379/0' (or CELERY_ORCHESTRATION_REDIS_URL)"
    )


def key_prefix(app: Celery) -> str:
    """kombu's global_keyprefix: teams that share one Redis by prefix expect the ledger to keep to it."""
    options = app.conf.broker_transport_options or {}
    return str(options.get("global_keyprefix", ""))


def connect(address: Address) -> ConnectionPool:
    """The pool of connections for an address. Does not connect yet."""
    common: dict[str, Any] = {
        "socket_timeout": SOCKET_TIMEOUT,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_keepalive": True,
        # Who calls tries again himself, and knows what it means to call twice.
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
    }
    if _scheme(address.url) == "sentinel":
        return _sentinel(address, common)
    # A list of brokers for kombu's failover: the first one holds the ledger, there is only one.
    url = _plain(address.url.split(";")[0])
    if url.startswith("unix://"):
        common.pop("socket_connect_timeout")
        common.pop("socket_keepalive")
    if url.startswith("rediss://"):
        common.update(address.tls)
    elif address.tls:
        url = url.replace("redis://", "rediss://", 1)
        common.update(address.tls)
    try:
        pool: ConnectionPool = redis.ConnectionPool.from_url(url, **common)
    except (ValueError, TypeError) as exc:
        raise _bad(address, str(exc)) from exc
    return pool


def _sentinel(address: Address, common: dict[str, Any]) -> ConnectionPool:
    parts = [urlsplit(part) for part in address.url.split(";")]
    master = address.options.get("master_name")
    if not master:
        raise _bad(address, "a sentinel:// address needs broker_transport_options = {'master_name': '…'}")
    first = parts[0]
    client: dict[str, Any] = {
        **common,
        "password": unquote(first.password) if first.password else None,
        "username": unquote(first.username) if first.username else None,
        "db": int(first.path.strip("/") or 0),
    }
    if address.tls:
        client.update({**address.tls, "ssl": True})
    sentinel = Sentinel(
        [(part.hostname or "localhost", part.port or 26379) for part in parts],
        sentinel_kwargs={
            "socket_timeout": CONNECT_TIMEOUT,
            **address.options.get("sentinel_kwargs", {}),
        },
        **client,
    )
    pool: ConnectionPool = sentinel.master_for(master).connection_pool
    return pool


def _checked(address: Address) -> Address:
    scheme = _scheme(address.url)
    if scheme not in SCHEMES:
        raise _bad(address, f"unknown scheme {scheme!r}, use one of {', '.join(s + '://' for s in SCHEMES)}")
    if scheme == "sentinel":
        return address
    try:
        parts = urlsplit(address.url.split(";")[0])
        parts.port  # noqa: B018  raises on a bad one
        if scheme in ("redis", "rediss") and parts.path.strip("/"):
            int(parts.path.strip("/"))
    except ValueError as exc:
        raise _bad(address, str(exc)) from exc
    return address


def _bad(address: Address, why: str) -> ConfigurationError:
    return ConfigurationError(f"{address.source} {str(address)!r} cannot hold the ledger: {why}")


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else ""


def _plain(url: str) -> str:
    """kombu's spellings of an address in redis-py's."""
    scheme, _, rest = url.partition("://")
    scheme = {"redis+socket": "unix", "socket": "unix", "valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme)
    path, _, query = rest.partition("?")
    if not query:
        return f"{scheme}://{path}"
    options = {{"virtual_host": "db"}.get(key, key): value for key, value in parse_qsl(query)}
    if "ssl_cert_reqs" in options:
        options["ssl_cert_reqs"] = _cert_reqs(options["ssl_cert_reqs"])
    return f"{scheme}://{path}?{urlencode(options)}"


def _tls(options: Any) -> dict[str, Any]:
    if not options or options is True:
        return {}
    tls = {key: value for key, value in dict(options).items() if key.startswith("ssl_")}
    if "ssl_cert_reqs" in tls:
        tls["ssl_cert_reqs"] = _cert_reqs(tls["ssl_cert_reqs"])
    return tls


def _cert_reqs(value: Any) -> Any:
    """Celery's CERT_REQUIRED is redis-py's 'required'; constants of :mod:`ssl` mean the same to both."""
    return value.removeprefix("CERT_").lower() if isinstance(value, str) else value


def _without_password(url: str) -> str:
    head, at, rest = url.rpartition("@")
    if not at:
        return url
    scheme, _, user = head.partition("://")
    name = user.partition(":")[0]
    return f"{scheme}://{name}:**@{rest}"

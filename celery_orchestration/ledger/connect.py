"""Where the ledger is: the setting, else the broker if it is Redis, else the result backend if it is.

Passwords, databases, TLS and Sentinel options are taken over from where the address comes from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery import Celery
from kombu.utils.imports import symbol_by_name
from kombu.utils.url import url_to_parts
from redis.backoff import NoBackoff
from redis.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import Sentinel

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.settings import Settings

_PLAIN: Mapping[str, Any] = {
    "redis": Connection,
    "rediss": SSLConnection,
    "redis+socket": UnixDomainSocketConnection,
    "unix": UnixDomainSocketConnection,
    "socket": UnixDomainSocketConnection,
    "valkey": Connection,
    "valkeys": SSLConnection,
}
SCHEMES = (*_PLAIN, "sentinel")
_SCHEME = r"[\w+]+://"

#: Seconds after which the caller makes a call again. Scripts take less than a thousandth of this.
SOCKET_TIMEOUT = 5.0
CONNECT_TIMEOUT = 3.0

_TCP = {"socket_connect_timeout": CONNECT_TIMEOUT, "socket_keepalive": True}
#: Options of a broker's address that are not about Redis.
_OF_KOMBU = frozenset({"heartbeat", "connect_timeout", "login_method", "failover_strategy", "uri_prefix", "insist"})
#: Options that an address cannot change. Retrying is up to the caller, who knows what calling twice means.
_FIXED = {"retry": Retry(NoBackoff(), 0), "retry_on_timeout": False, "decode_responses": False}


@dataclass(frozen=True, repr=False)  # without a repr, because it has secrets
class Address:
    """Where the ledger is, and what is needed to connect there."""

    url: str
    source: str
    tls: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """The address without secrets."""
        return ";".join(_without_secrets(url) for url in _split(self.url))


def find(app: Celery, settings: Settings) -> Address:
    conf = app.conf
    if settings.redis_url:
        address = Address(settings.redis_url, "orchestration_redis_url")
        if _scheme(settings.redis_url) != "sentinel":
            return address
        return replace(address, tls=_tls(conf.broker_use_ssl), options=conf.broker_transport_options or {})
    if own := _own(conf):
        return own
    raise ConfigurationError(
        "celery_orchestration keeps its state in Redis, but neither broker_url nor result_backend is a Redis address: "
        "set app.conf.orchestration_redis_url = 'redis://host:6379/0' (or CELERY_ORCHESTRATION_REDIS_URL); in tests "
        "without Redis, app.conf.orchestration_mode = 'off' (or CELERY_ORCHESTRATION_MODE) makes jobs plain tasks"
    )


def key_prefix(app: Celery) -> str:
    """The ``global_keyprefix``: teams that share one Redis by prefix expect the ledger to use theirs."""
    own = _own(app.conf)
    prefix = str(own.options.get("global_keyprefix") or "") if own else ""
    if own and own.source == "result_backend" and prefix and not prefix.endswith((":", "_", "-", ".")):
        return f"{prefix}_"  # as Celery's backend does, unlike kombu
    return prefix


def connect(address: Address) -> ConnectionPool:
    """The pool of connections for an address. Does not connect yet."""
    try:
        pool = _sentinel(address) if _scheme(address.url) == "sentinel" else _plain(address)
        pool.connection_class(**pool.connection_kwargs)  # only a connection looks at the options
    except (ValueError, TypeError, RedisError) as exc:
        raise ConfigurationError(f"{address.source} {str(address)!r} cannot hold the ledger: {exc}") from exc
    return pool


def _own(conf: Any) -> Address | None:
    """The Redis that Celery itself works with."""
    broker = conf.broker_write_url or conf.broker_url or ""
    broker = ";".join(broker) if isinstance(broker, list | tuple) else broker
    if _scheme(broker) in SCHEMES:
        return Address(broker, "broker_url", _tls(conf.broker_use_ssl), conf.broker_transport_options or {})
    backend = conf.result_backend if isinstance(conf.result_backend, str) else ""
    if _scheme(backend) in SCHEMES:
        tls = _tls(conf.redis_backend_use_ssl)
        return Address(backend, "result_backend", tls, conf.result_backend_transport_options or {})
    return None


def _plain(address: Address) -> ConnectionPool:
    # In a list of brokers for kombu's failover, the first one holds the ledger: there is only one ledger.
    url = _split(address.url)[0]
    scheme = _scheme(url)
    if scheme not in _PLAIN:
        raise ValueError(f"unknown scheme {scheme!r}, use one of {', '.join(s + '://' for s in SCHEMES)}")
    options, kind = _read(url), _PLAIN[scheme]
    if kind is not UnixDomainSocketConnection:
        options = {**_TCP, **address.tls, **options}
        kind = SSLConnection if _asks_for_tls(options) else kind
    return ConnectionPool(kind, **{"socket_timeout": SOCKET_TIMEOUT, **options, **_FIXED})


def _sentinel(address: Address) -> ConnectionPool:
    master = address.options.get("master_name")
    if not master:
        setting = "result_backend" if address.source == "result_backend" else "broker"
        raise ValueError(f"a sentinel:// address needs {setting}_transport_options = {{'master_name': '…'}}")
    each = [_read(url) for url in _split(address.url) if _scheme(url) == "sentinel"]
    hosts = [(options.pop("host"), options.pop("port")) for options in each]
    options = {**_TCP, **address.tls, **each[0]}
    sentinel = Sentinel(
        hosts,
        min_other_sentinels=address.options.get("min_other_sentinels", 0),
        sentinel_kwargs={"socket_timeout": CONNECT_TIMEOUT, **(address.options.get("sentinel_kwargs") or {})},
        ssl=_asks_for_tls(options),
        **{"socket_timeout": SOCKET_TIMEOUT, **options, **_FIXED},
    )
    pool: ConnectionPool = sentinel.master_for(master).connection_pool
    return pool


def _read(url: str) -> dict[str, Any]:
    """An address as redis-py's options. Errors never show anything that may be part of a password."""
    user_and_password = _cut(url)[1].rpartition("@")[0]
    if not set("/?#").isdisjoint(user_and_password):
        raise ValueError("/ ? # in a user or password must be written as %2F %3F %23, and an @ after them as %40")
    try:
        parts = url_to_parts(url)
    except ValueError:
        raise ValueError("its host or port cannot be read") from None
    options: dict[str, Any] = {"username": parts.username, "password": parts.password}
    if _PLAIN.get(parts.scheme) is UnixDomainSocketConnection:
        options["path"] = f"/{parts.path or ''}"
    else:
        options["host"] = parts.hostname or "localhost"
        options["port"] = parts.port or (26379 if parts.scheme == "sentinel" else 6379)
        options["db"] = int((parts.path or "").strip("/") or 0)
    for name, text in parts.query.items():
        if name in _OF_KOMBU:
            continue
        option = "db" if name == "virtual_host" else name
        try:
            options[option] = _PARSERS.get(option, str)(text)
        except (ValueError, TypeError, ImportError, AttributeError):
            raise ValueError(f"bad value of option {name!r}") from None
    if "credential_provider" in options:  # redis-py accepts only one of both
        del options["username"], options["password"]
    return options


def _split(url: str) -> list[str]:
    """Split a list of addresses. A ``;`` in a password does not end an address."""
    return re.split(rf";(?={_SCHEME})", url.rstrip(";"))


def _cut(url: str) -> tuple[str, str]:
    """Split an address into its scheme with ``://``, and the rest."""
    match = re.match(_SCHEME, url)
    end = match.end() if match else 0
    return url[:end], url[end:]


def _scheme(url: str) -> str:
    return _cut(url)[0].removesuffix("://").lower()


def _tls(options: Any) -> dict[str, Any]:
    if not options or options is True:
        return {}
    tls = {key: value for key, value in dict(options).items() if key.startswith("ssl_")}
    if "ssl_cert_reqs" in tls:
        tls["ssl_cert_reqs"] = _cert_reqs(tls["ssl_cert_reqs"])
    return tls


def _asks_for_tls(options: Mapping[str, Any]) -> bool:
    return any(name.startswith("ssl_") for name in options)


def _cert_reqs(value: Any) -> Any:
    """Celery's CERT_REQUIRED is redis-py's 'required'; constants of :mod:`ssl` mean the same to both."""
    return value.removeprefix("CERT_").lower() if isinstance(value, str) else value


_PARSERS: Mapping[str, Any] = {
    **URL_QUERY_ARGUMENT_PARSERS,
    "ssl_cert_reqs": _cert_reqs,
    "credential_provider": lambda name: symbol_by_name(name)(),
}


def _without_secrets(url: str) -> str:
    """The address without anything that may be part of a password, even of one that should have been escaped."""
    scheme, rest = _cut(url)
    secret, at, place = rest.rpartition("@")
    if "?" in secret:  # the @ may be in an option as well
        return f"{scheme}**"
    place = place.partition("?")[0]
    user, colon, _ = secret.partition(":")
    return f"{scheme}{user if colon else ''}:**@{place}" if at else f"{scheme}{place}"

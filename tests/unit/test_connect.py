"""Where the ledger is: which address is chosen, which options come from it, and the errors if it cannot be used.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import ssl
import traceback
from collections.abc import Mapping
from typing import Any

import pytest
from celery import Celery
from redis import UsernamePasswordCredentialProvider
from redis.connection import Connection, ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.app import read_settings
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Ledger
from celery_orchestration.ledger.connect import SOCKET_TIMEOUT, Address, connect, find

AMQP = "amqp://guest:guest@rabbit//"


def new_app(**conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update({"broker_url": AMQP, "result_backend": None, **conf})
    return app


def found(**conf: Any) -> Address:
    app = new_app(**conf)
    return find(app, read_settings(app))


def pool_of(**conf: Any) -> ConnectionPool:
    return connect(found(**conf))


def kwargs_of(**conf: Any) -> Mapping[str, Any]:
    return pool_of(**conf).connection_kwargs


def refusal(**conf: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        pool_of(**conf)
    return str(caught.value)


# -- which address


@pytest.mark.parametrize(
    ("conf", "url", "source"),
    [
        ({"broker_url": "redis://b", "result_backend": "redis://r"}, "redis://b", "broker_url"),
        ({"result_backend": "redis://r"}, "redis://r", "result_backend"),
        (
            {"broker_url": "redis://b", "result_backend": "redis://r", "orchestration_redis_url": "redis://o"},
            "redis://o",
            "orchestration_redis_url",
        ),
        ({"broker_url": "sqs://", "result_backend": "rediss://r"}, "rediss://r", "result_backend"),
        ({"broker_url": "redis://b", "result_backend": "db+sqlite:///x"}, "redis://b", "broker_url"),
        ({"broker_url": AMQP, "broker_write_url": "redis://w"}, "redis://w", "broker_url"),
        ({"broker_url": ["redis://b1", "redis://b2"]}, "redis://b1;redis://b2", "broker_url"),
        ({"broker_url": f"{AMQP};redis://b", "result_backend": "redis://r"}, "redis://r", "result_backend"),
        ({"broker_url": "REDIS://b"}, "REDIS://b", "broker_url"),
        ({"broker_url": "sentinel://s:1", "result_backend": "redis://r"}, "sentinel://s:1", "broker_url"),
    ],
)
def test_the_ledger_is_where_the_setting_says_else_the_broker_else_the_backend(conf, url, source):
    address = found(**conf)
    assert (address.url, address.source) == (url, source)


def test_the_environment_wins(monkeypatch):
    monkeypatch.setenv("CELERY_ORCHESTRATION_REDIS_URL", "redis://env")
    assert found(broker_url="redis://b", orchestration_redis_url="redis://o").url == "redis://env"


def test_a_broker_from_the_environment_is_the_broker(monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://env")
    assert found(broker_url="redis://b").url == "redis://env"


@pytest.mark.parametrize("backend", [None, "db+sqlite:///x", "cache+memory://", "rpc://"])
def test_without_any_redis_it_says_what_to_set(backend):
    message = refusal(result_backend=backend)
    assert "neither broker_url nor result_backend is a Redis address" in message
    assert "in tests without Redis, app.conf.orchestration_mode = 'off'" in message
    assert "orchestration_redis_url = 'redis://host:6379/0'" in message
    assert "CELERY_ORCHESTRATION_REDIS_URL" in message
    assert "\n" not in message


def test_finding_and_connecting_ask_no_server():
    pool_of(broker_url="redis://nowhere.invalid:1/0")
    pool_of(broker_url="sentinel://nowhere.invalid:1", broker_transport_options={"master_name": "m"})


# -- what is taken over


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h", {"host": "h", "port": 6379, "db": 0, "password": None}),
        ("redis://h:7000/3", {"host": "h", "port": 7000, "db": 3}),
        ("redis://h/3?db=4", {"db": 4}),
        ("redis://:secret@h", {"password": "secret", "username": None}),
        ("redis://user:p%40ss%2Fw%3Aord%23%3B@h", {"username": "user", "password": "p@ss/w:ord#;"}),
        ("redis://:%C3%A9%25@h", {"password": "\u00e9%"}),
        ("redis://[::1]:7000/1", {"host": "::1", "port": 7000, "db": 1}),
        ("redis://first:1/2;redis://second:3/4", {"host": "first", "port": 1, "db": 2}),
        ("valkey://h/1", {"host": "h", "db": 1}),
        ("REDIS://h/1", {"host": "h", "db": 1}),
        ("redis://h/0;", {"host": "h", "db": 0}),
        ("redis://:se;cret@h", {"password": "se;cret"}),
        ("redis://h?password=100%2525", {"password": "100%25"}),
        ("redis://h?virtual_host=3", {"db": 3}),
    ],
)
def test_the_address_gives_host_database_and_password(url, expected):
    kwargs = kwargs_of(broker_url=url)
    assert {key: kwargs.get(key) for key in expected} == expected
    assert pool_of(broker_url=url).connection_class is Connection


@pytest.mark.parametrize("scheme", ["redis+socket", "unix", "socket"])
@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("/tmp/redis.sock", {"path": "/tmp/redis.sock", "db": None}),
        ("/tmp/a%40b.sock", {"path": "/tmp/a@b.sock"}),
        ("/tmp/redis.sock?virtual_host=3", {"db": 3}),
        ("/tmp/redis.sock?db=3", {"db": 3}),
        (":s%40cret@/tmp/redis.sock", {"path": "/tmp/redis.sock", "password": "s@cret"}),
    ],
)
def test_the_address_may_be_a_unix_socket(scheme, rest, expected):
    pool = pool_of(orchestration_redis_url=f"{scheme}://{rest}")
    assert pool.connection_class is UnixDomainSocketConnection
    assert {key: pool.connection_kwargs.get(key) for key in expected} == expected
    pool.connection_class(**pool.connection_kwargs)  # every option fits


REQUIRED, NONE = ("required", ssl.CERT_REQUIRED), ("none", ssl.CERT_NONE)


@pytest.mark.parametrize(
    ("conf", "reqs", "ca"),
    [
        ({"broker_url": "rediss://h"}, REQUIRED, None),
        ({"broker_url": "valkeys://h"}, REQUIRED, None),
        ({"broker_url": "rediss://h?ssl_cert_reqs=CERT_NONE"}, NONE, None),
        ({"broker_url": "rediss://h?ssl_cert_reqs=none"}, NONE, None),
        ({"broker_url": "rediss://h?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=/ca.pem"}, REQUIRED, "/ca.pem"),
        (
            {
                "broker_url": "rediss://h",
                "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": "/ca.pem"},
            },
            REQUIRED,
            "/ca.pem",
        ),
        ({"broker_url": "redis://h", "broker_use_ssl": {"ssl_cert_reqs": "none"}}, NONE, None),
        ({"broker_url": "REDISS://h"}, REQUIRED, None),
        ({"broker_url": "redis://h?ssl_ca_certs=/ca.pem"}, REQUIRED, "/ca.pem"),
        (
            {"result_backend": "rediss://h", "redis_backend_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE}},
            NONE,
            None,
        ),
        (
            {"result_backend": "redis://h", "redis_backend_use_ssl": {"ssl_ca_certs": "/ca.pem"}},
            REQUIRED,
            "/ca.pem",
        ),
        ({"orchestration_redis_url": "rediss://h?ssl_ca_certs=/ca.pem"}, REQUIRED, "/ca.pem"),
    ],
)
def test_tls_options_are_taken_over(conf, reqs, ca):
    pool = pool_of(**conf)
    assert pool.connection_class is SSLConnection
    connection = pool.connection_class(**pool.connection_kwargs)
    assert connection.cert_reqs in reqs
    assert connection.ca_certs == ca


def test_tls_options_of_another_server_are_ignored():
    """A RabbitMQ with TLS, and a Redis without."""
    conf = {"broker_use_ssl": {"ca_certs": "/ca.pem"}, "result_backend": "redis://h"}
    assert pool_of(**conf).connection_class is Connection
    assert pool_of(broker_url="redis://h", broker_use_ssl=True).connection_class is Connection
    pool_of(broker_url="redis+socket:///tmp/s", broker_use_ssl={"ssl_ca_certs": "/ca.pem"})


def test_options_of_kombu_in_the_broker_address_are_ignored():
    options = kwargs_of(broker_url="redis://h/1?heartbeat=10&health_check_interval=7")
    assert "heartbeat" not in options
    assert options["health_check_interval"] == 7


def test_an_address_cannot_change_options_that_the_ledger_relies_on():
    kwargs = kwargs_of(result_backend="redis://h?decode_responses=True&retry_on_timeout=True&socket_timeout=9")
    assert (kwargs["decode_responses"], kwargs["retry_on_timeout"], kwargs["socket_timeout"]) == (False, False, 9)


def test_a_credential_provider_takes_the_place_of_a_password():
    pool = pool_of(broker_url="redis://user:secret@h?credential_provider=redis.UsernamePasswordCredentialProvider")
    connection = pool.connection_class(**pool.connection_kwargs)
    assert isinstance(connection.credential_provider, UsernamePasswordCredentialProvider)


def test_sentinel_options_are_taken_over():
    pool = pool_of(
        broker_url="sentinel://user:p%40ss@s1:26380/2;sentinel://s2",
        broker_transport_options={
            "master_name": "mymaster",
            "min_other_sentinels": 1,
            "sentinel_kwargs": {"password": "sentinels"},
        },
    )
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.service_name == "mymaster"
    assert pool.is_master
    kwargs = pool.connection_kwargs
    assert (kwargs["username"], kwargs["password"], kwargs["db"]) == ("user", "p@ss", 2)
    assert pool.sentinel_manager.min_other_sentinels == 1
    sentinels = [client.connection_pool.connection_kwargs for client in pool.sentinel_manager.sentinels]
    assert [(s["host"], s["port"], s["password"]) for s in sentinels] == [
        ("s1", 26380, "sentinels"),
        ("s2", 26379, "sentinels"),
    ]


def test_sentinel_options_of_the_backend_are_taken_over():
    pool = pool_of(
        result_backend="sentinel://s1;sentinel://s2",
        result_backend_transport_options={"master_name": "results"},
        broker_transport_options={"master_name": "other"},
    )
    assert pool.service_name == "results"


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "sentinel://s1", "broker_use_ssl": {"ssl_cert_reqs": "CERT_NONE"}},
        {"broker_url": "sentinel://s1?ssl_cert_reqs=CERT_NONE"},
    ],
)
def test_a_sentinel_may_use_tls(conf):
    pool = pool_of(**conf, broker_transport_options={"master_name": "m"})
    assert pool.connection_class is SentinelManagedSSLConnection
    assert pool.connection_class(**pool.connection_kwargs).cert_reqs in NONE


def test_other_addresses_in_a_list_of_sentinels_are_ignored():
    pool = pool_of(broker_url="sentinel://s1;redis://h;", broker_transport_options={"master_name": "m"})
    assert [s.connection_pool.connection_kwargs["host"] for s in pool.sentinel_manager.sentinels] == ["s1"]


# -- keys


def prefix(**conf: Any) -> str:
    app = new_app(**conf)
    return Ledger.of(app, read_settings(app)).prefix


def test_keys_start_with_the_namespace():
    assert prefix(broker_url="redis://b") == "{shop}:"
    assert prefix(broker_url="redis://b", orchestration_namespace="mine") == "{mine}:"


def test_a_global_keyprefix_comes_before_every_key():
    assert prefix(broker_url="redis://b", broker_transport_options={"global_keyprefix": "team-"}) == "team-{shop}:"


@pytest.mark.parametrize(("written", "as_celery_uses_it"), [("team-", "team-"), ("team", "team_"), ("", "")])
def test_a_global_keyprefix_of_the_backend_comes_before_every_key(written, as_celery_uses_it):
    conf = {"result_backend": "redis://r", "result_backend_transport_options": {"global_keyprefix": written}}
    assert prefix(**conf) == as_celery_uses_it + "{shop}:"
    assert prefix(**conf, broker_url="redis://b") == "{shop}:"


# -- errors


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://h/0", "unknown scheme 'http'"),
        ("redis//h", "unknown scheme ''"),
        ("h:6379", "unknown scheme ''"),
        ("redis://h:port/0", "port"),
        ("redis://h:99999", "port"),
        ("redis://[::1/0", "host"),
        ("redis://a:1;b:2", "port"),
        ("redis://h/zero", "zero"),
        ("redis://h/0?socket_timeout=long", "socket_timeout"),
        ("redis+socket:///tmp/s?virtual_host=zero", "virtual_host"),
        ("rediss://h/0?ssl_cert_reqs=maybe", "maybe"),
        ("redis://h/0?credential_provider=no.such", "credential_provider"),
        ("redis://h/0?colour=red", "colour"),
        ("redis+socket:///tmp/s?colour=red", "colour"),
    ],
)
def test_a_bad_address_is_one_line_that_names_the_setting(url, says):
    message = refusal(orchestration_redis_url=url)
    assert message.startswith("orchestration_redis_url ")
    assert "cannot hold the ledger" in message
    assert says in message
    assert "\n" not in message


def test_a_bad_broker_address_is_reported_as_the_broker_address():
    assert refusal(broker_url="redis://h/zero").startswith("broker_url 'redis://h/zero'")


def test_a_sentinel_without_a_master_name_is_refused_with_the_setting_to_use():
    assert "broker_transport_options = {'master_name': '…'}" in refusal(broker_url="sentinel://s1")


def test_a_backend_sentinel_without_a_master_name_is_refused_with_the_setting_to_use():
    assert "result_backend_transport_options = {'master_name': '…'}" in refusal(result_backend="sentinel://s1")


@pytest.mark.parametrize(
    "url", ["sentinel://s1:port", "sentinel://s1/zero", "sentinel://s1:1;s2:1", "sentinel://s1?colour=red"]
)
def test_a_bad_sentinel_address_is_one_line(url):
    message = refusal(broker_url=url, broker_transport_options={"master_name": "m"})
    assert message.startswith("broker_url ")
    assert "\n" not in message


def test_bad_options_of_sentinels_are_one_line():
    options = {"master_name": "m", "sentinel_kwargs": {"colour": "red"}}
    assert "colour" in refusal(broker_url="sentinel://s1", broker_transport_options=options)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@h/0",
        "redis://user:secret@h/0",
        "redis://user:sec@ret@h/0",
        "sentinel://:secret@s1;sentinel://:secret@s2",
        "redis+socket://:secret@/tmp/sock",
    ],
)
def test_an_address_is_shown_without_its_password(url):
    address = Address(url, "broker_url")
    assert "secret" not in repr(address)
    shown = str(address)
    assert "sec" not in shown
    assert "ret" not in shown
    assert "**" in shown


@pytest.mark.parametrize(
    "url", ["redis://h/0?password=secret", "rediss://h/0?ssl_password=sec@ret", "redis://user:x@h/0?password=secret"]
)
def test_a_password_among_the_options_is_not_shown(url):
    shown = str(Address(url, "broker_url"))
    assert "sec" not in shown
    assert "ret" not in shown


def test_the_error_about_a_bad_address_hides_its_password():
    assert "secret" not in refusal(orchestration_redis_url="redis://:secret@h/zero")
    assert "secret" not in refusal(orchestration_redis_url="redis://:secret@h:port/0")
    assert "secret" not in refusal(broker_url="sentinel://:secret@s1")


@pytest.mark.parametrize("scheme", ["redis", "redis+socket", "sentinel"])
@pytest.mark.parametrize(
    "password", ["SEC/RET", "SEC#RET", "SEC?RET", "1/SEC@RET", "1#SEC", "1?SEC", "[SEC]RET", "SEC\u2100RET"]
)
def test_a_password_that_should_have_been_escaped_is_not_shown(scheme, password):
    url = f"{scheme}://:{password}@h:6379/0"
    with pytest.raises(ConfigurationError) as caught:
        pool_of(orchestration_redis_url=url, broker_transport_options={"master_name": "m"})
    shown = "".join(traceback.format_exception(caught.value))  # with its causes
    assert "SEC" not in shown
    assert "RET" not in shown


@pytest.mark.parametrize("url", ["redis//:secret@h/0", ":secret@h", "secret@h", "redis://secret@h:port"])
def test_a_password_in_an_invalid_address_is_not_shown(url):
    assert "secret" not in refusal(orchestration_redis_url=url)


def test_settings_do_not_show_the_address_when_printed():
    assert "secret" not in repr(Settings(redis_url="redis://:secret@h"))


@pytest.mark.parametrize("url", ["redis://h", "rediss://h", "redis+socket:///run/redis.sock", "sentinel://h"])
def test_the_reply_timeout_is_the_same_with_every_version_of_redis_py(url):
    """Version 8 limits replies to 5 s by default. Our calls are scripts, which never block."""
    kwargs = kwargs_of(broker_url=url, broker_transport_options={"master_name": "m"})
    assert kwargs["socket_timeout"] == SOCKET_TIMEOUT

"""A job, from the call to its result, over every kind of address that a Redis can have."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis

from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.processes import ManagedProcess, free_port
from support.servers import RedisServer, redis_binaries, redis_binary
from support.wait import until
from support.workers import Broker, WorkerProcess

CONFIGURED = "support.apps.configured"

StartRedis = Callable[..., RedisServer]
EndToEnd = Callable[..., None]


def missing(what: str) -> None:
    """As with a missing RabbitMQ: skipped on a laptop, a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what}, and CI is set")
    pytest.skip(what)


@pytest.fixture
def end_to_end(
    worker: Callable[..., WorkerProcess], load_app: Callable[..., ModuleType], history: Any
) -> Callable[..., None]:
    """Two runs of an exclusive job, one of which has to wait; `ledger` is the database that must have the ledger."""

    def run(server: RedisServer, broker_url: str, backend_url: str, ledger: redis.Redis, **conf: Any) -> None:
        env = {"TEST_CONF": json.dumps(conf)}
        broker = Broker("redis", broker_url, backend_url, broker_url, server)
        worker(broker, CONFIGURED, env=env)
        jobs = load_app(broker, CONFIGURED, env=env)
        results = [jobs.exclusive.delay(0.2, note=n) for n in range(2)]
        assert sorted(result.get(timeout=30) for result in results) == [0, 1]
        first, second = history.spans()
        assert first.end.monotonic < second.start.monotonic
        found = Orchestration(jobs.app)
        try:
            # The result is there before the ledger hears of it.
            until(lambda: [w.state for w in found.status().workers] == ["idle"], message="the worker is idle")
        finally:
            found.close()
        assert ledger.hget(key_of("{configured}:", "ledger"), "owner") == "configured"

    return run


def test_a_ledger_with_a_password_is_reached(redis_factory: StartRedis, end_to_end: EndToEnd) -> None:
    password = "p@ss:w/rd#;%"
    server = redis_factory(requirepass=password)
    address = f"redis://:p%40ss%3Aw%2Frd%23%3B%25@127.0.0.1:{server.port}"
    end_to_end(server, f"{address}/2", f"{address}/1", server.client(2, password=password))


def test_a_wrong_password_is_reported_without_it(redis_factory: StartRedis) -> None:
    server = redis_factory(requirepass="right")
    with pytest.raises(Exception, match=r"(?i)auth|password") as caught:
        _status(f"redis://:wrong@127.0.0.1:{server.port}/0")
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    assert f"redis://:**@127.0.0.1:{server.port}/0" in str(caught.value)


def _status(url: str) -> object:
    from celery import Celery  # noqa: PLC0415

    return Orchestration(Celery("shop", broker=url, set_as_current=False)).status()


def test_a_ledger_on_a_unix_socket_is_reached(redis_factory: StartRedis, end_to_end: EndToEnd) -> None:
    # The path of a socket may have about a hundred characters, and a test's directory often has more.
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        path = f"{directory}/s"
        server = redis_factory(unixsocket=path)
        url = f"redis+socket://{path}?virtual_host="
        end_to_end(server, f"{url}3", f"{url}1", server.client(3))
        assert {client["addr"] for client in server.client().client_list()} & {f"{path}:0"}


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate for localhost, signed by an authority of our own."""
    if shutil.which("openssl") is None:
        missing("openssl is not installed")
    at = tmp_path_factory.mktemp("certificates")
    key, ca = str(at / "key.pem"), str(at / "ca.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", key, "-out", ca], check=True, capture_output=True)
    return {"key": key, "ca": ca}


def knows_tls(binary: str) -> bool:
    """A Redis without TLS does not know the directive; one with TLS refuses the value."""
    said = subprocess.run([binary, "--tls-port", "none"], check=False, capture_output=True, text=True, timeout=10)
    return "Bad directive" not in said.stdout + said.stderr


@pytest.fixture
def tls(redis_factory: StartRedis, certificates: dict[str, str]) -> tuple[RedisServer, int]:
    """A Redis with TLS, and the port for it."""
    binary = next(filter(knows_tls, [redis_binary(), *redis_binaries().values()]), None)
    if binary is None:
        missing("no redis-server here was built with TLS: Debian's package was")
    port = free_port()
    server = redis_factory(
        binary=binary,
        tls_port=port,
        tls_cert_file=certificates["ca"],
        tls_key_file=certificates["key"],
        tls_ca_cert_file=certificates["ca"],
        tls_auth_clients="no",
    )
    return server, port


def test_the_address_may_ask_for_tls(
    tls: tuple[RedisServer, int], certificates: dict[str, str], end_to_end: EndToEnd
) -> None:
    server, port = tls
    options = f"ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs={certificates['ca']}"
    url = f"rediss://localhost:{port}"
    end_to_end(server, f"{url}/0?{options}", f"{url}/1?{options}", server.client())


def test_the_settings_may_ask_for_tls(
    tls: tuple[RedisServer, int], certificates: dict[str, str], end_to_end: EndToEnd
) -> None:
    server, port = tls
    options = {"ssl_cert_reqs": "required", "ssl_ca_certs": certificates["ca"]}
    url = f"rediss://localhost:{port}"
    end_to_end(server, f"{url}/0", f"{url}/1", server.client(), broker_use_ssl=options, redis_backend_use_ssl=options)


def test_a_certificate_that_nobody_signed_is_refused(tls: tuple[RedisServer, int]) -> None:
    _, port = tls
    with pytest.raises(Exception, match=r"(?i)certificate"):
        _status(f"rediss://localhost:{port}/0")


# -- Sentinel


@pytest.fixture
def sentinel(redis_server: RedisServer, tmp_path: Path, reported: Callable[..., None]) -> Iterator[int]:
    """The port of a Sentinel that monitors this test's Redis as ``main``."""
    port = free_port()
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {redis_server.port} 1\n"
    )
    process = ManagedProcess(
        "sentinel",
        [redis_binary(), str(configuration), "--sentinel"],
        env=dict(os.environ),
        directory=tmp_path,
    )
    reported(process)
    try:
        process.start()
        with redis.Redis(port=port, decode_responses=True) as client:

            def knows_the_master() -> bool:
                try:
                    return client.sentinel_master("main")["flags"] == "master"
                except redis.ConnectionError:
                    return False

            until(knows_the_master, message="the Sentinel answers")
        yield port
    finally:
        process.cleanup()


def test_the_master_of_a_sentinel_is_reached(redis_server: RedisServer, sentinel: int, end_to_end: EndToEnd) -> None:
    options = {"master_name": "main"}
    url = f"sentinel://127.0.0.1:{sentinel}"
    end_to_end(
        redis_server,
        f"{url}/0;{url}/0",
        f"{url}/1",
        redis_server.client(),
        broker_transport_options=options,
        result_backend_transport_options=options,
    )

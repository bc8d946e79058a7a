"""The fixtures of all tests. Their parts are in ``support``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import psutil
import pytest
from pytest_celery import CeleryTestSetup, RabbitMQContainer, RedisContainer, RedisTestBackend

from support import nodes, processes
from support.history import History
from support.processes import ManagedProcess
from support.proxy import DroppingProxy
from support.schedulers import ScheduleStage
from support.servers import RabbitServer, RedisServer
from support.stage import Stage
from support.workers import Broker, WorkerProcess, celery_state_of_its_own, close_app, loaded_app

PLAIN = "support.apps.plain"

# The processes of a test, for the report if it fails.
_processes = pytest.StashKey[list[ManagedProcess]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds; left out by `make test-fast`")
    config.addinivalue_line("markers", "promises: real leases of 30 s; run by `make promises`, left out by `make test`")
    nodes.check_kind_of_nodes()
    # On a busy machine any example may take long.
    hypothesis.settings.register_profile("project", deadline=None)
    hypothesis.settings.load_profile("project")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for process in item.stash.get(_processes, []):
            report.sections.append((f"log of {process.name} (its end)", process.tail()))
    return report


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_over() -> Iterator[None]:
    """After everything else: no process that the tests started still exists."""
    yield
    left = processes.survivors()
    processes.close_guard()
    assert not left, "\n".join(["left over:", *left])


@pytest.fixture(autouse=True)
def _celery_state() -> Iterator[None]:
    """Tasks and apps that a test defines do not exist for the next test."""
    with celery_state_of_its_own():
        yield


@pytest.fixture
def reported(request: pytest.FixtureRequest) -> Callable[[ManagedProcess], None]:
    """Shows the end of a process's log if the test fails."""
    return request.node.stash.setdefault(_processes, []).append


# -- servers


@pytest.fixture
def redis_factory(tmp_path: Path, reported: Callable[[ManagedProcess], None]) -> Iterator[Callable[..., RedisServer]]:
    """``redis_factory(appendonly=True, maxmemory="10mb")``: servers of this test, started."""
    with contextlib.ExitStack() as cleanups:

        def start(**options: Any) -> RedisServer:
            server = RedisServer(tmp_path, **options)
            cleanups.callback(server.cleanup)
            reported(server.process)
            return server.start()

        yield start


@pytest.fixture
def redis_server(redis_factory: Callable[..., RedisServer]) -> RedisServer:
    """An empty Redis of this test's own."""
    return redis_factory()


@pytest.fixture(scope="session")
def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """The run's RabbitMQ, started by the first test that needs it."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"))
    try:
        yield server.start()
    finally:
        server.cleanup()


@pytest.fixture
def rabbit_vhost(rabbit_server: RabbitServer) -> Iterator[str]:
    """A fresh virtual host. A server that the test killed is restarted afterwards."""
    with rabbit_server.fresh_vhost() as vhost:
        yield vhost


@pytest.fixture
def rabbit_url(rabbit_server: RabbitServer, rabbit_vhost: str) -> str:
    return rabbit_server.url(rabbit_vhost)


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[DroppingProxy]:
    """A proxy in front of this test's Redis. It passes everything until a test sets a fault."""
    with DroppingProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def redis_broker(redis_server: RedisServer) -> Broker:
    """Redis for messages, results and ledger."""
    return Broker(
        name="redis",
        broker_url=redis_server.url(0),
        backend_url=redis_server.url(1),
        ledger_url=redis_server.url(0),
        redis=redis_server,
    )


@pytest.fixture
def rabbitmq_broker(redis_server: RedisServer, rabbit_server: RabbitServer, rabbit_url: str) -> Broker:
    """RabbitMQ for the messages; results and ledger are in Redis."""
    return Broker(
        name="rabbitmq",
        broker_url=rabbit_url,
        backend_url=redis_server.url(1),
        ledger_url=redis_server.url(1),
        redis=redis_server,
        rabbit=rabbit_server,
    )


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """The test runs once on each."""
    return request.getfixturevalue(f"{request.param}_broker")


# -- workers and clients


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """The record of this test's workers, and of tasks that run in the test's own process (eager ones)."""
    history = History(tmp_path / "history.jsonl")
    for name, value in history.env().items():
        monkeypatch.setenv(name, value)
    return history


@pytest.fixture
def worker(
    tmp_path: Path, history: History, reported: Callable[[ManagedProcess], None]
) -> Iterator[Callable[..., WorkerProcess]]:
    """``worker(broker, app="support.apps.plain", pool="threads", concurrency=4, ...)``: a worker that is started and
    ready. With ``ready=False`` it is only started. All workers end with the test."""
    with contextlib.ExitStack() as cleanups:

        def start(
            broker: Broker,
            app: str = PLAIN,
            *,
            ready: bool = True,
            env: dict[str, str] | None = None,
            **options: Any,
        ) -> WorkerProcess:
            process = WorkerProcess(
                app,
                broker_url=options.pop("broker_url", broker.broker_url),
                backend_url=options.pop("backend_url", broker.backend_url),
                directory=tmp_path,
                env={**history.env(), **(env or {})},
                **options,
            )
            cleanups.callback(process.cleanup)
            reported(process)
            process.start()
            if ready:
                process.wait_ready()
            return process

        yield start


@pytest.fixture
def load_app(history: History) -> Iterator[Callable[..., ModuleType]]:
    """``load_app(broker, "support.apps.plain").add.delay(1, 2)``: an app module as its clients have it."""
    with contextlib.ExitStack() as cleanups:

        def load(broker: Broker, module: str = PLAIN, env: dict[str, str] | None = None) -> ModuleType:
            return cleanups.enter_context(loaded_app(module, broker, {**history.env(), **(env or {})}))

        yield load


@pytest.fixture
def stage_on(
    worker: Callable[..., WorkerProcess], load_app: Callable[..., ModuleType], history: History, tmp_path: Path
) -> Callable[..., Stage]:
    """``stage_on(broker, module="support.apps.faults", env={...})``"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return lambda broker, *args, **options: Stage(broker, worker, load_app, history, scratch, *args, **options)


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    """On Redis, for tests that do not depend on the broker."""
    return stage_on(redis_broker)


@pytest.fixture
def schedule_on(
    worker: Callable[..., WorkerProcess],
    load_app: Callable[..., ModuleType],
    history: History,
    tmp_path: Path,
    reported: Callable[[ManagedProcess], None],
) -> Iterator[Callable[..., ScheduleStage]]:
    """``schedule_on(broker, jobs={"a": {"interval_seconds": 1}}, env={...})``: see ``support.apps.scheduled``"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with contextlib.ExitStack() as cleanups:

        def make(broker: Broker, *, env: dict[str, str] | None = None, **schedule: Any) -> ScheduleStage:
            stage = ScheduleStage(
                broker, worker, load_app, history, scratch, directory=tmp_path, schedule=schedule, env=env or {}
            )
            return cleanups.enter_context(stage.ending(reported))

        yield make


@pytest.fixture
def scheduled(schedule_on: Callable[..., ScheduleStage], redis_broker: Broker) -> Callable[..., ScheduleStage]:
    """``scheduled(jobs={...})``: on Redis, for tests that do not depend on the broker."""
    return partial(schedule_on, redis_broker)


# -- pytest-celery, on processes


@pytest.fixture
def default_redis_broker(redis_factory: Callable[..., RedisServer]) -> RedisContainer:
    return nodes.ProcessRedisContainer(redis_factory(name="redis-broker"))


@pytest.fixture
def default_redis_backend(redis_factory: Callable[..., RedisServer]) -> RedisContainer:
    return nodes.ProcessRedisContainer(redis_factory(name="redis-backend"))


@pytest.fixture
def default_rabbitmq_broker(rabbit_server: RabbitServer, rabbit_vhost: str) -> RabbitMQContainer:
    return nodes.ProcessRabbitMQContainer(rabbit_server, rabbit_vhost)


@pytest.fixture(params=["celery_redis_broker", "celery_rabbitmq_broker"], ids=["redis", "rabbitmq"])
def celery_broker(request: pytest.FixtureRequest) -> Any:
    """pytest-celery's own fixture is parametrised over a set, whose order differs between runs."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def celery_redis_backend(default_redis_backend: RedisContainer) -> RedisTestBackend:
    return nodes.ProcessRedisBackend(default_redis_backend)


@pytest.fixture
def default_worker_cls() -> type[nodes.ProcessTestWorker]:
    return nodes.ProcessTestWorker


@pytest.fixture
def default_worker_container_cls() -> type[nodes.ProcessWorkerContainer]:
    return nodes.ProcessWorkerContainer


@pytest.fixture
def new_worker_container(
    default_worker_container_cls: type[nodes.ProcessWorkerContainer],
    default_worker_command: list[str],
    default_worker_env: dict[str, str],
    default_worker_initial_content: dict[str, bytes],
    tmp_path: Path,
) -> Callable[[], nodes.ProcessWorkerContainer]:
    """Makes the containers that pytest-celery would get from Docker."""
    return partial(
        default_worker_container_cls.create,
        default_worker_command,
        default_worker_env,
        default_worker_initial_content,
        tmp_path,
    )


@pytest.fixture
def worker_node(
    new_worker_container: Callable[[], nodes.ProcessWorkerContainer],
    history: History,
    reported: Callable[[ManagedProcess], None],
) -> Iterator[Callable[[], nodes.ProcessWorkerContainer]]:
    """``worker_node()``: another worker container, for clusters of more than one."""
    with contextlib.ExitStack() as cleanups:

        def start() -> nodes.ProcessWorkerContainer:
            container = new_worker_container()
            container.process.env.update(history.env())
            cleanups.callback(container.process.cleanup)
            reported(container.process)
            container.process.start()
            container.process.wait_ready()
            return container

        yield start


@pytest.fixture
def default_worker_container(
    worker_node: Callable[[], nodes.ProcessWorkerContainer],
) -> nodes.ProcessWorkerContainer:
    return worker_node()


@pytest.fixture
def celery_setup(celery_setup: CeleryTestSetup) -> Iterator[CeleryTestSetup]:
    """Makes its app the current one: pytest-celery creates others while it writes the worker's files."""
    celery_setup.app.set_current()
    yield celery_setup
    close_app(celery_setup.app)


def _started_with(name: str, value: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(name, "").startswith(value) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture
def started_with() -> Callable[[str, str], list[psutil.Process]]:
    """Living processes that have this text in their environment, and their descendants."""
    return _started_with


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """The directory of an example's files. It identifies all processes of the example, which are ended after the
    test."""
    yield tmp_path
    for process in _started_with("TMPDIR", str(tmp_path)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()

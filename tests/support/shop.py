"""A whole shop (``support.apps.shop``): Redis, a worker, a scheduler and dashboards, for tests of the dashboard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from celery_orchestration import Orchestration
from celery_orchestration.errors import UnknownRun
from support.processes import free_port
from support.schedulers import SchedulerProcess
from support.servers import RedisServer
from support.wait import until
from support.workers import Broker, CeleryProcess, WorkerProcess, celery_command, loaded_app

APP = "support.apps.shop"
#: Runs are short, and the schedule fires after half an hour at the earliest: tests ask for runs themselves.
QUIET = {"TEST_PACE": "20", "TEST_INTERVALS": "600"}


class Shop:
    def __init__(self, directory: Path, module: ModuleType, broker: Broker, env: dict[str, str]) -> None:
        self.directory, self.module, self.broker, self.env = directory, module, broker, env
        self.scratch = Path(env["TEST_SCRATCH"])
        self.client = Orchestration(module.app)
        #: The address of the first dashboard.
        self.address = ""
        self.dashboards: list[CeleryProcess] = []
        self._cleanups = contextlib.ExitStack()

    def name(self, job: str) -> str:
        return f"{APP}.{job}"

    def _start(self, process: Any) -> Any:
        self._cleanups.callback(process.cleanup)
        process.start()
        process.wait_ready()
        return process

    def _place(self) -> dict[str, Any]:
        urls = {"broker_url": self.broker.broker_url, "backend_url": self.broker.backend_url}
        return {**urls, "directory": self.directory, "env": self.env}

    def worker(self, **options: Any) -> WorkerProcess:
        found: WorkerProcess = self._start(WorkerProcess(APP, **{"concurrency": 4, **options}, **self._place()))
        return found

    def beat(self) -> SchedulerProcess:
        found: SchedulerProcess = self._start(SchedulerProcess(APP, **self._place()))
        found.wait_settled()
        return found

    def dashboard(self, *options: str, env: dict[str, str] | None = None) -> str:
        """Its address, without a slash at the end."""
        port = free_port()
        command = celery_command(APP, "orchestration", "dashboard", "--port", str(port), *options)
        process = CeleryProcess(
            f"dashboard-{port}",
            command,
            directory=self.directory,
            env={**self.broker.env(), **self.env, **(env or {})},
            ready_prompt="The dashboard is at ",
        )
        self._start(process)
        self.dashboards.append(process)
        return f"http://127.0.0.1:{port}"

    def touch(self, name: str) -> None:
        (self.scratch / name).touch()

    def remove(self, name: str) -> None:
        (self.scratch / name).unlink(missing_ok=True)

    def job(self, name: str) -> Any:
        return next(one for one in self.client.status(depths=False).jobs if one.name == self.name(name))

    def disable_by_failures(self) -> None:
        """fetch_data fails until it is disabled."""
        self.touch("down")
        until(self._fails_on, 60, "fetch_data is disabled", poll=0.2)

    def _fails_on(self) -> bool:
        job = self.job("fetch_data")
        if job.disabled is None and not job.running and not job.waiting:
            self.client.trigger(self.name("fetch_data"))
        return job.disabled is not None

    def settle(self) -> None:
        """Brings it back to its initial state: everything is enabled, and nothing waits or runs."""
        self.remove("down")
        self.touch("imported")
        self.client.resume()
        for job in self.client.status(depths=False).jobs:
            if job.disabled is not None:
                self.client.enable(job.name)
        until(self._is_idle, 60, "nothing runs or waits", poll=0.1)
        self.client.purge(everything=True)
        self.remove("imported")

    def _is_idle(self) -> bool:
        status = self.client.status(depths=False)
        for run in status.waits:
            with contextlib.suppress(UnknownRun):  # it has started since then
                self.client.cancel(run.id)
        return not status.runs and not status.waiting and not status.later


@contextlib.contextmanager
def shop(directory: Path, env: dict[str, str] | None = None, **redis: Any) -> Iterator[Shop]:
    """Redis runs. The worker, the scheduler and dashboards are started by the test, and always end."""
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    server = RedisServer(directory, **redis)
    with contextlib.ExitStack() as cleanups:
        cleanups.callback(server.cleanup)
        server.start()
        broker = Broker("redis", server.url(0), server.url(1), server.url(0), server)
        whole = {**QUIET, "TEST_SCRATCH": str(scratch), **(env or {})}
        module = cleanups.enter_context(loaded_app(APP, broker, whole))
        found = Shop(directory, module, broker, whole)
        cleanups.callback(found.client.close)
        cleanups.enter_context(found._cleanups)
        yield found

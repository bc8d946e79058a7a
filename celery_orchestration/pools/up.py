"""Everything on one machine, run by one process: ``celery -A shop orchestration up``.

``up`` starts the services of :func:`services_of`, restarts what dies, merges the logs, and ends everything. It leaves
no process behind:

- The first Ctrl-C (or SIGTERM) drains: workers take no new messages and finish their tasks, for at most
  ``drain_seconds``. The second one stops at once; running tasks go back to their queues.
- If ``up`` itself is killed, the kernel signals scheduler and workers, which drain by themselves, and the private Redis
  ends when the last of them has left it (``redis_keeper.py``).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError
from kombu.utils.imports import symbol_by_name

from celery_orchestration.errors import UserError
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.pool import Pool
from celery_orchestration.job.queues import DEFAULT_POOL
from celery_orchestration.job.settings import Settings
from celery_orchestration.pools.merged_log import MergedLog
from celery_orchestration.pools.private_redis import PrivateRedis, loopback_addresses
from celery_orchestration.pools.reload import CodeWatcher, source_directories
from celery_orchestration.pools.run import command_to_read_again
from celery_orchestration.pools.services import CommandService, PoolsService, RedisService, Service
from celery_orchestration.pools.supervisor import DRAIN_SECONDS, Supervisor

#: Seconds between two steps of the services.
STEP = 0.2
#: Seconds after the drain time until the Redis of a killed ``up`` ends in any case.
REDIS_GRACE = 20.0
#: Timeout for the check of the broker before anything that needs it starts, in seconds.
BROKER_SECONDS = 5.0


#: Where the dashboard listens, and the packages that it needs.
DASHBOARD_PORT = 5577
DASHBOARD_NEEDS = ("starlette", "uvicorn", "jinja2", "prometheus_client")


class UpError(UserError):
    """``up`` cannot start; the message says what to do."""


@dataclass(frozen=True)
class Plan:
    """What ``up`` runs."""

    app: Celery
    #: The value of -A.
    app_name: str
    settings: Settings
    jobs: Mapping[str, Policy]
    data: Path
    loglevel: str = "INFO"
    reload: bool = False
    #: Port of the dashboard; None: no dashboard.
    dashboard_port: int | None = DASHBOARD_PORT

    @property
    def drain_seconds(self) -> float:
        chosen = self.settings.drain_seconds
        return DRAIN_SECONDS if chosen is None else chosen

    @property
    def pools(self) -> dict[str, Pool]:
        """The app's table; or else one worker for each pool that a job names, with a slot for each processor."""
        if self.settings.pools:
            return dict(self.settings.pools)
        names = [DEFAULT_POOL, *sorted({job.pool for job in self.jobs.values()} - {DEFAULT_POOL})]
        return {name: Pool(min=1, max=1, concurrency=os.cpu_count() or 1) for name in names}


def services_of(plan: Plan, log: MergedLog) -> list[Service]:
    """The services in the order of their start."""
    services = [*redis_services(plan, log), scheduler_service(plan, log), *dashboard_services(plan, log)]
    return [*services, pools_service(plan, log)]


def redis_services(plan: Plan, log: MergedLog) -> list[Service]:
    grace = plan.drain_seconds + REDIS_GRACE
    addresses = loopback_addresses(plan.app, plan.settings)
    return [RedisService(PrivateRedis(one, plan.data, grace), log) for one in addresses]


def scheduler_service(plan: Plan, log: MergedLog) -> Service:
    """Always started: entries may be added at run time, and an idle scheduler costs almost nothing."""
    from celery.beat import PersistentScheduler  # noqa: PLC0415

    command = [*celery_command(plan), "beat", "--loglevel", plan.loglevel, "--pidfile="]
    if issubclass(symbol_by_name(plan.app.conf.beat_scheduler), PersistentScheduler):
        command += ["--schedule", str(plan.data / "celerybeat-schedule")]  # Celery's own scheduler keeps a file
    return CommandService("scheduler", command, log)


def pools_service(plan: Plan, log: MergedLog) -> Service:
    supervisor = Supervisor(
        plan.app,
        plan.app_name,
        plan.pools,
        plan.jobs,
        log.line,
        state_directory=plan.data,
        worker_options=["--loglevel", plan.loglevel],
    )
    return PoolsService(supervisor, command_to_read_again(plan.app_name) if plan.settings.pools else ())


def dashboard_services(plan: Plan, log: MergedLog) -> list[Service]:
    """On loopback; on any free port if its own is taken. The dashboard prints its address."""
    if plan.dashboard_port is None:
        return []
    if any(find_spec(name) is None for name in DASHBOARD_NEEDS):
        log.line("up", "there is no dashboard: pip install 'celery_orchestration[dashboard]', or --no-dashboard")
        return []
    port = plan.dashboard_port if is_free(plan.dashboard_port) else 0
    return [
        CommandService("dashboard", [*celery_command(plan), "orchestration", "dashboard", "--port", str(port)], log)
    ]


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def celery_command(plan: Plan) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", plan.app_name]


class Up:
    """``run()`` returns the exit status when everything has ended."""

    def __init__(self, plan: Plan, log: MergedLog) -> None:
        self._plan, self._log = plan, log
        self._services = services_of(plan, log)
        self._started: list[Service] = []
        self._wake = threading.Event()
        self._signals = 0
        self._changed: list[str] = []

    def run(self) -> int:
        before = self._take_signals()
        watcher = self._watcher()
        try:
            self._start()
            if watcher is not None:
                watcher.start()
            while not self._signals:
                self._reload_if_changed()
                self._step()
            self._drain()
        finally:
            if watcher is not None:
                watcher.stop()
            self._stop()
            for number, handler in before.items():
                signal.signal(number, handler)
        self._log.line("up", "everything has ended")
        return 0

    # -- life

    def _start(self) -> None:
        for service in self._services:
            if self._signals:
                return
            if not service.is_needed_to_drain and not any(one for one in self._started if not one.is_needed_to_drain):
                check_broker(self._plan.app)
            self._started.append(service)
            service.start()
        self._say("Ctrl-C drains and ends everything")

    def _step(self) -> None:
        for service in self._started:
            service.step()
        self._wake.wait(STEP)
        self._wake.clear()

    def _reload_if_changed(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, []
            self._say(f"{'; '.join(changed)} changed: workers and scheduler are restarted")
            for service in self._started:
                service.reload()

    def _drain(self) -> None:
        """Wait until all services have ended, or a second signal comes."""
        workers = [one for one in reversed(self._started) if not one.is_needed_to_drain]
        self._say(f"draining: tasks may finish within {self._plan.drain_seconds:g} s; Ctrl-C again stops at once")
        for service in workers:
            service.drain()
        while self._signals < 2 and not all(one.ended for one in workers):
            self._step()
        if self._signals > 1:
            self._say("stopping at once")

    def _stop(self) -> None:
        """End every service, whatever its state."""
        for needed in (False, True):
            services = [one for one in reversed(self._started) if one.is_needed_to_drain is needed]
            for service in services:
                service.stop()
            while not all(one.ended for one in services):
                for service in services:
                    service.step()
                self._wake.wait(STEP)
        self._log.finish(2.0)

    # -- what comes from outside

    def _take_signals(self) -> dict[signal.Signals, Any]:
        def note(number: int, _: FrameType | None) -> None:
            self._signals += 1
            self._wake.set()

        # SIGHUP: the terminal was closed.
        return {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def _watcher(self) -> CodeWatcher | None:
        if not self._plan.reload:
            return None

        def changed(files: str) -> None:
            self._changed.append(files)
            self._wake.set()

        return CodeWatcher(source_directories(self._plan.app), changed)

    def _say(self, text: str) -> None:
        self._log.line("up", text)


def check_broker(app: Celery) -> None:
    """Report a missing broker once, before every process complains about it."""
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1, timeout=BROKER_SECONDS)
        except (OperationalError, *connection.recoverable_connection_errors) as exc:
            where = connection.as_uri()
            raise UpError(
                f"the broker at {where} does not answer ({exc}): start it first, or correct broker_url"
            ) from None

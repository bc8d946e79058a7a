"""Two services with code of their own share a ledger: the worked example of docs/services.md."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_orchestration import Orchestration
from celery_orchestration.ledger.records import key_of
from support.processes import ManagedProcess
from support.schedulers import SchedulerProcess
from support.wait import until
from support.workers import Broker, WorkerProcess, close_app, run_celery

SHOP, BILLING = "examples.services.shop", "examples.services.billing"
#: Extra time for a busy machine.
PATIENCE = 60


class Company:
    def __init__(
        self,
        broker: Broker,
        worker: Callable[..., WorkerProcess],
        directory: Path,
        reported: Callable[[ManagedProcess], None],
    ) -> None:
        self.broker, self.redis = broker, broker.redis.client()
        self._worker, self._directory, self._reported = worker, directory, reported
        self.env = {"SERVICES_REDIS": broker.broker_url, "SERVICES_PACE": "20"}
        self.cleanups = contextlib.ExitStack()

    def worker(self, app: str, **options: Any) -> WorkerProcess:
        return self._worker(self.broker, app, env=self.env, **options)

    def beat(self, app: str) -> SchedulerProcess:
        process = SchedulerProcess(
            app,
            broker_url=self.broker.broker_url,
            backend_url=self.broker.backend_url,
            directory=self._directory,
            options=("--pidfile=",),
            env=self.env,
        )
        self.cleanups.callback(process.cleanup)
        self._reported(process)
        process.start()
        process.wait_settled(PATIENCE)
        return process

    def ask(self, app: str, *command: str) -> Any:
        done = run_celery(app, "orchestration", *command, "--json", env=self.env, timeout=PATIENCE)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    @cached_property
    def client(self) -> Orchestration:
        """A client of the shop without its code."""
        app = Celery("shop", broker=self.broker.broker_url, set_as_current=False)
        app.conf.orchestration_namespace = "company"
        self.cleanups.callback(close_app, app)
        return Orchestration(app)

    def call(self, task: str, queue: str, *args: Any) -> None:
        self.client._app.send_task(task, args, queue=queue)

    def runs(self, job: str) -> bool:
        return any(run.job == job for run in self.client.status(depths=False).runs)

    def waits(self, job: str) -> str | None:
        return next((run.reason for run in self.client.status(depths=False).waits if run.job == job), None)

    def ended(self, job: str) -> int:
        """The number of its runs that have succeeded."""
        found = map(json.loads, self.redis.lrange(key_of("{company}:", "history", job), 0, -1))
        return sum(one["outcome"] == "succeeded" for one in found)

    def until_ended(self, job: str, count: int = 1) -> None:
        until(lambda: self.ended(job) >= count, PATIENCE, f"{job} has ended {count} times", poll=0.1)


@pytest.fixture
def company(
    redis_broker: Broker,
    worker: Callable[..., WorkerProcess],
    tmp_path: Path,
    reported: Callable[[ManagedProcess], None],
) -> Iterator[Company]:
    found = Company(redis_broker, worker, tmp_path, reported)
    with found.cleanups:
        yield found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_services_wait_for_each_other_and_each_fires_its_own_schedule(company: Company):
    shop = company.worker(SHOP, queues=["shop.normal"])
    company.beat(SHOP)
    # Billing is not deployed yet: jobs that depend on it wait, and say why.
    assert "billing.invoice" in until(lambda: company.waits("shop.ship"), PATIENCE, "shop.ship was fired")
    shop.wait_for_log("names the external job 'billing.invoice', which no service has registered yet", PATIENCE)

    billing = company.worker(BILLING, queues=["billing.normal"])
    beat = company.beat(BILLING)
    for job in ("billing.invoice", "shop.ship"):
        company.until_ended(job, 2)
    status = company.ask(SHOP, "status")["scheduler"]
    assert [(one["service"], one["leader"]) for one in status["others"]] == [("billing", beat.known_as)]
    for app in (SHOP, BILLING):
        assert company.ask(app, "health", "--scheduler")["ok"]

    # blocks works in both directions, and across the services.
    company.call("billing.close_books", "billing.normal", 6)
    until(lambda: company.runs("billing.close_books"), PATIENCE, "the books are being closed")
    company.call("shop.export", "shop.normal")
    assert "billing.close_books" in until(lambda: company.waits("shop.export"), PATIENCE, "the export waits")
    company.until_ended("shop.export")
    assert company.ended("billing.close_books") == 1

    # Billing is stopped as a whole; the shop keeps its last outcomes.
    for process in (beat, billing):
        assert process.stop(timeout=PATIENCE) == 0
    shipped = company.ended("shop.ship")
    company.until_ended("shop.ship", shipped + 2)
    assert not company.ask(BILLING, "health", "--scheduler")["ok"]
    assert company.ask(SHOP, "health", "--scheduler")["ok"]


@pytest.mark.slow
def test_a_message_that_reaches_the_other_services_worker_is_not_lost(company: Company):
    """Without ``pool``, two services on one broker would share their queues."""
    company.worker(BILLING, queues=["shared", "billing.normal"])
    company.worker(SHOP, queues=["shared", "shop.normal"])
    for _ in range(6):
        company.call("shop.export", "shared")
    company.until_ended("shop.export", 6)

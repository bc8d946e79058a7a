"""One test's app, its workers, the calls that were sent to them and their executions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from celery.result import AsyncResult

from celery_orchestration.ledger.records import key_of
from support.history import History, Span
from support.invariants import assert_all_well, prefix_of, status_of, waiting
from support.wait import until
from support.workers import Broker, WorkerProcess

FAULTS = "support.apps.faults"
StartWorker = Callable[..., WorkerProcess]


class Stage:
    """One test's app, its workers, the calls that were sent to them and their executions."""

    def __init__(
        self,
        broker: Broker,
        worker: StartWorker,
        load_app: Callable[..., ModuleType],
        history: History,
        scratch: Path,
        module: str = FAULTS,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.broker = broker
        self.history = history
        self.scratch = scratch
        self.sent: list[AsyncResult] = []
        self.workers: list[WorkerProcess] = []
        self._worker = worker
        self.module = module
        self.env = {"TEST_SCRATCH": str(scratch), **(env or {})}
        self.jobs = load_app(broker, module, env=self.env)
        self.app = self.jobs.app
        self.ledger = broker.redis.client(int(broker.ledger_url.rpartition("/")[2]))

    @property
    def prefix(self) -> str:
        return prefix_of(self.app)

    def worker(self, pool: str = "prefork", concurrency: int = 2, **options: Any) -> WorkerProcess:
        env = {**self.env, **options.pop("env", {})}
        process = self._worker(self.broker, self.module, pool=pool, concurrency=concurrency, env=env, **options)
        self.workers.append(process)
        return process

    def send(self, job: Any, *args: Any, **options: Any) -> AsyncResult:
        result = job.apply_async(args, **options)
        self.sent.append(result)
        return result

    def release(self, name: str) -> None:
        """Runs of ``held`` with this name may end."""
        (self.scratch / name).touch()

    def starts(self, result: AsyncResult) -> list[Span]:
        return [span for span in self.history.spans() if span.run == result.id]

    def started(self, result: AsyncResult, times: int = 1, timeout: float = 30) -> Span:
        """Waits for a start of the run; `times` is its number."""
        return until(lambda: self.starts(result)[times - 1 :], timeout, f"start {times} of {result.id}")[0]

    def wait_waiting(self, count: int) -> None:
        until(lambda: waiting(self.app) == count, message=f"{count} runs wait in the ledger")

    def ran_once(self, results: list[AsyncResult]) -> None:
        executions = Counter(span.run for span in self.history.spans())
        assert {result.id: executions[result.id] for result in results} == {result.id: 1 for result in results}

    def publish_again_what_was_lost(self) -> None:
        """Makes handed-over runs that have not started overdue now, instead of after half a minute."""
        for run in status_of(self.app).runs:
            if run.state == "queued" and run.seconds > 2:
                self.ledger.zadd(key_of(prefix_of(self.app), "deadlines"), {run.id: 0}, xx=True)

    @property
    def deaths(self) -> dict[int, float]:
        return {pid: at for process in self.workers for pid, at in process.deaths.items()}

    def all_well(self, **options: Any) -> None:
        assert_all_well(self.app, self.ledger, self.history, self.sent, deaths=self.deaths, **options)

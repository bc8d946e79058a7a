"""The log lines of workers and schedulers about the jobs of their code when they start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_orchestration import OrchestratedTask
from celery_orchestration.node.presence import MOST_LOGGED
from celery_orchestration.scheduler.runtime import SchedulerRuntime
from support.servers import RedisServer
from support.workers import close_app


def _nothing() -> None: ...


class TestTheDefaultsOfRecurringJobs:
    @pytest.fixture
    def app(self, redis_server: RedisServer) -> Iterator[Celery]:
        app = Celery("told", broker=redis_server.url(), set_as_current=False)
        yield app
        close_app(app)

    def told(self, app: Celery, caplog: pytest.LogCaptureFixture, **jobs: dict[str, Any]) -> list[str]:
        for name, options in jobs.items():
            app.task(name=name, base=OrchestratedTask, shared=False, **options)(_nothing)
        app.finalize()
        caplog.set_level("INFO", "celery_orchestration")
        runtime = SchedulerRuntime(app, {})
        runtime.log_defaults()
        runtime.ledger.close()
        return [record.message for record in caplog.records if record.name.endswith("presence")]

    def test_defaults_are_logged_in_one_line_for_each_job(self, app: Celery, caplog: pytest.LogCaptureFixture):
        found = self.told(
            app,
            caplog,
            nightly={"interval_seconds": 60},
            long={"interval_seconds": 60, "timeout_seconds": None, "max_retries": 0, "autoretry_for": ()},
            plain={"max_running": 1},
        )
        assert found == [
            "Job long has the defaults of recurring jobs: max_running=1, max_consecutive_failures=5, on_crash=requeue, "
            "retry_backoff=True, retry_jitter=True",
            "Job nightly has the defaults of recurring jobs: timeout_seconds=60, max_running=1, "
            "max_consecutive_failures=5, on_crash=requeue, autoretry_for=Exception, max_retries=3, retry_backoff=True, "
            "retry_jitter=True",
            "Write these options on a job to change them, or orchestration_recurring_defaults for all",
        ]

    def test_defaults_of_very_many_jobs_are_counted(self, app: Celery, caplog: pytest.LogCaptureFixture):
        jobs = {f"job{number:03}": {"interval_seconds": 60} for number in range(MOST_LOGGED + 5)}
        *_, more, _ = found = self.told(app, caplog, **jobs)
        assert len(found) == MOST_LOGGED + 2
        assert more == "5 more jobs have defaults: see `explain JOB`"

    def test_a_project_without_recurring_jobs_logs_no_defaults(self, app: Celery, caplog: pytest.LogCaptureFixture):
        assert self.told(app, caplog, plain={}) == []

"""Jobs whose base classes have a Request and a Strategy of their own, in either order. These classes record their calls
in files. TEST_BYPASS adds a base class whose start_strategy bypasses the gate."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.worker.request import Request
from celery.worker.strategy import default

from celery_orchestration import OrchestratedTask
from celery_orchestration.worker.request import OrchestratedRequest
from support.history import recorded
from support.wait import until as wait_until

app = Celery(
    "company",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = 3.0
app.conf.orchestration_sweep_seconds = 1.0


def seen(what: str, id: str) -> None:
    with Path(os.environ["TEST_SEEN"]).open("a") as file:
        file.write(f"{what} {id}\n")


class Seeing:
    """The methods that companies override in their requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._request_dict.get("company") == "breaks":
            raise RuntimeError("a request of the company's that cannot be made")
        seen("init", self.id)

    def on_failure(self, *args: Any, **kwargs: Any) -> Any:
        seen("failure", self.id)
        return super().on_failure(*args, **kwargs)

    def on_timeout(self, *args: Any, **kwargs: Any) -> Any:
        seen("timeout", self.id)
        return super().on_timeout(*args, **kwargs)

    def on_success(self, *args: Any, **kwargs: Any) -> Any:
        seen("success", self.id)  # Celery makes a subclass that does not call it
        return super().on_success(*args, **kwargs)

    def execute_using_pool(self, *args: Any, **kwargs: Any) -> Any:
        seen("execute", self.id)  # likewise
        return super().execute_using_pool(*args, **kwargs)


class CompanyRequest(Seeing, Request): ...


class KnowingRequest(Seeing, OrchestratedRequest): ...


def strategy(task: Any, app: Any, consumer: Any, **kwargs: Any) -> Any:
    handle = default(task, app, consumer, **kwargs)

    def handler(message: Any, *args: Any) -> Any:
        seen("strategy", message.headers["id"])
        return handle(message, *args)

    return handler


class Company(Task):
    Request = CompanyRequest


class ByName(Task):
    Request = "support.apps.company:CompanyRequest"
    Strategy = "support.apps.company:strategy"


class Knowing(Task):
    Request = KnowingRequest
    Strategy = staticmethod(strategy)


class CompanyFirst(Company, OrchestratedTask): ...


class CompanyLast(OrchestratedTask, Company): ...


class ByNameFirst(ByName, OrchestratedTask): ...


class KnowingLast(OrchestratedTask, Knowing): ...


class OwnStrategy(OrchestratedTask):
    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        return default(self, app, consumer, **kwargs)


BASES = (CompanyFirst, CompanyLast, ByNameFirst, KnowingLast)


def make(base: type[Task]) -> None:
    @app.task(base=base, bind=True, name=f"company.{base.__name__}", max_running=1)
    def work(self: Task, what: Any = None) -> Any:
        with recorded(self, note=what):
            if what == "fail":
                raise ValueError(what)
            if isinstance(what, str) and what.startswith("/"):
                wait_until(Path(what).exists, 60, f"{what} is there", poll=0.01)
            if what == "sleep":
                time.sleep(60)
        return what


for base in BASES:
    make(base)
if "TEST_BYPASS" in os.environ:
    make(OwnStrategy)


@app.task(name="company.plain")
def plain(what: Any = None) -> Any:
    return what

"""The Request and Strategy of a job whose base classes have their own."""

from __future__ import annotations

import pytest
from celery import Celery, Task
from celery.worker.request import Request
from celery.worker.strategy import default

from celery_orchestration import OrchestratedTask
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.worker import custom
from celery_orchestration.worker.request import OrchestratedRequest


class CompanyRequest(Request):
    def on_timeout(self, soft, timeout): ...


class KnowingRequest(OrchestratedRequest): ...


class TakenRequest(Request):
    verdict = "guilty"


def company_strategy(task, app, consumer): ...


class Company(Task):
    Request = CompanyRequest
    Strategy = staticmethod(company_strategy)


class ByName(Task):
    Request = f"{__name__}:CompanyRequest"
    Strategy = f"{__name__}:company_strategy"


class First(Company, OrchestratedTask): ...


class Last(OrchestratedTask, Company): ...


class NamedFirst(ByName, OrchestratedTask): ...


def job(app: Celery, base: type[Task], **options):
    def body() -> None: ...

    return app.task(base=base, name="shop.job", shared=False, lazy=False, **options)(body)


def test_a_job_without_a_custom_request_uses_our_request_and_celerys_strategy(app):
    task = job(app, OrchestratedTask)
    assert custom.request_class(task) is OrchestratedRequest
    assert custom._strategy_of(task) is default


@pytest.mark.parametrize("base", [First, Last, NamedFirst])
def test_a_custom_request_is_combined_with_ours_in_any_order_of_bases(app, base):
    task = job(app, base)
    made = custom.request_class(task)
    assert made.__mro__.index(OrchestratedRequest) < made.__mro__.index(CompanyRequest)
    assert made is custom.combined(CompanyRequest)
    assert custom._strategy_of(task) is company_strategy


def test_a_subclass_of_our_request_is_used_unchanged(app):
    assert custom.request_class(job(app, OrchestratedTask, Request=KnowingRequest)) is KnowingRequest


@pytest.mark.parametrize("written", [Request, "celery.worker.request:Request"])
def test_celerys_own_request_written_out_becomes_ours(app, written):
    assert custom.request_class(job(app, OrchestratedTask, Request=written)) is OrchestratedRequest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"Request": object}, "is no subclass of celery.worker.request.Request"),
        ({"Request": TakenRequest}, "TakenRequest.verdict has the name of something"),
        ({"Request": "no.such:Request"}, "its Request 'no.such:Request' cannot be loaded"),
        ({"Strategy": "no.such:strategy"}, "its Strategy 'no.such:strategy' cannot be loaded"),
    ],
)
def test_a_request_that_cannot_be_combined_is_refused(app, options, says):
    with pytest.raises(ConfigurationError, match=f"job shop.job: .*{says}"):
        custom.check(job(app, OrchestratedTask, **options))

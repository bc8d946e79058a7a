"""Jobs of a Django project: sent when the transaction is committed, and otherwise jobs like any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import django
import pytest
from celery import Celery, shared_task, signals
from celery.contrib.django.task import DjangoTask
from django.conf import settings
from django.db import connection, transaction
from django.test import TestCase

import celery_orchestration
from celery_orchestration.django import OrchestratedTask
from celery_orchestration.job.task import jobs_of
from support.workers import environment


@pytest.fixture(autouse=True)
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if not settings.configured:  # Django has one configuration for the life of the process
        file = tmp_path_factory.mktemp("django") / "db.sqlite3"
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
        settings.configure(DATABASES={"default": database}, SECRET_KEY="of a test", USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    yield
    connection.close()


@pytest.fixture
def sent() -> Iterator[list[tuple[str, str]]]:
    """Job and queue of what was published."""
    found: list[tuple[str, str]] = []

    def publishing(sender: str, routing_key: str, **_: Any) -> None:
        found.append((sender, routing_key))

    signals.before_task_publish.connect(publishing, weak=False)
    yield found
    signals.before_task_publish.disconnect(publishing)


def shipping(number: int) -> None: ...


def function_based(app: Celery) -> Any:
    return app.task(base=OrchestratedTask, name="shop.ship", max_running=1)(shipping)


def shared(app: Celery) -> Any:
    shared_task(base=OrchestratedTask, name="shop.ship", max_running=1)(shipping)
    app.finalize()
    return app.tasks["shop.ship"]


def class_based(app: Celery) -> Any:
    class Ship(OrchestratedTask):
        name = "shop.ship"
        max_running = 1

        def run(self, number: int) -> None: ...

    return app.register_task(Ship())


def of_the_app(app: Celery) -> Any:
    app.task_cls = "celery_orchestration.django:OrchestratedTask"
    return app.task(name="shop.ship", max_running=1)(shipping)


@pytest.fixture(params=[function_based, shared, class_based, of_the_app], ids=lambda make: make.__name__)
def ship(app: Celery, request: pytest.FixtureRequest) -> Any:
    return request.param(app)


def test_it_is_a_job_and_a_task_of_djangos(app, ship):
    app.finalize()
    assert jobs_of(app)["shop.ship"].max_running == 1
    assert isinstance(ship, celery_orchestration.OrchestratedTask)
    assert isinstance(ship, DjangoTask)
    assert [name for name in jobs_of(app) if name.startswith("celery.")] == []


def test_it_is_sent_when_the_transaction_is_committed(ship, sent):
    with transaction.atomic():
        assert ship.delay_on_commit(1) is None
        ship.apply_async_on_commit((2,), priority="high")
        ship.apply_async_on_commit(args=(3,), queue="own")
        assert sent == []
    assert sent == [("shop.ship", "celery"), ("shop.ship", "default.high"), ("shop.ship", "own")]


def test_it_is_sent_at_once_where_there_is_no_transaction(ship, sent):
    ship.delay_on_commit(1)
    assert sent == [("shop.ship", "celery")]


def test_it_is_not_sent_if_the_transaction_is_rolled_back(ship, sent):
    with transaction.atomic():
        ship.delay_on_commit(1)
        transaction.set_rollback(True)
    with transaction.atomic():
        pass
    assert sent == []


def test_djangos_own_tests_capture_it(ship, sent):
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks() as callbacks:
            ship.apply_async_on_commit((1,), priority="high")
        assert (len(callbacks), sent) == (1, [])
        callbacks[0]()
        assert sent == [("shop.ship", "default.high")]
        transaction.set_rollback(True)


def test_a_bad_priority_is_refused_when_it_is_sent(ship, sent):
    with pytest.raises(ValueError, match="did you mean 'high'"), transaction.atomic():
        ship.apply_async_on_commit((1,), priority="hihg")
    assert sent == []


def test_nothing_else_is_written_by_inheriting(app):
    def body() -> None: ...

    options = {"shared": False, "lazy": False}
    ours = app.task(base=OrchestratedTask, name="shop.ours", **options)(body)
    plain = app.task(base=celery_orchestration.OrchestratedTask, name="shop.plain", **options)(body)
    assert ours.orchestration.sources == plain.orchestration.sources
    assert ours.orchestration.celery == plain.orchestration.celery


@pytest.mark.parametrize("missing", ["django", "django.db"])
def test_without_django_it_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; import celery_orchestration.django"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    [last] = done.stderr.strip().splitlines()[-1:]
    assert last.startswith("ImportError: celery_orchestration.django needs Django, which is not installed: pip install")


def test_another_missing_module_is_not_reported_as_django():
    code = "import sys; sys.modules['celery.contrib.django.task'] = None; import celery_orchestration.django"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert "needs Django" not in done.stderr
    assert "celery.contrib.django.task" in done.stderr.splitlines()[-1]

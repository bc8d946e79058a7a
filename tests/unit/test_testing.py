"""The tools with which projects test their jobs: the gate as a function, eager mode, mode "off". None of it needs a
server."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_orchestration import Dependency, OrchestratedTask
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.testing import Decision, Ended, decide
from support.workers import PROJECT

#: Nothing listens there.
NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def _no_network(no_network: None) -> None: ...


def nothing() -> None: ...


def of_a_tenant(tenant: str, full: bool = False) -> None: ...


def define(app: Celery) -> None:
    def job(name: str, body: Callable[..., Any] = nothing, **options: Any) -> Any:
        return app.task(base=OrchestratedTask, name=f"shop.{name}", shared=False, **options)(body)

    fetch = job("fetch", interval_seconds=60)
    job("process", depends_on=[fetch], max_running=2)
    job("cleanup", blocks=["shop.process"], priority="low")
    job("report", depends_on=[Dependency(fetch, on="finish", max_age_seconds=60, fresh=True)])
    job("look", depends_on=[Dependency("shop.process", on="idle")])
    job("bill", depends_on=[Dependency("bank.rates", external=True)])
    job("sync", of_a_tenant, max_running=1, key="{tenant}", blocks=["shop.import"])
    job("import")
    app.task(name="shop.plain", shared=False)(nothing)


@pytest.fixture
def app(new_app: Callable[..., Celery]) -> Celery:
    app = new_app(broker_url=NOBODY, result_backend=NOBODY)
    define(app)
    return app


def reason(app: Celery, job: Any, **situation: Any) -> str | None:
    return decide(app, job=job, **situation).reason


# -- rules


def test_every_job_starts_when_nothing_holds_it_back(app):
    jobs = ["fetch", "process", "cleanup", "report", "look", "bill", "import"]
    assert [decide(app, job=f"shop.{name}") for name in jobs] == [Decision(starts=True)] * 7


def test_the_first_example_of_the_docs_holds(app):
    decision = decide(app, running=["shop.cleanup"], job="shop.process")
    assert decision == Decision(
        starts=False, reason="waiting for shop.cleanup: running", rule="blocked", waits_for="shop.cleanup"
    )
    assert not decision
    assert decide(app, job="shop.process")


def test_blocks_hold_in_either_direction(app):
    assert reason(app, "shop.cleanup", running=["shop.process"]) == "waiting for shop.process: running"
    assert reason(app, "shop.process", running=["shop.cleanup"]) == "waiting for shop.cleanup: running"


def test_a_paused_system_and_a_disabled_job_start_nothing(app):
    assert reason(app, "shop.fetch", paused=True) == "everything is paused"
    assert reason(app, "shop.fetch", disabled=["shop.fetch"]) == "the job is disabled: by hand"
    assert reason(app, "shop.fetch", disabled={"shop.fetch": "5 failures"}) == "the job is disabled: 5 failures"
    assert reason(app, "shop.fetch", disabled=["shop.cleanup"]) is None


def test_a_job_waits_while_its_caps_are_reached(app, new_app):
    full = "waiting for room: as many runs of shop.process as allowed: running"
    assert reason(app, "shop.process", running=["shop.process"]) is None
    assert reason(app, "shop.process", running=["shop.process"] * 2) == full
    capped = new_app(orchestration_max_running=2)
    define(capped)
    everything = "waiting for room: as many runs of all jobs as allowed"
    assert reason(capped, "shop.import", running=["shop.fetch"]) is None
    decision = decide(capped, job="shop.import", running=["shop.fetch", "shop.look"])
    assert (decision.reason, decision.rule, decision.waits_for) == (everything, "global", None)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("succeeded", None),
        ("failed", "waiting for shop.fetch: its last run failed"),
        ("never", "waiting for shop.fetch: it has never ended"),
        (Ended(outcome="succeeded", seconds_ago=1e6), None),
    ],
)
def test_a_dependency_has_to_have_succeeded(app, ended, why):
    assert reason(app, "shop.process", ended={"shop.fetch": ended}) == why


def test_a_dependency_has_to_be_idle(app):
    assert reason(app, "shop.process", running=["shop.fetch"]) == "waiting for shop.fetch: running"
    assert reason(app, "shop.look", ended={"shop.process": "never"}) is None
    assert reason(app, "shop.look", running=["shop.process"]) == "waiting for shop.process: running"


def test_a_disabled_dependency_is_shown_as_disabled(app):
    off = ["shop.fetch"]
    said = "waiting for shop.fetch: it is disabled"
    assert reason(app, "shop.process", ended={"shop.fetch": "failed"}, disabled=off) == said
    assert reason(app, "shop.process", disabled=off) is None


def test_a_dependency_of_another_service_is_known_by_its_name(app):
    assert reason(app, "shop.bill", ended={"bank.rates": "failed"}) == "waiting for bank.rates: its last run failed"
    with pytest.raises(ConfigurationError, match=r"^decide: job names 'bank.rates', a job of another service$"):
        decide(app, job="bank.rates")


def test_a_dependency_may_be_too_old_or_not_fresh(app):
    def with_ages(ended: float, started: float | None = None) -> str | None:
        return reason(
            app,
            "shop.report",
            ended={"shop.fetch": Ended(outcome="failed", seconds_ago=ended)},
            started={} if started is None else {"shop.report": started},
        )

    assert with_ages(60) is None
    assert with_ages(60.1) == "waiting for shop.fetch: its last run is too long ago"
    assert with_ages(10, started=11) is None
    assert with_ages(10, started=10) == "waiting for shop.fetch: it has not ended since this job's last start"


def test_a_new_run_does_not_pass_a_waiting_one(app):
    behind = "waiting behind a run of shop.{} that came first".format
    assert reason(app, "shop.process", waiting=["shop.process"]) == behind("process")
    assert reason(app, "shop.cleanup", waiting=["shop.process"]) == behind("process")
    assert reason(app, "shop.process", waiting=["shop.cleanup"]) is None, "of low priority"
    assert reason(app, "shop.import", waiting=["shop.process"]) is None, "they have nothing to do with each other"


def test_a_run_that_waits_for_a_dependency_does_not_hold_others_back(app):
    assert reason(app, "shop.cleanup", waiting=["shop.process"], ended={"shop.fetch": "failed"}) is None
    assert reason(app, "shop.cleanup", waiting=["shop.process"], disabled=["shop.process"]) is None


def test_a_call_can_have_a_priority(app):
    process, cleanup = app.tasks["shop.process"], app.tasks["shop.cleanup"]
    assert reason(app, process, waiting=[cleanup.s().set(priority="high")]) is not None
    assert reason(app, cleanup.s().set(priority="critical"), waiting=[process]) is None
    assert reason(app, cleanup.s().set(priority=9), waiting=[process]) is not None, "a number is Celery's"


# -- arguments and keys


def test_room_is_counted_by_key(app):
    sync = app.tasks["shop.sync"]
    full = "waiting for room: as many runs of shop.sync with key 'eu' as allowed: running"
    assert reason(app, sync.s("eu"), running=[sync.s("us")]) is None
    assert reason(app, sync.s("eu"), running=[sync.s(tenant="eu", full=True)]) == full
    assert reason(app, sync.s("eu"), waiting=[sync.s("us")]) is None
    assert reason(app, sync.s("eu"), waiting=[sync.s("eu")]) is not None


def test_keys_are_asked_for_only_where_they_count(app):
    assert reason(app, "shop.import", running=["shop.sync"]) == "waiting for shop.sync: running"
    for situation in ({"job": "shop.sync"}, {"job": app.tasks["shop.sync"].s("eu"), "running": ["shop.sync"]}):
        with pytest.raises(ConfigurationError, match=r"does not fit the call.*; give the call with its arguments"):
            decide(app, **situation)


# -- names


def test_a_job_is_named_or_its_task_or_a_call(app):
    process, cleanup = app.tasks["shop.process"], app.tasks["shop.cleanup"]
    for job in ("shop.process", process, process.s()):
        for other in ("shop.cleanup", cleanup, cleanup.si()):
            assert decide(app, job=job, running=[other]).waits_for == "shop.cleanup"
    assert reason(app, process, ended={app.tasks["shop.fetch"]: "failed"}) is not None
    assert reason(app, process, disabled=[process]) is not None


def test_a_job_may_be_named_by_a_lazy_task(new_app):
    app = new_app()

    @app.task(base=OrchestratedTask, max_running=1, shared=False)
    def lazy() -> None: ...

    assert decide(app, job=lazy, running=[lazy]).rule == "room"


@pytest.mark.parametrize("where", ["job", "running", "waiting", "ended", "started", "disabled"])
def test_an_unknown_name_is_reported_with_a_suggestion(app, where):
    def ask(name: Any) -> None:
        value: Any = {"job": name, "ended": {name: "failed"}, "started": {name: 1}}.get(where, [name])
        decide(app, **{"job": "shop.fetch", where: value})

    with pytest.raises(ConfigurationError) as error:
        ask("shop.proces")
    assert str(error.value) == f"decide: {where} names an unknown job 'shop.proces', did you mean 'shop.process'?"
    with pytest.raises(ConfigurationError, match=f"{where} names 'shop.plain', a task without base=OrchestratedTask"):
        ask("shop.plain")
    with pytest.raises(ConfigurationError, match="give a job as its full name, its task or a call of it, not as 5"):
        ask(5)


def test_an_unknown_outcome_is_reported_with_a_suggestion(app):
    with pytest.raises(ConfigurationError, match="not 'success', did you mean 'succeeded'"):
        decide(app, job="shop.process", ended={"shop.fetch": "success"})


def test_mistakes_in_the_jobs_are_reported(app):
    app.task(base=OrchestratedTask, name="shop.wrong", blocks=["shop.fetsh"], shared=False)(nothing)
    with pytest.raises(ConfigurationError, match=re.escape("unknown job 'shop.fetsh', did you mean 'shop.fetch'?")):
        decide(app, job="shop.fetch")


def test_modules_that_a_worker_would_import_are_imported(new_app, tmp_path, monkeypatch):
    app = new_app()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "jobs_of_a_module.py").write_text(
        "from celery import shared_task\nfrom celery_orchestration import OrchestratedTask\n"
        "@shared_task(base=OrchestratedTask)\ndef found(): ...\n"
    )
    app.conf.include = ["jobs_of_a_module"]
    assert decide(app, job="jobs_of_a_module.found")


# -- without a ledger


def test_eager_calls_need_no_redis(new_app):
    app = new_app(broker_url=NOBODY, result_backend=NOBODY, task_always_eager=True, task_eager_propagates=True)

    @app.task(base=OrchestratedTask, bind=True, max_running=1, depends_on=["shop.never"], shared=False)
    def add(self: Any, x: int, y: int) -> tuple[int, Any]:
        return x + y, self.fence

    assert add.delay(1, 2).get() == (3, None)
    assert add.apply_async((1, 2), priority="high").get() == (3, None)
    assert add.s(1).apply_async((2,)).get() == (3, None)
    assert add(1, 2) == (3, None)


@pytest.mark.slow
def test_a_worker_in_mode_off_needs_no_redis(new_app):
    app = new_app(orchestration_mode="off", orchestration_redis_url=NOBODY)

    @app.task(base=OrchestratedTask, max_running=1, priority="high", shared=False)
    def double(number: int) -> int:
        return 2 * number

    with start_worker(app, perform_ping_check=False, shutdown_timeout=10):
        assert double.delay(4).get(timeout=30) == 8


def test_the_examples_of_the_docs_hold():
    text = (PROJECT / "docs" / "testing.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 6
    names: dict[str, Any] = {"__name__": "docs"}
    for block in blocks:
        exec(block, names)
    names["app"].close()

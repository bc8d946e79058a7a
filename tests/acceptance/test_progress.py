"""``self.progress(done, total, note)``: ``status`` shows the latest report of a run, and reports cost the run
nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_orchestration.job.progress import EVERY
from celery_orchestration.ledger.scripts import script
from celery_orchestration.operate import Progress
from support.invariants import status_of
from support.proxy import DroppingProxy
from support.servers import RedisServer
from support.stage import Stage
from support.verbs import make_known
from support.wait import stays, until
from support.workers import Broker, run_celery

APP = "support.apps.limits"


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, APP)


def progress(stage: Stage, result: AsyncResult) -> Progress | None:
    return next((run.progress for run in status_of(stage.app).runs if run.id == result.id), None)


def shown(stage: Stage, *arguments: str) -> str:
    env = {**stage.env, "COLUMNS": "200"}
    return run_celery(APP, "orchestration", "status", *arguments, broker=stage.broker, env=env).stdout


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_the_latest_report_of_a_run_is_shown(stage: Stage, pool: str) -> None:
    """However fast its reports are, and although no further report follows."""
    stage.worker(pool)
    result = stage.send(stage.jobs.telling, "end", *[(number, 400, f"step {number}") for number in range(399)])
    found = until(lambda: (one := progress(stage, result)) and one.done == 398 and one)
    assert (found.total, found.note) == (400, "step 398")
    assert abs((status_of(stage.app).at - found.at).total_seconds()) < 30
    assert "100 % step 398" in shown(stage)
    [run] = json.loads(shown(stage, "--json"))["runs"]
    assert (run["progress"]["done"], run["progress"]["total"], run["progress"]["note"]) == (398, 400, "step 398")
    stage.release("end")
    stage.all_well()


def test_runs_of_one_process_are_distinguished(stage: Stage) -> None:
    stage.worker("threads", concurrency=4)
    results = [stage.send(stage.jobs.telling, "end", (number, 10, "")) for number in range(4)]
    until(lambda: [(one := progress(stage, result)) and one.done for result in results] == [0, 1, 2, 3])
    assert all(f"{number}/10" in shown(stage) for number in range(4))
    stage.release("end")
    stage.all_well()


def test_reports_in_a_tight_loop_are_sent_a_few_times_a_second(stage: Stage, proxy: DroppingProxy) -> None:
    told = []
    names = {script("record_progress").sha.encode(), script("record_progress").function.encode()}
    make_known(stage.ledger, "record_progress")
    proxy.lose_reply(lambda request: not names.isdisjoint(request) and told.append(request) is not None)
    stage.worker(concurrency=1, env={"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0)})
    took = stage.send(stage.jobs.counting, 100_000).get(timeout=60)
    stage.all_well()
    assert 1 <= len(told) <= took / EVERY + 2


def test_hostile_notes_are_shown_harmlessly(stage: Stage) -> None:
    stage.worker()
    note = "\x1b[31mred\x07\r\n\u202eleft [bold]x[/bold] \ud800" + "y" * 5000
    result = stage.send(stage.jobs.telling, "end", (1.5, None, note.encode("utf-8", "replace").decode()))
    found = until(lambda: progress(stage, result))
    assert (found.done, found.total, len(found.note)) == (1.5, None, 200)
    out = shown(stage)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(out)
    assert "1.5 \\x1b[31mred" in out
    assert "yyyyy" in json.loads(shown(stage, "--json"))["runs"][0]["progress"]["note"]
    stage.release("end")
    stage.all_well()


def test_an_invalid_report_raises_an_error_at_once(stage: Stage) -> None:
    stage.worker()
    said = stage.send(stage.jobs.nonsense).get(timeout=30)
    assert said == "progress: done should be at least 0 and finite, not nan"


def test_a_run_that_starts_again_begins_without_progress(stage: Stage) -> None:
    process = stage.worker(env={"TEST_LEASE": "60"})
    result = stage.send(stage.jobs.silent, "end")
    first = stage.started(result)
    assert until(lambda: progress(stage, result)).note == "of the first start"
    process.kill_child(first.start.pid)
    stage.started(result, 2)
    until(lambda: [run.state for run in status_of(stage.app).runs] == ["running"])
    stays(lambda: progress(stage, result) is None, 0.7)
    stage.release("end")
    stage.all_well()


@pytest.mark.slow
def test_a_run_that_lost_its_lease_is_not_heard(stage: Stage) -> None:
    zombie = stage.worker(concurrency=1)
    result = stage.send(stage.jobs.silent, "end")
    first = stage.started(result)
    until(lambda: progress(stage, result))
    stage.worker(concurrency=1)
    zombie.pause(whole=False)
    stage.started(result, 2)
    # The void run reports once more: done here with its fence.
    ledger = script("record_progress")
    count = stage.ledger.eval(ledger.text, 1, "{faults}:", result.id, str(first.start.fence), '{"done":1}')
    assert count == 0
    assert progress(stage, result) is None
    stage.release("end")
    until(result.ready)
    zombie.resume()
    stage.all_well(void={first.start.execution})


@pytest.mark.slow
def test_a_redis_that_is_away_does_not_hold_up_who_says_something(
    stage_on: Callable[..., Stage], redis_factory: Callable[..., RedisServer], redis_broker: Broker, monkeypatch: Any
) -> None:
    """Redis neither answers nor refuses connections; when it is back, the latest value is reported."""
    ledger = redis_factory(name="ledger", appendonly=True)
    monkeypatch.setenv("CELERY_ORCHESTRATION_REDIS_URL", ledger.url())
    stage = stage_on(redis_broker, APP, env={"CELERY_ORCHESTRATION_REDIS_URL": ledger.url()})
    stage.worker("threads", concurrency=2)
    result = stage.send(stage.jobs.talking, "end")
    stage.started(result)
    until(lambda: progress(stage, result))

    def said() -> float:
        return float((stage.scratch / f"said-{result.id}").read_text() or 0)

    for stop, back in ((ledger.kill, ledger.start), (ledger.process.pause, ledger.process.resume)):
        stop()
        before, began = said(), time.monotonic()
        until(lambda before=before: said() > before + 50)
        assert time.monotonic() - began < 20
        back()
        now = said()
        until(lambda now=now: (found := _progress_or_none(stage, result)) and found.done > now, 30)
    stage.release("end")
    assert result.get(timeout=30) < 5, "seconds that saying it took at most"


def _progress_or_none(stage: Stage, result: AsyncResult) -> Any:
    try:
        return progress(stage, result)
    except Exception:
        return None

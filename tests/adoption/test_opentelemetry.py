"""The real opentelemetry-instrumentation-celery traces a run from call to end; waits are spans in between."""

from __future__ import annotations

from typing import Any

import pytest

from adoption.project import PATIENCE, Project
from support.wait import until

NEEDS = ("opentelemetry.sdk", "opentelemetry.instrumentation.celery")


@pytest.fixture(scope="module")
def watched(open_project) -> Project:
    """With a worker and a beat."""
    made = open_project("monitored", "watch", env={"WATCH_MONITOR": "opentelemetry"})
    made.worker()
    made.beat()
    return made


def spans(watched: Project, name: str) -> list[dict[str, Any]]:
    return [span for span in watched.journal() if span["name"] == name]


def test_a_run_is_a_child_of_the_call_that_sent_it_even_if_it_waited(watched):
    code = """
from watch.tasks import plain, work
results = [plain.delay(), work.delay(1), work.delay(), work.apply_async(countdown=1)]
for result in results:
    result.get(60)
answer([result.id for result in results])
"""
    ids = watched.python(code, env={"WATCH_CLIENT": "1"})

    def of_runs(kind: str) -> dict[str, dict[str, Any]]:
        names = [f"{kind}/watch.tasks.{name}" for name in ("plain", "work")]
        found = [span for name in names for span in spans(watched, name)]
        return {span["attributes"]["messaging.message.id"]: span for span in found}

    until(lambda: set(ids) <= of_runs("run").keys(), PATIENCE)
    for run_id in ids:
        call, run = of_runs("apply_async")[run_id], of_runs("run")[run_id]
        assert run["context"]["trace_id"] == call["context"]["trace_id"]
        assert run["parent_id"] == call["context"]["span_id"]


def test_a_run_that_beat_fired_is_a_child_of_that_fire(watched):
    runs = until(
        lambda: found if len(found := spans(watched, "run/watch.tasks.tock")) >= 3 else None, PATIENCE, poll=0.2
    )
    calls = {span["context"]["span_id"]: span for span in spans(watched, "apply_async/watch.tasks.tock")}
    traces = [run["context"]["trace_id"] for run in runs]
    assert len(set(traces)) == len(traces), "each fire is a trace of its own"
    assert all(run["parent_id"] in calls for run in runs)


def test_a_failure_is_recorded_on_its_span(watched):
    watched.python("from watch.tasks import fail; fail.delay().get(60, propagate=False)")
    (failed,) = until(lambda: spans(watched, "run/watch.tasks.fail"), PATIENCE)
    assert failed["status"]["status_code"] == "ERROR"


def test_a_wait_is_a_span_between_the_call_and_the_run_linked_to_the_call_that_it_waited_for(watched):
    code = """
from watch.tasks import sweep_up, work
results = [work.delay(1.5), work.delay(), sweep_up.delay()]
for result in results:
    result.get(60)
answer([result.id for result in results])
"""
    first, second, third = watched.python(code, env={"WATCH_CLIENT": "1"})

    def by_id(name: str) -> dict[str, dict[str, Any]]:
        return {span["attributes"]["messaging.message.id"]: span for span in spans(watched, name)}

    until(lambda: third in by_id("run/watch.tasks.sweep_up"), PATIENCE)
    calls = {**by_id("apply_async/watch.tasks.work"), **by_id("apply_async/watch.tasks.sweep_up")}
    runs = {**by_id("run/watch.tasks.work"), **by_id("run/watch.tasks.sweep_up")}
    waits = {**by_id("wait/watch.tasks.work"), **by_id("wait/watch.tasks.sweep_up")}
    assert first not in waits, "it did not wait"
    for waiter, reason in ((second, "room"), (third, "blocked")):
        wait, call, run = waits[waiter], calls[waiter], runs[waiter]
        assert wait["context"]["trace_id"] == call["context"]["trace_id"]
        assert wait["parent_id"] == call["context"]["span_id"]
        assert call["start_time"] <= wait["start_time"] < wait["end_time"] <= run["start_time"]
        told = wait["attributes"]
        assert told["celery_orchestration.wait.reason"] == reason
        assert told["celery_orchestration.wait.blocking_job"] == "watch.tasks.work"
        assert told["celery_orchestration.wait.blocking_run"] == first
        assert told["celery_orchestration.wait.blocking_fence"] < told["celery_orchestration.fence"]
        (link,) = wait["links"]
        assert link["context"]["span_id"] == calls[first]["context"]["span_id"]
        assert link["context"]["trace_id"] == calls[first]["context"]["trace_id"]


def test_a_countdown_is_a_span_too_and_no_wait_at_the_gate(watched):
    code = """
from watch.tasks import delayed
result = delayed.apply_async(countdown=2)
result.get(60)
answer(result.id)
"""
    run_id = watched.python(code, env={"WATCH_CLIENT": "1"})
    (delay,) = until(lambda: spans(watched, "delay/watch.tasks.delayed"), PATIENCE)
    assert delay["attributes"]["messaging.message.id"] == run_id
    assert delay["attributes"]["celery_orchestration.wait.kind"] == "delay"
    assert spans(watched, "wait/watch.tasks.delayed") == []

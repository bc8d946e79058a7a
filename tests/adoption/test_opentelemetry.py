"""The real opentelemetry-instrumentation-celery follows a run from the call to its end, waiting included."""

from __future__ import annotations

from typing import Any

import pytest

from support.project import PATIENCE, Project
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

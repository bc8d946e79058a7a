"""The real sentry-sdk, set up as its page says, sees of jobs what it sees of plain tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from support.project import PATIENCE, Project
from support.wait import until

NEEDS = ("sentry_sdk", "redbeat")


@pytest.fixture(scope="module")
def watched(open_project) -> Project:
    """With a worker and a beat."""
    made = open_project("monitored", "watch", env={"WATCH_MONITOR": "sentry"})
    made.worker()
    made.beat()
    return made


def sent(watched: Project, kind: str) -> list[dict[str, Any]]:
    return [item for item in watched.journal() if item["item"] == kind]


def process_spans(watched: Project, task: str) -> list[dict[str, Any]]:
    """What the workers' transactions tell about taking a run of ``task`` from its queue."""
    return [
        span
        for transaction in sent(watched, "transaction")
        if transaction["transaction"] == task
        for span in transaction["spans"]
        if span["op"] == "queue.process"
    ]


def test_an_exception_in_a_job_is_one_event_with_its_name(watched):
    watched.python("from watch.tasks import fail; fail.delay().get(60, propagate=False)")
    events = until(
        lambda: [event for event in sent(watched, "event") if event.get("transaction") == "watch.tasks.fail"], PATIENCE
    )
    assert [event["exception"]["values"][0]["value"] for event in events] == ["a job failed"]


def test_a_trace_goes_on_in_a_run_that_waited(watched):
    code = """
import sentry_sdk
from watch.tasks import plain, work
with sentry_sdk.start_transaction(name="a view") as view:
    results = [plain.delay(), work.delay(1), work.delay()]
for result in results:
    result.get(60)
answer(view.trace_id)
"""
    trace = watched.python(code)
    in_trace = lambda: Counter(  # noqa: E731
        found["transaction"]
        for found in sent(watched, "transaction")
        if found["contexts"]["trace"]["trace_id"] == trace and found["transaction"] != "a view"
    )
    until(lambda: in_trace() == {"watch.tasks.plain": 1, "watch.tasks.work": 2}, PATIENCE, str(in_trace))


def test_the_latency_of_scheduled_runs_does_not_grow(watched):
    spans = until(lambda: found if len(found := process_spans(watched, "watch.tasks.tock")) >= 8 else None, PATIENCE)
    latencies = [span["data"]["messaging.message.receive.latency"] for span in spans]
    # Fires come one second after the other: a frozen time would add 1,000 ms to each.
    assert min(latencies[-3:]) < 3_000, latencies


def test_crons_hear_of_each_scheduled_run_how_it_ended(watched):
    """Sentry knows minutes at least, so this takes up to one."""
    wanted = {
        "watch.tasks.tick": {"in_progress", "ok"},
        "watch.tasks.broken_tick": {"in_progress", "error"},
        "plain, every minute": {"in_progress", "ok"},
    }

    def heard() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for item in sent(watched, "check_in"):
            found.setdefault(item["monitor_slug"], set()).add(item["status"])
        return found

    until(lambda: all(heard().get(name, set()) >= states for name, states in wanted.items()), 130, str(heard()), poll=1)
    ids = [item["check_in_id"] for item in sent(watched, "check_in") if item["monitor_slug"] == "watch.tasks.tick"]
    assert set(Counter(ids).values()) <= {1, 2}, "a check-in is opened once and closed once"


def test_nothing_else_is_reported(watched):
    """Neither by beat nor by workers; sentry-sdk imports RedBeat, which looks at every scheduler that starts."""
    told = {value["value"] for event in sent(watched, "event") for value in event["exception"]["values"]}
    assert told <= {"a job failed", "a scheduled job failed"}

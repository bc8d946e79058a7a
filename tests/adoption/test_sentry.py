"""The real sentry-sdk, set up as its documentation says, reports the same for jobs as for plain tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from adoption.project import PATIENCE, Project
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
    """The workers' transactions for taking a run of ``task`` from its queue."""
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
    trace = watched.python(code, env={"WATCH_CLIENT": "1"})
    in_trace = lambda: Counter(  # noqa: E731
        found["transaction"]
        for found in sent(watched, "transaction")
        if found["contexts"]["trace"]["trace_id"] == trace and found["transaction"] != "a view"
    )
    until(lambda: in_trace() == {"watch.tasks.plain": 1, "watch.tasks.work": 2}, PATIENCE, str(in_trace))


def test_each_fire_has_its_own_time_of_sending_and_its_own_trace(watched):
    """Otherwise the reported latency would grow with each fire, and all runs would be in one trace."""
    spans = until(lambda: found if len(found := process_spans(watched, "watch.tasks.tock")) >= 8 else None, PATIENCE)
    latencies = [span["data"]["messaging.message.receive.latency"] for span in spans]
    assert min(latencies[-3:]) < 5_000, f"one fire a second: of a frozen message each would add 1,000 ms: {latencies}"
    assert len({span["trace_id"] for span in spans}) == len(spans)


@pytest.mark.parametrize(
    ("entry", "end"),
    [("watch.tasks.tick", "ok"), ("watch.tasks.broken_tick", "error"), ("plain", "ok"), ("broken", "error")],
)
def test_crons_hear_when_a_fire_is_sent_and_how_its_run_ended(watched, entry, end):
    """Sentry has minutes at least, so this takes up to one."""

    def heard(status: str) -> list[dict[str, Any]]:
        of_entry = [item for item in sent(watched, "check_in") if item["monitor_slug"] == entry]
        return [item for item in of_entry if item["status"] == status]

    ended = until(lambda: heard(end), 150, f"{entry} is {end}", poll=0.5)[0]
    (begun,) = [item for item in heard("in_progress") if item["check_in_id"] == ended["check_in_id"]]
    assert begun["monitor_config"] == {"schedule": {"type": "crontab", "value": "* * * * *"}, "timezone": "UTC"}


def test_nothing_else_is_reported(watched):
    """Neither by beat nor by workers; sentry-sdk imports RedBeat, which reads every scheduler that starts."""
    told = {value["value"] for event in sent(watched, "event") for value in event["exception"]["values"]}
    assert told <= {"a job failed", "a scheduled job failed", "a scheduled task failed"}

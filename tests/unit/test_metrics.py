"""Metrics: the ledger's data becomes a bounded number of series."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from celery_orchestration.operate.measurements import Measured
from celery_orchestration.web import metrics
from support.workers import PROJECT

NOW = 1_700_000_000_000
LIMITS = [100, 1000, 60_000, 1_800_000]


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "running": 0, "waiting": 0, "later": 0, "dead_letters": 0, **more}


def member(id: str, **more: Any) -> dict[str, Any]:
    at_work = {"left": 30_000, "heartbeat": NOW - 1000, "lease": 30_000, "draining": False, "running": 0, "slots": 4}
    return {"id": id, "kind": "prefork", "queues": ["celery", "images.high"], **at_work, **more}


def measured(jobs: Any = (), sums: Any = (), workers: Any = (), depths: Any = None, **status: Any) -> Measured:
    return Measured(
        status={"now": NOW, "paused": False, "jobs": jobs, "workers": workers, "slots": {"celery": 8}, **status},
        statistics={
            "now": NOW,
            "limits": LIMITS,
            "jobs": [{"name": name, "sums": [{"at": 0, **sum_}]} for name, sum_ in dict(sums).items()],
        },
        depths=depths or {},
    )


def series(facts: Measured | None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.text(lambda: facts).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(facts: Measured | None, metric: str, /, **labels: str) -> float | None:
    return series(facts).get((metric, frozenset(labels.items())))


def test_metrics_without_a_ledger_say_that_it_is_down():
    assert series(None) == {("celery_orchestration_up", frozenset()): 0.0}


def test_outcomes_have_the_names_of_celery_exporter_and_ours():
    facts = measured(sums={"a": {"started": 9, "succeeded": 4, "failed": 2, "crashed": 1, "retried": 2, "revoked": 1}})
    assert value(facts, "celery_task_succeeded_total", name="a") == 4
    assert value(facts, "celery_task_failed_total", name="a") == 3
    assert value(facts, "celery_task_retried_total", name="a") == 2
    assert value(facts, "celery_task_revoked_total", name="a") == 1
    assert value(facts, "celery_orchestration_ended_total", name="a", outcome="crashed") == 1


def test_buckets_are_cumulative_and_go_beyond_half_an_hour():
    waits = {"gate": {"blocked": {"sum": 4_000_000, "1": 2, "3": 1, "5": 1}}, "waited": 4}
    facts = measured(sums={"a": waits, "b": waits})
    name = "celery_orchestration_gate_wait_seconds"
    found = {
        end: value(facts, f"{name}_bucket", reason="blocked", le=end)
        for end in ("0.1", "1.0", "60.0", "1800.0", "+Inf")
    }
    assert found == {"0.1": 4, "1.0": 4, "60.0": 6, "1800.0": 6, "+Inf": 8}
    assert value(facts, f"{name}_sum", reason="blocked") == 8000
    assert value(facts, "celery_orchestration_job_wait_seconds_count", name="a") == 4


def test_queue_wait_gate_wait_requested_delay_and_hand_over_are_separate():
    facts = measured(
        sums={"a": {what: {"sum": 1, "1": n} for n, what in enumerate(("queue", "delay", "hand_over"), 1)}}
    )
    assert value(facts, "celery_orchestration_queue_wait_seconds_count") == 1
    assert value(facts, "celery_orchestration_requested_delay_seconds_count") == 2
    assert value(facts, "celery_orchestration_hand_over_seconds_count") == 3
    assert value(facts, "celery_orchestration_gate_wait_seconds_count", reason="blocked") is None


def test_counters_do_not_fall_when_a_job_is_deleted():
    waits = {"gate": {"room": {"sum": 5, "1": 3}}, "waited": 3, "succeeded": 7}
    facts = measured(sums={"a": waits, "": waits})
    assert value(facts, "celery_orchestration_gate_wait_seconds_count", reason="room") == 6
    assert value(facts, "celery_task_succeeded_total", name="") is None


def test_metrics_show_the_state_of_a_job():
    off = json.dumps({"by": "failures", "why": "5 failures in a row", "at": NOW})
    facts = measured(
        [job("a", running=2, waiting=41, later=3, failures=5, dead_letters=6, disabled=off, succeeded_at=NOW - 5000)]
    )
    found = {name: number for (name, labels), number in series(facts).items() if ("name", "a") in labels}
    assert found == {
        "celery_orchestration_running": 2,
        "celery_orchestration_waiting": 41,
        "celery_orchestration_delayed": 3,
        "celery_orchestration_disabled": 1,
        "celery_orchestration_consecutive_failures": 5,
        "celery_orchestration_dead_letters": 6,
        "celery_orchestration_last_success_timestamp_seconds": (NOW - 5000) / 1000,
    }
    assert value(facts, "celery_orchestration_disabled", name="a", by="failures") == 1


def test_a_job_that_is_overdue_says_so():
    entry = {"paused": False, "prev": NOW - 120_000, "last": NOW - 60_000, "at": NOW - 60_000, "next": NOW}
    facts = measured([job("a"), job("b", succeeded_at=NOW)], fires={"a": [entry], "b": [entry]})
    assert value(facts, "celery_orchestration_overdue", name="a") == 1
    assert value(facts, "celery_orchestration_overdue", name="b") == 0


def test_metrics_count_workers_pools_queues_and_schedulers():
    workers = [
        member("w1"),
        member("w2", running=1, queues=["celery"]),
        member("w3", draining=True),
        member("w4", left=-1),
        member("s1", kind="beat"),
        member("s2", kind="beat"),
    ]
    facts = measured(workers=workers, depths={"celery": 7, "low": None}, leads=[{"service": "", "who": "s1"}])
    states = {
        state: value(facts, "celery_orchestration_workers", state=state)
        for state in ("idle", "busy", "draining", "dead")
    }
    assert states == {"idle": 1, "busy": 1, "draining": 1, "dead": 1}
    assert value(facts, "celery_orchestration_pool_workers", pool="images") == 2
    assert value(facts, "celery_orchestration_pool_slots", pool="images") == 8
    assert value(facts, "celery_active_worker_count", queue_name="celery") == 3
    assert value(facts, "celery_active_process_count", queue_name="celery") == 8
    assert value(facts, "celery_queue_length", queue_name="celery") == 7
    assert value(facts, "celery_queue_length", queue_name="low") is None
    assert value(facts, "celery_orchestration_leader") == 1
    assert value(facts, "celery_orchestration_standby_schedulers") == 1


def test_labels_hold_no_host_worker_run_or_room_key():
    labels = {label for spec in metrics.METRICS.values() for label in spec.labels}
    assert labels == {"name", "queue_name", "by", "outcome", "result", "reason", "state", "pool"}


def test_hostile_names_stay_labels():
    evil = 'evil"} 1\ncelery_orchestration_up 0\n\\'
    facts = measured(sums={"evil%22%7D%201%0Acelery_orchestration_up%200%0A%5C": {"succeeded": 1}})
    assert value(facts, "celery_task_succeeded_total", name=evil) == 1
    assert value(facts, "celery_orchestration_up") == 1


def test_the_page_of_metrics_has_this_very_table():
    page = Path(PROJECT, "docs", "metrics.md").read_text()
    assert metrics.table() in page, f"docs/metrics.md is to have this table:\n{metrics.table()}"

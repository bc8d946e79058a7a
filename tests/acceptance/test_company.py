"""Base classes with a Request or a Strategy of their own, and unusual messages."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded

from support.history import History
from support.invariants import status_of, waiting
from support.wait import until
from support.workers import Broker, WorkerProcess

APP = "support.apps.company"
BASES = ("CompanyFirst", "CompanyLast", "ByNameFirst", "KnowingLast")
WITH_STRATEGY = BASES[2:]

StartWorker = Callable[..., WorkerProcess]
LoadApp = Callable[..., ModuleType]


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "seen"
    path.touch()
    monkeypatch.setenv("TEST_SEEN", str(path))
    return path


def test_a_request_and_a_strategy_of_a_companys_own_work_and_go_through_the_gate(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, seen: Path, tmp_path: Path
) -> None:
    process = worker(redis_broker, APP, concurrency=2 * len(BASES), env={"TEST_SEEN": str(seen)})
    tasks = load_app(redis_broker, APP).app.tasks
    app = tasks["company.plain"].app
    gate = tmp_path / "go"
    first = {base: tasks[f"company.{base}"].delay(str(gate)) for base in BASES}
    until(lambda: len(history.started()) == len(BASES))
    second = {base: tasks[f"company.{base}"].delay("second") for base in BASES}
    later = {base: tasks[f"company.{base}"].apply_async(("later",), countdown=1) for base in BASES}
    until(lambda: waiting(app) >= len(BASES), 30, "the second ones wait: one of each may run at a time")
    gate.touch()
    for base in BASES:
        assert second[base].get(timeout=30) == "second"
        assert later[base].get(timeout=30) == "later"
        failed = tasks[f"company.{base}"].delay("fail")
        with pytest.raises(ValueError, match="fail"):
            failed.get(timeout=30)
        late = tasks[f"company.{base}"].apply_async(("sleep",), time_limit=1)
        with pytest.raises(TimeLimitExceeded):
            late.get(timeout=30)
        until(lambda: f"timeout {late.id}" in seen.read_text())  # noqa: B023
        lines = seen.read_text().splitlines()
        for result in (first[base], second[base], later[base], failed, late):
            assert f"init {result.id}" in lines, base
            assert (f"strategy {result.id}" in lines) == (base in WITH_STRATEGY), base
        # After the hand-over: the message arrived once, and the request that ran was made from the ledger's copy.
        assert lines.count(f"init {second[base].id}") >= 2
        assert f"failure {failed.id}" in lines
    until(lambda: not status_of(app).runs)
    assert process.running


def test_a_strategy_that_bypasses_the_gate_is_refused(redis_broker: Broker, worker: StartWorker, seen: Path) -> None:
    process = worker(redis_broker, APP, ready=False, env={"TEST_SEEN": str(seen), "TEST_BYPASS": "1"})
    until(lambda: not process.running, 30)
    assert "without asking the gate" in process.log()
    assert "company.OwnStrategy" in process.log()


# -- messages


def protocol_2(task: Any, body: Any = None, **headers: Any) -> dict[str, Any]:
    """A message as kombu's Redis transport has it."""
    id = str(uuid.uuid4())
    return {
        "body": json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
        if body is None
        else body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": task, "id": id, "root_id": id, **headers},
        "properties": {
            "correlation_id": id,
            "delivery_mode": 2,
            "delivery_tag": str(uuid.uuid4()),
            "delivery_info": {"exchange": "", "routing_key": "celery"},
            "body_encoding": "utf-8",
            "priority": 0,
        },
    }


HOSTILE: list[Any] = [None, 7, -1, 1e300, "", "x", "\ud800", [], [1], {}, {"a": {"b": 1}}, True]
FIELDS = (
    *("id", "eta", "expires", "retries", "timelimit", "replaced_task_nesting", "shadow", "argsrepr", "root_id"),
    *("ignore_result", "stamps", "stamped_headers", "redelivered", "orchestration", "orchestration_priority"),
    "orchestration_force",
)
GRANTS: list[Any] = [
    {"grant": grant, "exchange": where, "routing_key": where} for grant in ("1", "x", 5, None, {}, "9" * 400)
    for where in ("celery", "", None, [])
]  # fmt: skip


def messages(task: str) -> list[dict[str, Any]]:
    found = [protocol_2(task, **{field: value}) for field in FIELDS for value in HOSTILE]
    found += [protocol_2(task, orchestration=grant) for grant in GRANTS]
    found += [protocol_2(task, stamped_headers=["a"], stamps=value) for value in HOSTILE]
    found += [protocol_2(task, body=json.dumps(body)) for body in ([], [1], [[], {}], {}, 5, [5, 5, 5], [[], [], {}])]
    found += [protocol_2(task, company="breaks"), protocol_2(task, eta="0001-01-01T00:00:00+23:59")]
    found += [protocol_2(task, eta="9999-12-31T23:59:59-23:59"), protocol_2(task, eta="tomorrow")]
    for leave_out in ("id", "task", "root_id"):
        message = protocol_2(task)
        del message["headers"][leave_out]
        found.append(message)
    for body in (
        {"task": task, "id": "v1", "args": [], "kwargs": {}},
        {"task": task, "args": [], "kwargs": {}},
        {"task": task, "id": "v2", "args": 5, "kwargs": 7},
        {"task": task, "id": {}, "args": [], "kwargs": {}, "eta": 5, "expires": [], "retries": "x"},
    ):
        message = protocol_2(task, body=json.dumps(body))
        message["headers"] = {}
        found.append(message)
    return found


def test_no_message_ends_a_worker(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History, seen: Path
) -> None:
    process = worker(redis_broker, APP, concurrency=2, env={"TEST_SEEN": str(seen)})
    jobs = load_app(redis_broker, APP)
    client = redis_broker.redis.client()
    for task in ("company.CompanyFirst", "company.KnowingLast", "company.plain"):
        for message in messages(task):
            client.lpush("celery", json.dumps(message))
    until(lambda: client.llen("celery") == 0, 60, "all were fetched")
    last = [jobs.app.tasks[name].delay("last") for name in ("company.CompanyFirst", "company.plain")]
    assert [result.get(timeout=60) for result in last] == ["last", "last"]
    assert process.running
    log = process.log()
    assert "Unrecoverable error" not in log
    assert "cannot be made" in log
    assert "is rejected" in log
    assert len(process.children()) == 2
    # Celery keeps a plain task's message whose retries it cannot even count.
    until(lambda: not [kept for kept in client.hvals("unacked") if "company.plain" not in kept], 30, "none is kept")

"""Metrics of a living system: printed, and served to Prometheus and to probes."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.processes import free_port
from support.stage import Stage
from support.wait import until
from support.workers import Broker, CeleryProcess, celery_command, run_celery

JOBS = "support.apps.jobs"
NAME = f"{JOBS}.{{}}".format


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, JOBS)


@pytest.fixture
def served(stage: Stage, tmp_path: Path) -> Iterator[str]:
    """The address of ``orchestration metrics --port``."""
    port = free_port()
    command = celery_command(JOBS, "orchestration", "metrics", "--port", str(port))
    process = CeleryProcess("metrics", command, directory=tmp_path, env={**stage.broker.env(), **stage.env})
    process.start()
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _is_up(address), 30)
        yield address
    finally:
        process.cleanup()


def _is_up(address: str) -> bool:
    try:
        return fetch(f"{address}/metrics")[0] == 200
    except OSError:
        return False


def fetch(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def series(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name, then by the values of the labels in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def printed(stage: Stage) -> dict[str, Any]:
    done = run_celery(JOBS, "orchestration", "metrics", broker=stage.broker, env=stage.env)
    assert (done.returncode, done.stderr) == (0, "")
    return series(done.stdout)


def test_outcomes_and_waits_of_jobs_are_counted(stage: Stage):
    stage.worker(concurrency=2)
    runs = [stage.send(stage.jobs.exclusive, 0.3) for _ in range(3)]
    runs.append(stage.send(stage.jobs.free, countdown=2))
    for run in runs:
        run.get(timeout=30)
    stage.send(stage.jobs.fetch, 0, True).get(timeout=30, propagate=False)

    def counted() -> dict[str, Any] | None:
        found = printed(stage)
        ended = found.get("celery_task_failed_total", {})
        return found if ended.get((NAME("fetch"),)) else None

    found = until(counted, 30)
    assert found["celery_task_succeeded_total"] == {(NAME("exclusive"),): 3, (NAME("free"),): 1}
    assert found["celery_task_runtime_count"][(NAME("exclusive"),)] == 3
    assert 0.9 <= found["celery_task_runtime_sum"][(NAME("exclusive"),)] < 5
    reasons = found["celery_orchestration_gate_wait_seconds_count"]
    assert {*reasons} <= {("room",), ("behind",)}
    assert sum(reasons.values()) == 2
    assert found["celery_orchestration_job_wait_seconds_sum"][(NAME("exclusive"),)] >= 0.3
    assert found["celery_orchestration_requested_delay_seconds_count"][()] == 1
    assert found["celery_orchestration_requested_delay_seconds_sum"][()] > 0
    assert found["celery_orchestration_queue_wait_seconds_count"][()] == 5, "each call was in a queue once"
    assert found["celery_orchestration_dead_letters"][(NAME("fetch"),)] == 1
    assert found["celery_orchestration_consecutive_failures"][(NAME("fetch"),)] == 1
    assert sum(found["celery_orchestration_workers"].values()) == 1
    assert found["celery_active_process_count"][("celery",)] == 2


def test_prometheus_and_probes_are_served(stage: Stage, served: str):
    stage.worker()
    stage.send(stage.jobs.free).get(timeout=30)

    def succeeded() -> float | None:
        return series(fetch(f"{served}/metrics")[1]).get("celery_task_succeeded_total", {}).get((NAME("free"),))

    until(succeeded, 10)
    status, document = fetch(f"{served}/health")
    assert (status, json.loads(document)["ok"]) == (200, True)
    assert fetch(f"{served}/")[0] == 404


def test_a_redis_that_is_gone_is_a_figure_and_no_error(stage: Stage, served: str):
    stage.broker.redis.stop()
    status, text = fetch(f"{served}/metrics")
    assert (status, series(text)) == (200, {"celery_orchestration_up": {(): 0.0}})
    status, document = fetch(f"{served}/health")
    assert (status, json.loads(document)["ok"]) == (503, False)
    assert "127.0.0.1" not in document
    stage.broker.redis.start()
    until(lambda: series(fetch(f"{served}/metrics")[1])["celery_orchestration_up"][()] == 1, 30)


def test_without_the_extra_it_says_what_to_install(stage: Stage, tmp_path: Path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('no', name='prometheus_client')")
    env = {**stage.env, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    done = run_celery(JOBS, "orchestration", "metrics", broker=stage.broker, env=env)
    assert done.returncode != 0
    assert "pip install 'celery_orchestration[dashboard]'" in done.stderr

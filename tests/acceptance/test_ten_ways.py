"""Ten ways to break the example: ``explain`` names the root cause of each, and ``doctor`` reports it where it should.

docs/troubleshooting.md describes the same ten for users.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_orchestration.operate.doctor.models import Diagnosis
from celery_orchestration.operate.explain.models import Explanation
from support.schedulers import SchedulerProcess
from support.wait import until
from support.workers import Broker, WorkerProcess, run_celery

APP = "support.apps.pipeline"
FETCH, PROCESS, CLEANUP = (f"examples.pipeline.{name}" for name in ("fetch_data", "process_data", "cleanup"))


class Example:
    """The workers of the example, and the commands of an operator."""

    def __init__(self, broker: Broker, start: Callable[..., WorkerProcess], env: dict[str, str]) -> None:
        self.broker = broker
        self.env = env
        self._start = start

    def worker(self, app: str = APP, env: dict[str, str] | None = None, **options: Any) -> WorkerProcess:
        return self._start(self.broker, app, env={**self.env, **(env or {})}, **options)

    def type(self, *words: str, env: dict[str, str] | None = None) -> Any:
        return run_celery(APP, "orchestration", *words, broker=self.broker, env={**self.env, **(env or {})})

    def did(self, *words: str) -> Any:
        done = self.type(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def explain(self, what: str, **env: str) -> Explanation:
        done = self.type("explain", what, "--json", env=env)
        assert done.stdout, done.stderr
        found = Explanation.model_validate_json(done.stdout)
        assert done.returncode == int(found.root.wrong)
        return found

    def explained(self, what: str, code: str, **env: str) -> Explanation:
        """Waits until `explain` gives this code."""
        return until(lambda: found if (found := self.explain(what, **env)).root.code == code else None)

    def problems(self, check: str, **env: str) -> list[str]:
        """The problems of the doctor's check, and the command that fixes each."""
        done = self.type("doctor", "--json", env=env)
        assert done.stdout, done.stderr
        found = Diagnosis.model_validate_json(done.stdout)
        assert done.returncode == int(not found.ok)
        return [f"{one.found}: {one.fix}" for one in found.checks if (one.name, one.state) == (check, "problem")]


@pytest.fixture
def example(redis_broker: Broker, worker: Callable[..., WorkerProcess]) -> Example:
    return Example(redis_broker, worker, {"PIPELINE_REDIS": redis_broker.broker_url})


@pytest.fixture
def beat(example: Example, tmp_path: Path, reported: Callable[[Any], None]) -> Iterator[SchedulerProcess]:
    urls = {"broker_url": example.broker.broker_url, "backend_url": example.broker.backend_url}
    process = SchedulerProcess(APP, directory=tmp_path, env=example.env, **urls)
    reported(process)
    process.start()
    try:
        process.wait_settled()
        yield process
    finally:
        process.cleanup()


def release(**jobs: dict[str, Any]) -> dict[str, str]:
    return {"PIPELINE_RELEASE": json.dumps(jobs)}


def test_1_a_dependency_was_disabled_by_failures(example):
    impatient = release(fetch_data={"max_retries": 0, "max_consecutive_failures": 2})
    example.worker(env={"PIPELINE_SOURCE": "/nowhere/data.csv", **impatient})
    for _ in range(2):
        example.did("trigger", FETCH)
    run = example.did("trigger", PROCESS)["run_id"]
    until(lambda: example.explain(PROCESS).chain[0].run, message="a worker has heard of the run", poll=0.5)
    found = example.explained(PROCESS, "disabled_by_failures")
    assert found.root.job == FETCH
    assert "2 failures in a row, the last: ConnectionError: /nowhere/data.csv cannot be reached" in found.root.text
    assert found.root.fix == f"celery -A {APP} orchestration enable {FETCH}"
    assert [link.job for link in found.chain] == [PROCESS, FETCH]
    assert found.chain[0].run.id == run
    assert found.summary.startswith(f"{PROCESS} waits for {FETCH}: ")
    assert example.explain(run).root.code == "disabled_by_failures"
    assert any(FETCH in problem for problem in example.problems("disabled"))
    assert example.type(*found.root.fix.split()[4:]).returncode == 0
    assert example.explain(PROCESS).root.code != "disabled_by_failures"


@pytest.mark.usefixtures("beat")
def test_2_a_dependency_never_ran(example):
    example.worker()
    example.did("trigger", PROCESS)
    found = example.explained(PROCESS, "never_ran")
    assert found.root.job == FETCH
    assert "has never ended; its next run is due in" in found.root.text
    assert not found.root.wrong


def test_3_a_job_is_blocked_by_a_long_run(example):
    worker = example.worker(env={"PIPELINE_CLEANUP_SECONDS": "60"})
    long = example.did("trigger", CLEANUP)["run_id"]
    example.explained(CLEANUP, "running")
    example.did("trigger", PROCESS)
    found = example.explained(PROCESS, "blocked")
    assert found.root.job == CLEANUP
    assert f"has been running on {worker.hostname} for" in found.root.text
    assert found.chain[-1].run.id == long


def test_4_a_cap_is_taken_by_a_run_of_a_dead_worker(example):
    slow = {"PIPELINE_CLEANUP_SECONDS": "60", "PIPELINE_LEASE": "12"}
    doomed = example.worker(env=slow)
    example.did("trigger", CLEANUP)
    example.explained(CLEANUP, "running")
    example.worker(env=slow)
    doomed.kill()
    example.did("trigger", CLEANUP)
    found = example.explained(CLEANUP, "worker_died")
    assert found.chain[0].text.startswith("waiting for room")
    assert f"was started on {doomed.hostname}, which has been silent" in found.root.text
    assert "the run is recovered" in found.root.text
    assert doomed.hostname in until(lambda: example.problems("deaths"), 30)[0]
    assert example.explained(CLEANUP, "room").chain[-1].run.recoveries == 1


def test_5_no_worker_serves_its_queue(example):
    example.worker(queues=["celery"])
    example.did("trigger", FETCH)
    found = example.explain(FETCH)
    assert found.root.code == "unserved_queue"
    assert found.root.fix == f"celery -A {APP} worker -n default.high@%h -Q default.high"
    assert found.queue.depth == 1
    assert any("default.high" in problem for problem in example.problems("queues"))


def test_6_everything_is_paused(example):
    example.worker()
    example.did("pause", "--reason", "moving house")
    run = example.did("trigger", FETCH)["run_id"]
    found = example.explained(FETCH, "paused")
    assert until(lambda: example.explain(FETCH).chain[0].run).id == run
    assert "moving house" in found.root.text
    assert found.root.fix == f"celery -A {APP} orchestration resume"
    assert example.problems("pause") == [f"everything is paused: celery -A {APP} orchestration resume"]


def test_7_a_job_is_held_by_a_person(example):
    example.worker()
    until(lambda: example.type("disable", FETCH, "--reason", "the source moves").returncode == 0)
    example.did("trigger", PROCESS)
    found = example.explained(PROCESS, "disabled_by_person")
    assert found.root.job == FETCH
    assert "the source moves" in found.root.text
    assert found.root.fix == f"celery -A {APP} orchestration enable {FETCH}"


def test_8_a_new_release_brings_a_cycle(example):
    """Neither release has one alone: while both are live, the stricter policy of each job holds."""
    turned = release(fetch_data={"depends_on": [PROCESS]}, process_data={"depends_on": []})
    old = example.worker()
    example.worker(env=turned)
    run = example.did("trigger", PROCESS)["run_id"]
    found = example.explained(PROCESS, "cycle")
    assert f"{PROCESS} → {FETCH} → {PROCESS}" in found.root.text
    assert example.explain(run).root.code == "cycle"
    [problem] = example.problems("cycles")
    assert f"control shutdown -d {old.hostname}" in problem


def test_8_a_new_release_has_a_cycle_of_its_own(example):
    ring = release(fetch_data={"depends_on": [PROCESS]})
    refused = example.worker(env=ring, ready=False)
    until(lambda: not refused.running)
    found = example.explain(PROCESS, **ring)
    assert found.root.code == "cycle"
    assert "so that no worker starts" in found.root.text
    assert found.root.text.endswith((f"{FETCH} → {PROCESS} → {FETCH}", f"{PROCESS} → {FETCH} → {PROCESS}"))
    assert any(FETCH in problem for problem in example.problems("cycles", **ring))


def test_9_redis_is_set_to_evict(example):
    example.broker.redis.client().config_set("maxmemory-policy", "allkeys-lru")
    refused = example.worker(ready=False)
    until(lambda: not refused.running)
    found = example.explain(PROCESS)
    assert found.root.code == "redis_evicts"
    port = example.broker.redis.port
    assert found.root.fix == f"redis-cli -h 127.0.0.1 -p {port} CONFIG SET maxmemory-policy noeviction"
    assert any("allkeys-lru" in problem for problem in example.problems("eviction"))


def test_10_a_worker_runs_without_the_extension(example):
    stranger = example.worker("support.apps.plain_pipeline")
    example.did("trigger", PROCESS)
    found = example.explain(PROCESS)
    assert found.root.code == "worker_without_extension"
    assert stranger.hostname in found.root.text
    assert any(stranger.hostname in problem for problem in example.problems("strangers"))


def test_10_it_does_so_beside_others(example):
    """For the ledger, a dependency that ran there has never ended."""
    example.worker()
    stranger = example.worker("support.apps.plain_pipeline", queues=["default.high"])
    example.did("trigger", PROCESS)
    found = example.explained(PROCESS, "worker_without_extension")
    assert (found.root.job, found.chain[0].job) == (FETCH, PROCESS)
    assert stranger.hostname in found.root.text

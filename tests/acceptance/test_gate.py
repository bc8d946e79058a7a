"""Jobs that wait for each other, on real workers: every execution pool, both brokers."""

from __future__ import annotations

from typing import Any

import pytest

from support.history import most_at_once, overlaps
from support.wait import until

JOBS = "support.apps.jobs"
POOLS = ["prefork", "threads", "gevent", "solo"]
NAME = "support.apps.jobs.{}".format


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest) -> str:
    return request.param


def start(worker: Any, broker: Any, pool: str = "prefork", **options: Any) -> Any:
    options.setdefault("concurrency", 1 if pool == "solo" else 4)
    return worker(broker, JOBS, pool=pool, **options)


def test_runs_of_an_exclusive_job_never_overlap(broker, pool, worker, load_app, history):
    start(worker, broker, pool)
    start(worker, broker, pool)
    jobs = load_app(broker, JOBS)
    results = [jobs.exclusive.delay(0.02, note=n) for n in range(30)]
    assert sorted(result.get(timeout=30) for result in results) == list(range(30))
    assert most_at_once(history.events(), {NAME("exclusive")}) == 1


def test_a_cap_of_two_is_used_and_kept(broker, pool, worker, load_app, history):
    start(worker, broker, pool)
    start(worker, broker, pool)
    jobs = load_app(broker, JOBS)
    results = [jobs.pair.delay(0.1, note=n) for n in range(12)]
    assert sorted(result.get(timeout=30) for result in results) == list(range(12))
    assert most_at_once(history.events(), {NAME("pair")}) == 2


def test_jobs_that_block_each_other_never_overlap(broker, pool, worker, load_app, history):
    start(worker, broker, pool)
    start(worker, broker, pool)
    jobs = load_app(broker, JOBS)
    jobs.fetch.delay(0).get(timeout=30)
    results = [job.delay(0.02) for _ in range(10) for job in (jobs.cleanup, jobs.process, jobs.report)]
    for result in results:
        result.get(timeout=30)
    assert not overlaps(history.events(), {NAME("cleanup")}, {NAME("process"), NAME("report")})


def test_a_job_waits_for_the_job_it_depends_on(broker, pool, worker, load_app, history):
    start(worker, broker, pool)
    start(worker, broker, pool)
    jobs = load_app(broker, JOBS)
    waits = jobs.process.delay()
    until(lambda: waiting(jobs) == 1)
    fetched = jobs.fetch.delay(0.3)
    assert fetched.get(timeout=30) == "fetched"
    assert waits.get(timeout=30) == "processed"
    assert [event.job for event in history.events() if event.kind == "start"] == [NAME("fetch"), NAME("process")]


def waiting(jobs: Any) -> int:
    from celery_orchestration.operate import Orchestration  # noqa: PLC0415

    return Orchestration(jobs.app).status().waiting

"""Default settings in real time: a lease of 30 s, a sweep every 5 s, Celery's prefetch and visibility_timeout."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from support.stage import Stage
from support.wait import until
from support.workers import Broker

APP = "support.apps.fetching"
DEFAULTS = {"TEST_LEASE": "30", "TEST_SWEEP": "5"}
#: Lease, sweep, and the time that a busy machine needs for the rest.
BACK_SECONDS = 30 + 5 + 15


@pytest.mark.promises
@pytest.mark.timeout(240)
def test_a_killed_worker_loses_nothing_and_its_messages_run_elsewhere_after_lease_and_sweep(
    stage_on: Callable[..., Stage], redis_broker: Broker
) -> None:
    """24 messages, plain tasks and jobs, on 4 slots; another worker is alive."""
    stage = stage_on(redis_broker, APP, env=DEFAULTS)
    killed = stage.worker(concurrency=4)
    begun = [stage.send(stage.jobs.held_late, f"held-{n}") for n in range(4)]
    for result in begun:
        stage.started(result)
    waiting = [stage.send([stage.jobs.plain, stage.jobs.late, stage.jobs.job][n % 3]) for n in range(20)]
    killed.kill()
    killed_at = time.monotonic()
    for n in range(4):
        stage.release(f"held-{n}")
    stage.worker(concurrency=4)
    ids = {result.id for result in [*begun, *waiting]}
    until(
        lambda: ids <= {span.run for span in stage.history.spans() if span.end},
        BACK_SECONDS + 60,
        "all have run",
    )
    assert time.monotonic() - killed_at < BACK_SECONDS
    ran = [span.run for span in stage.history.spans()]
    assert all(ran.count(result.id) == 1 for result in waiting)
    assert all(ran.count(result.id) == 2 for result in begun)

"""The autoscaler of a worker that people start themselves: what it takes for work."""

from types import SimpleNamespace

import pytest
from celery.worker import state

from celery_orchestration import Pool, QueueAutoscaler
from celery_orchestration.pools.decide import decide

TYPICAL = {"quick": 0.01, "long": 60.0}


class Request:
    def __init__(self, name: str) -> None:
        self.name = name


@pytest.fixture
def wanted(monkeypatch):
    """How many processes it wants, of at most 4, while these tasks are executed and these are fetched besides."""

    def make(executed: list[str], fetched: list[str]) -> int:
        active, others = [Request(name) for name in executed], [Request(name) for name in fetched]
        monkeypatch.setattr(state, "active_requests", set(active))
        monkeypatch.setattr(state, "reserved_requests", {*active, *others})
        runtime = SimpleNamespace(
            settings=SimpleNamespace(pools={"images": Pool(target_wait_seconds=1)}),
            queues=SimpleNamespace(served=["images.normal"]),
            demand=SimpleNamespace(typical=TYPICAL.get),
        )
        autoscaler = QueueAutoscaler(
            SimpleNamespace(num_processes=len(executed) or 1), 4, 1, SimpleNamespace(orchestration=runtime)
        )
        autoscaler._watch = None  # no ledger and no broker to look at
        return decide(autoscaler._figures(0.0, autoscaler.processes)).wanted

    return make


def test_short_runs_need_one_process_however_many_are_fetched(wanted):
    assert wanted(["quick"], ["quick"] * 20) == 1


def test_a_short_run_behind_a_long_one_gets_a_process(wanted):
    assert wanted(["long"], ["quick"]) == 2


def test_a_run_of_unknown_duration_may_be_long(wanted):
    assert wanted(["new"], ["quick"]) == 2


def test_long_runs_that_are_fetched_get_a_process_each(wanted):
    assert wanted(["long"], ["long"] * 10) == 4

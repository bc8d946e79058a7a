"""When a worker asks for runs that are due."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.timers import GRACE, DueTimes
from support.gates import Loop


class Worker:
    def __init__(self) -> None:
        self.state = GateState(closed=False)
        self.loop = Loop()
        self.looks = 0
        self.due_times = DueTimes(self.state, self.loop, self.look)  # type: ignore[arg-type]

    def look(self) -> None:
        self.looks += 1

    def delays(self) -> list[float]:
        return [seconds for seconds, _ in self.loop.delayed]


@pytest.fixture
def worker() -> Worker:
    return Worker()


def scheduled(seconds: float) -> Any:
    return SimpleNamespace(not_before=time.time() + seconds)


def test_the_worker_that_sent_a_run_to_the_ledger_looks_when_it_is_due(worker: Worker):
    worker.due_times.remember(scheduled(10))
    assert worker.delays() == [pytest.approx(10, abs=0.05)]
    worker.loop.time_passes(11)
    assert worker.looks == 1


def test_other_workers_look_a_moment_later(worker: Worker):
    worker.due_times.due_in(10)
    [delay] = worker.delays()
    assert 10 + GRACE * 0.9 <= delay <= 10 + GRACE * 3


def test_a_run_without_a_start_time_is_not_remembered(worker: Worker):
    worker.due_times.remember(SimpleNamespace(not_before=None))  # type: ignore[arg-type]
    worker.due_times.due_in(None)
    assert worker.delays() == []


def test_an_earlier_time_takes_the_place_of_a_later_one(worker: Worker):
    worker.due_times.due_in(10)
    worker.due_times.due_in(5)
    worker.due_times.due_in(7)
    assert len(worker.delays()) == 2
    worker.loop.time_passes(20)
    assert worker.looks == 1


def test_after_a_look_it_waits_for_the_next_run_of_its_own(worker: Worker):
    worker.due_times.remember(scheduled(-1))
    worker.due_times.remember(scheduled(30))
    worker.loop.time_passes(0)
    assert worker.looks == 1
    assert worker.delays() == [pytest.approx(30, abs=0.05)]


def test_a_closed_gate_does_not_look(worker: Worker):
    worker.due_times.due_in(1)
    worker.state.closed = True
    worker.loop.time_passes(2)
    assert worker.looks == 0


def test_a_worker_that_has_stopped_sets_no_timer(worker: Worker):
    worker.state.stopping = True
    worker.due_times.due_in(1)
    assert worker.delays() == []

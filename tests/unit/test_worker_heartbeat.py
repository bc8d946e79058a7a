"""The worker's own thread: when it beats, and when it sweeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.ledger import Grant, Sweep
from celery_orchestration.node.publisher import MANY, Publisher
from celery_orchestration.worker.heartbeat import WorkerHeartbeat


class Ledger:
    """Notes which verbs were called."""

    ahead = 0.0

    def __init__(self) -> None:
        self.called: list[str] = []
        self.beats: list[list[tuple[str, str]]] = []
        self.void: list[str] = []
        self.more = 0

    def new_connection(self) -> Ledger:
        return self

    def heartbeat(self, worker: str, lease_ms: int, runs: list[tuple[str, str]]) -> list[str]:
        self.called.append("beat")
        self.beats.append(runs)
        return self.void

    def sweep(self, worker: str, number: int, interval_ms: int) -> Sweep:
        self.called.append(f"sweep {number}")
        self.more -= 1
        return Sweep(self.more >= 0, [], [], [], 0, "r1", "r1", [], [], [], None, 0)


def run(id: str, fence: str, void: bool = False) -> Any:
    return SimpleNamespace(run_id=id, fence=fence, void=void)


class Worker:
    def __init__(self) -> None:
        self.ledger = Ledger()
        self.voided: list[str] = []
        self.turns = SimpleNamespace(down=False)
        self.gate = SimpleNamespace(
            runs={"a": run("a", "7"), "b": run("b", "8", void=True)},
            voided=self.voided.extend,
            look_again_in=lambda seconds: None,
        )
        settings = SimpleNamespace(lease_seconds=30, sweep_interval_seconds=5, pools={})
        self.runtime: Any = SimpleNamespace(
            ledger=self.ledger, turns=self.turns, gate=self.gate, settings=settings, worker="w1", slots=0,
            deadline=None,
            destinations={}, recovery=None, memory=SimpleNamespace(refresh=lambda *_: None), disabled=None,
            in_loop=lambda function: function(), take_in=lambda strays: None,
            consuming=SimpleNamespace(look=lambda: None),
        )  # fmt: skip
        self.runtime.publisher = Publisher(self.runtime)
        self.heartbeat = WorkerHeartbeat(self.runtime)
        self.heartbeat._registered = True

    def round(self) -> list[str]:
        """What one round of its thread calls."""
        self.ledger.called.clear()
        self.heartbeat._round()
        return self.ledger.called


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_it_beats_and_sweeps_and_then_only_when_it_is_time(worker: Worker):
    assert worker.round() == ["beat", "sweep 0"]
    assert worker.round() == []


def test_it_does_not_sweep_while_outcomes_are_untold(worker: Worker):
    """A sweep could recover a run that is over, here or on another worker that cannot tell either."""
    worker.turns.down = True
    assert worker.round() == ["beat"]
    worker.heartbeat.sweep_soon()
    assert worker.round() == []
    worker.turns.down = False
    assert worker.round() == ["sweep 0"]


def test_it_beats_however_much_is_to_be_published(worker: Worker):
    worker.runtime.publisher.publish([Grant("run", "1")] * (2 * MANY))
    assert worker.round() == ["beat", "sweep 0"]
    worker.heartbeat._beat_at = 0.0
    assert worker.round() == ["beat"]


def test_a_heartbeat_names_every_run_with_its_fence_but_void_ones(worker: Worker):
    worker.round()
    assert worker.ledger.beats == [[("a", "7")]]


def test_a_run_whose_lease_was_lost_is_void_here_unless_it_was_started_again(worker: Worker):
    worker.ledger.void = ["a"]
    worker.round()
    assert worker.voided == ["a"]
    worker.voided.clear()
    beat = worker.ledger.heartbeat

    def meanwhile(*arguments: Any) -> list[str]:
        worker.gate.runs["a"] = run("a", "9")
        return beat(*arguments)

    worker.ledger.heartbeat = meanwhile  # type: ignore[method-assign]
    worker.heartbeat._beat_at = 0.0
    worker.round()
    assert worker.voided == []


def test_it_sweeps_on_while_there_is_more_under_a_new_number_each_time(worker: Worker):
    worker.ledger.more = 2
    assert worker.round() == ["beat", "sweep 0", "sweep 1", "sweep 2"]


def test_a_sweep_whose_reply_was_lost_is_made_again_under_its_number(worker: Worker):
    sweep = worker.ledger.sweep

    def lost(*arguments: Any) -> Any:
        sweep(*arguments)
        raise ConnectionError

    worker.ledger.sweep = lost  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        worker.round()
    worker.ledger.sweep = sweep  # type: ignore[method-assign]
    assert worker.round() == ["sweep 0"]


def test_revoked_runs_that_could_not_be_cancelled_are_cancelled_later_under_the_same_number(worker: Worker):
    calls: list[tuple[int, list[str]]] = []

    def cancel(worker: str, number: int, why: str, ids: list[str]) -> Any:
        calls.append((number, ids))
        if len(calls) == 1:
            raise ConnectionError
        return [], []

    worker.ledger.cancel = cancel  # type: ignore[attr-defined]
    worker.heartbeat.revoke(["x"])
    with pytest.raises(ConnectionError):
        worker.round()
    worker.heartbeat.revoke(["y"])
    worker.round()
    assert calls == [(0, ["x"]), (0, ["x"]), (1, ["y"])]

"""The heartbeat's thread: when it renews the lease, when it sweeps, and which notices it delivers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.ledger import Discarded, Grant, Outcome, Sweep, TimedOut
from celery_orchestration.node.publisher import MANY_ERRANDS, Publisher
from celery_orchestration.worker.heartbeat import WorkerHeartbeat
from celery_orchestration.worker.notices import Notices


class Ledger:
    """Records the verbs that were called."""

    ahead = 0.0

    def __init__(self) -> None:
        self.called: list[str] = []
        self.beats: list[list[tuple[str, str]]] = []
        self.void: list[str] = []
        self.more = 0

    def new_connection(self) -> Ledger:
        return self

    def heartbeat(self, worker: str, lease_ms: int, runs: list[tuple[str, str]]) -> list[str]:
        self.called.append("heartbeat")
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
        self.lost_leases: list[tuple[str, str]] = []
        self.reported: list[Outcome] = []
        self.ledger_is_down = False
        self.slots = 0
        self.runs = {"a": run("a", "7"), "b": run("b", "8", void=True)}
        self.notices = Notices(lambda: None)
        settings = SimpleNamespace(lease_seconds=30, sweep_interval_seconds=5, pools={})
        self.node: Any = SimpleNamespace(
            ledger=self.ledger, settings=settings, worker="w1", destinations={},
            decisions=SimpleNamespace(refresh=lambda *_: None),
        )  # fmt: skip
        self.publisher = Publisher(None, self.ledger, None, None)  # type: ignore[arg-type]
        self.heartbeat = self.new_heartbeat()

    def new_heartbeat(self, replaces: WorkerHeartbeat | None = None) -> WorkerHeartbeat:
        settlement = SimpleNamespace(
            runs=self.runs, lease_lost=self.lost_leases.extend, report=self.reported.append, highest_fence=""
        )
        due_times = SimpleNamespace(due_in=lambda seconds: None)
        strays = SimpleNamespace(take_in=lambda messages: None)
        found = WorkerHeartbeat(
            self.node, self.publisher, None, settlement, SimpleNamespace(), due_times, SimpleNamespace(name="1"),
            self.notices, lambda function: function(), SimpleNamespace(), strays, None, open_gate=lambda: None,
            slots=lambda: self.slots, ledger_is_down=lambda: self.ledger_is_down, look_for_queues=lambda: None,
            replaces=replaces,
        )  # type: ignore[arg-type]  # fmt: skip
        found._registered = True
        return found

    def round(self) -> list[str]:
        """The verbs that one round of its thread calls."""
        self.ledger.called.clear()
        self.heartbeat._round()
        return self.ledger.called


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_it_beats_and_sweeps_and_then_only_when_it_is_time(worker: Worker):
    assert worker.round() == ["heartbeat", "sweep 0"]
    assert worker.round() == []


def test_it_does_not_sweep_while_outcomes_are_unreported(worker: Worker):
    """A sweep could recover a run that is over, here or on another worker that cannot report either."""
    worker.ledger_is_down = True
    assert worker.round() == ["heartbeat"]
    worker.heartbeat.sweep_soon()
    assert worker.round() == []
    worker.ledger_is_down = False
    assert worker.round() == ["sweep 0"]


def test_it_beats_however_much_is_to_be_published(worker: Worker):
    worker.publisher.publish([Grant("run", "1")] * (2 * MANY_ERRANDS))
    assert worker.round() == ["heartbeat", "sweep 0"]
    worker.heartbeat._beat_at = 0.0
    assert worker.round() == ["heartbeat"]


def test_a_heartbeat_names_every_run_with_its_fence_but_void_ones(worker: Worker):
    worker.round()
    assert worker.ledger.beats == [[("a", "7")]]


def test_a_start_whose_lease_was_lost_is_void_here_and_a_later_start_of_that_run_is_not(worker: Worker):
    worker.ledger.void = ["a"]
    beat = worker.ledger.heartbeat

    def meanwhile(*arguments: Any) -> list[str]:
        worker.runs["a"] = run("a", "9")
        return beat(*arguments)

    worker.ledger.heartbeat = meanwhile  # type: ignore[method-assign]
    worker.round()
    assert worker.lost_leases == [("a", "7")], "the settlement compares the fences, in the event loop"


def test_it_sweeps_on_while_there_is_more_under_a_new_number_each_time(worker: Worker):
    worker.ledger.more = 2
    assert worker.round() == ["heartbeat", "sweep 0", "sweep 1", "sweep 2"]


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


def revoke_while_the_first_call_fails(worker: Worker) -> list[tuple[int, list[str]]]:
    """Revokes x, whose cancelling fails, and then y. Returns the calls to the ledger in order: number and ids."""
    calls: list[tuple[int, list[str]]] = []

    def cancel(worker: str, number: int, why: str, ids: list[str]) -> Any:
        calls.append((number, ids))
        if len(calls) == 1:
            raise ConnectionError
        return [], []

    worker.ledger.cancel = cancel  # type: ignore[attr-defined]
    worker.notices.revoke(["x"])
    with pytest.raises(ConnectionError):
        worker.round()
    worker.notices.revoke(["y"])
    return calls


def test_revoked_runs_that_could_not_be_cancelled_are_cancelled_later_under_the_same_number(worker: Worker):
    calls = revoke_while_the_first_call_fails(worker)
    worker.round()
    assert calls == [(0, ["x"]), (0, ["x"]), (1, ["y"])]


class TestNotices:
    def test_a_notice_stays_until_the_ledger_took_it(self, worker: Worker):
        taken: list[TimedOut] = []

        def over(run: TimedOut) -> None:
            taken.append(run)
            if len(taken) == 1:
                raise ConnectionError

        worker.ledger.time_out = over  # type: ignore[attr-defined]
        worker.notices.time_out(TimedOut("a", "7", "too long", True))
        with pytest.raises(ConnectionError):
            worker.round()
        worker.round()
        assert [run.id for run in taken] == ["a", "a"]
        assert not worker.notices.timed_out

    def test_discarded_messages_go_in_one_call(self, worker: Worker):
        calls: list[list[Discarded]] = []

        def finish_messages(messages: list[Discarded]) -> list[Grant]:
            calls.append(messages)
            if len(calls) == 1:
                raise ConnectionError
            return []

        worker.ledger.confirm_end_of_messages = finish_messages  # type: ignore[attr-defined]
        for id in ("a", "b"):
            worker.notices.discard(Discarded(id, 0, "p", False))
        with pytest.raises(ConnectionError):
            worker.round()
        worker.round()
        assert [[one.id for one in call] for call in calls] == [["a", "b"], ["a", "b"]]
        assert not worker.notices.discarded

    def test_each_stray_gets_its_answer_once(self, worker: Worker):
        answers: list[str] = []
        worker.ledger.accept_strays = lambda worker, strays: ([f"to {one}" for one in strays], [])  # type: ignore[attr-defined]
        for number in range(40):
            worker.notices.ask_for_stray(str(number), answers.append)  # type: ignore[arg-type]
        worker.round()
        assert answers == [f"to {number}" for number in range(40)]
        assert not worker.notices.strays

    def test_a_run_that_cannot_be_read_is_reported_as_failed(self, worker: Worker):
        worker.notices.fail_unreadable("a", "7")
        worker.round()
        assert [(one.id, one.fence, one.outcome) for one in worker.reported] == [("a", "7", "failed")]

    def test_the_drain_is_reported_to_the_ledger_once(self, worker: Worker):
        calls: list[str] = []

        def drain(worker: str) -> list[Grant]:
            calls.append(worker)
            return []

        worker.ledger.drain = drain  # type: ignore[attr-defined]
        worker.notices.drain()
        worker.round()
        worker.round()
        assert calls == ["w1"]

    def test_a_heartbeat_that_takes_the_place_of_another_delivers_its_notices(self, worker: Worker):
        calls = revoke_while_the_first_call_fails(worker)
        worker.heartbeat = worker.new_heartbeat(replaces=worker.heartbeat)
        assert worker.round() == ["heartbeat", "sweep 2"]
        assert calls == [(0, ["x"]), (1, ["x"]), (2, ["y"])]


def test_a_worker_whose_pool_has_grown_registers_again(worker: Worker):
    registered: list[int] = []
    worker.heartbeat._register = lambda: registered.append(worker.slots)  # type: ignore[method-assign]
    worker.round()
    worker.slots = 4
    worker.round()
    assert registered == [4]

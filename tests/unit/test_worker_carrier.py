"""The carrier of turns: in the event loop normally, in its thread when a call gets no answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.ledger import NewEpoch, NotRegistered, Turn
from celery_orchestration.worker import carrier as module
from celery_orchestration.worker.carrier import MOST_REFUSALS, TurnCarrier
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.turns import Batch
from support.gates import Loop


class Ledger:
    """Answers turns in this order: raises errors, returns the rest."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def turn(self, *arguments: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def carrier_of(ledger: Ledger, claim: Callable[[Any], None]) -> TurnCarrier:
    return TurnCarrier(
        SimpleNamespace(new_connection=lambda: ledger, address="there"),
        "w",
        "enforce",
        GateState(),
        None,
        lambda function: function(),
        SimpleNamespace(claim=claim, can_claim=lambda epoch: True),
        None,
        open_gate=lambda: None,
        close_gate=lambda: None,
        register_again=lambda: None,
    )  # type: ignore[arg-type]


def test_a_turn_whose_reply_got_lost_after_a_claim_is_made_again_without_another_claim() -> None:
    """The claim would lack the run that this very turn has started, and the ledger would give that run to another
    worker."""
    claims: list[Any] = []
    turn = object.__new__(Turn)
    carrier = carrier_of(Ledger(NewEpoch("2"), LedgerUnavailable("its reply got lost"), turn), claims.append)
    assert carrier._turn(SimpleNamespace(offered=1, outcomes=[], arrivals=[])) is turn  # type: ignore[arg-type]
    assert len(claims) == 1


def test_every_new_epoch_is_claimed() -> None:
    claims: list[Any] = []
    turn = object.__new__(Turn)
    carrier = carrier_of(Ledger(NewEpoch("2"), LedgerUnavailable("it is down"), NewEpoch("3"), turn), claims.append)
    assert carrier._turn(SimpleNamespace(offered=1, outcomes=[], arrivals=[])) is turn  # type: ignore[arg-type]
    assert len(claims) == 2


class Line(Ledger):
    """A connection on which the event loop sends turns. `replies`: what can be read there; None: it is broken."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.socket: Any = object()
        self.sent: list[int] = []
        self.replies: list[Turn | None] = []
        self.closed = 0

    def send_turn(self, worker: str, number: int, *arguments: Any) -> None:
        self.sent.append(number)

    def has_answer(self, seconds: float) -> bool:
        return bool(self.replies)

    def receive_turn(self) -> Turn | None:
        return self.replies.pop(0)

    def close(self) -> None:
        self.closed += 1


class HubLoop(Loop):
    listening: Callable[[], None] | None = None

    def inside(self) -> bool:
        return True

    def listen(self, socket: Any, function: Callable[[], None]) -> bool:
        self.listening = function
        return True

    def unlisten(self) -> None:
        self.listening = None


class Worker:
    def __init__(self, line: Line) -> None:
        self.line, self.loop, self.state = line, HubLoop(), GateState(closed=False)
        self.answered: list[tuple[Batch, Any]] = []
        self.gate: list[str] = []
        self.carrier = TurnCarrier(
            SimpleNamespace(new_connection=lambda: line, address="there"), "w", "enforce", self.state, self.loop,
            lambda function: function(), SimpleNamespace(claim=None, can_claim=lambda epoch: False),
            SimpleNamespace(answered=self.note, refused=self.note), open_gate=lambda: self.gate.append("open"),
            close_gate=lambda: self.gate.append("close"), register_again=lambda: self.gate.append("register"),
        )  # type: ignore[arg-type]  # fmt: skip

    def note(self, batch: Batch, answer: Any) -> None:
        self.answered.append((batch, answer))

    def with_thread(self) -> int:
        """The number of turns that the thread has to make."""
        return self.carrier._batches.qsize()

    def run_thread(self) -> None:
        """Runs the thread until it has made these turns."""
        self.carrier._batches.put(None)
        self.carrier.run()


TURN = object.__new__(Turn)


class TestInTheEventLoop:
    def test_a_turn_is_sent_and_its_answer_is_read_when_it_is_there(self):
        worker, batch = Worker(Line()), Batch()
        worker.carrier.carry(batch)
        assert (worker.line.sent, worker.answered) == ([1], [])
        worker.line.replies.append(TURN)
        worker.loop.listening()  # type: ignore[misc]
        assert worker.answered == [(batch, TURN)]
        assert worker.with_thread() == 0

    def test_it_waits_for_the_answer_if_slots_stand_idle(self):
        worker, batch = Worker(Line()), Batch(offered=1)
        worker.line.replies.append(TURN)
        worker.carrier.carry(batch)
        assert worker.answered == [(batch, TURN)]

    def test_a_turn_whose_connection_broke_goes_to_the_thread_under_its_number(self):
        worker, batch = Worker(Line(TURN)), Batch()
        worker.carrier.carry(batch)
        worker.line.replies.append(None)
        worker.loop.listening()  # type: ignore[misc]
        assert (worker.answered, worker.loop.listening) == ([], None)
        worker.run_thread()
        assert worker.answered == [(batch, TURN)]
        assert worker.carrier._number == 1

    def test_a_redis_that_hangs_is_noticed(self, monkeypatch: pytest.MonkeyPatch):
        worker, batch = Worker(Line()), Batch()
        worker.carrier.carry(batch)
        worker.loop.time_passes(module.SOCKET_TIMEOUT)
        assert worker.with_thread() == 0  # this clock has not moved
        later = module.monotonic() + module.SOCKET_TIMEOUT + 1
        monkeypatch.setattr(module, "monotonic", lambda: later)
        worker.loop.time_passes(module.SOCKET_TIMEOUT)
        assert (worker.with_thread(), worker.line.closed) == (1, 1)

    @pytest.mark.parametrize("obstacle", ["not connected", "ledger is down", "worker stops"])
    def test_the_thread_makes_turns_that_the_loop_cannot(self, obstacle: str):
        worker = Worker(Line())
        if obstacle == "not connected":
            worker.line.socket = None
        worker.carrier.down = obstacle == "ledger is down"
        worker.state.stopping = obstacle == "worker stops"
        worker.carrier.carry(Batch())
        assert (worker.line.sent, worker.with_thread()) == ([], 1)

    def test_a_turn_under_way_goes_to_the_thread_when_the_loop_ends(self):
        worker = Worker(Line())
        worker.carrier.carry(Batch())
        worker.carrier.give_to_thread()
        assert (worker.with_thread(), worker.line.closed) == (1, 1)


class TestInTheThread:
    @pytest.fixture(autouse=True)
    def _no_waiting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_orchestration.node.backoff.FIRST_WAIT", 0.001)

    def test_the_gate_is_closed_until_the_ledger_answers_again(self):
        worker = Worker(Line(LedgerUnavailable("away"), LedgerUnavailable("away"), TURN))
        worker.carrier._batches.put(Batch())
        worker.run_thread()
        assert (worker.gate, worker.carrier.down) == (["close", "open"], False)
        assert [answer for _, answer in worker.answered] == [TURN]

    def test_an_error_that_comes_again_and_again_is_an_answer(self):
        worker = Worker(Line(*[LedgerError("no")] * MOST_REFUSALS))
        worker.carrier._batches.put(Batch())
        worker.run_thread()
        [(_, answer)] = worker.answered
        assert isinstance(answer, LedgerError)
        assert worker.gate == ["close", "open"]

    def test_a_worker_that_the_ledger_does_not_know_registers_again(self):
        worker = Worker(Line(NotRegistered("w"), TURN))
        worker.carrier._batches.put(Batch())
        worker.run_thread()
        assert worker.gate == ["register"]
        assert [answer for _, answer in worker.answered] == [TURN]

    def test_an_error_in_the_gate_does_not_end_the_thread(self):
        worker = Worker(Line(TURN, TURN))
        batches = [Batch(), Batch()]

        def failing(batch: Batch, answer: Any) -> None:
            worker.note(batch, answer)
            raise RuntimeError

        worker.carrier._turns.answered = failing  # type: ignore[method-assign]
        for batch in batches:
            worker.carrier._batches.put(batch)
        worker.run_thread()
        assert [batch for batch, _ in worker.answered] == batches

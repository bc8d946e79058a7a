"""The carrier of turns, when a call gets no answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery_orchestration.errors import LedgerUnavailable
from celery_orchestration.ledger import NewEpoch, Turn
from celery_orchestration.worker.carrier import TurnCarrier
from celery_orchestration.worker.state import GateState


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
    """The claim would lack the run that this very turn has started, and the ledger would give that to another."""
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

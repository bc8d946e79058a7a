"""A ledger that may have forgotten something: the worker claims its runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.ledger import Registered
from celery_orchestration.worker.epoch import Epoch


def registered(epoch: str) -> Registered:
    return Registered("r1", "r1", epoch, "emptied", 30_000)


class Ledger:
    address = "there"

    def __init__(self, *answers: str, disabled: list[str] | None = None) -> None:
        self.answers, self.disabled = list(answers), disabled or []
        self.claims: list[tuple[Any, ...]] = []

    def claim_runs(self, *arguments: Any) -> Any:
        self.claims.append(arguments)
        return SimpleNamespace(answers=self.answers, told_again=0, returned=0, disabled=self.disabled)


class Worker:
    def __init__(self, *runs: str) -> None:
        self.lost: list[tuple[str, str]] = []
        self.disabled: list[str] = []
        settlement = SimpleNamespace(
            claims=lambda: [SimpleNamespace(id=id, fence="8") for id in runs],
            reported=["x"],
            lease_lost=self.lost.extend,
        )
        self.epoch = Epoch("w1", settlement, lambda function: function(), self.disabled.extend)  # type: ignore[arg-type]


@pytest.fixture
def worker() -> Worker:
    return Worker("a", "b")


def test_a_new_worker_has_nothing_to_claim(worker: Worker):
    worker.epoch.registered(registered("1"))
    assert worker.epoch.name == "1"
    worker.epoch.registered(registered("2"))
    assert worker.epoch.name == "1"


def test_runs_are_claimed_in_the_epoch_in_which_the_worker_is_registered(worker: Worker):
    assert not worker.epoch.can_claim("2")
    worker.epoch.registered(registered("1"))
    worker.epoch.registered(registered("2"))
    assert worker.epoch.can_claim("2")
    assert not worker.epoch.can_claim("3")
    ledger: Any = Ledger("ok", "ok")
    worker.epoch.claim(ledger)
    [(id, epoch, reported, runs)] = ledger.claims
    assert (id, epoch, reported, [run.id for run in runs]) == ("w1", "2", ["x"], ["a", "b"])
    assert (worker.epoch.name, worker.lost) == ("2", [])


def test_runs_that_the_ledger_has_given_away_are_void(worker: Worker):
    worker.epoch.registered(registered("2"))
    ledger: Any = Ledger("ok", "void", disabled=["job"])
    worker.epoch.claim(ledger)
    assert (worker.lost, worker.disabled) == ([("b", "8")], ["job"])


def test_nothing_is_claimed_before_the_worker_is_registered(worker: Worker):
    ledger: Any = Ledger()
    worker.epoch.claim(ledger)
    assert ledger.claims == []

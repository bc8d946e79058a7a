"""The order in which entries fire, and how long a leader may trust its term."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_orchestration.job.graph import Graph
from celery_orchestration.ledger import Lead
from celery_orchestration.scheduler.due_queue import DueQueue
from celery_orchestration.scheduler.leadership import MARGIN, Term
from celery_orchestration.scheduler.times import Due


def entry(task: str, priority: int = 1) -> Any:
    return SimpleNamespace(
        id=task, gap_ms=None, call=SimpleNamespace(task=task), policy=SimpleNamespace(priority=priority)
    )


@pytest.fixture
def queue() -> DueQueue:
    """`last` depends on `middle`, and `middle` on `first`."""
    needs: dict[str, tuple[str, ...]] = {"first": (), "middle": ("first",), "last": ("middle",), "other": ()}
    return DueQueue(Graph(needs, {}, {}, {}))


class TestEntriesThatAreDueTogether:
    def order(self, queue: DueQueue, *due: tuple[Any, int]) -> list[str]:
        return [one.call.task for one, _ in queue.in_order((one, Due(at, 0, at + 1)) for one, at in due)]

    def test_dependencies_go_first_whatever_their_priority(self, queue: DueQueue):
        due = [(entry("last", 3), 1), (entry("middle", 2), 2), (entry("first", 0), 3)]
        assert self.order(queue, *due) == ["first", "middle", "last"]

    def test_higher_priorities_go_before_lower_ones(self, queue: DueQueue):
        assert self.order(queue, (entry("first", 0), 1), (entry("other", 2), 2)) == ["other", "first"]

    def test_earlier_due_times_go_before_later_ones(self, queue: DueQueue):
        assert self.order(queue, (entry("first"), 2), (entry("other"), 1)) == ["other", "first"]


class TestDueQueue:
    def test_an_entry_is_looked_at_at_the_time_that_was_set_last(self, queue: DueQueue):
        one = entry("first")
        queue.add(one)
        queue.look_at(one, 5)
        queue.look_at(one, 9)
        assert list(queue.take(5)) == []
        assert queue.first() == (9, one)
        assert list(queue.take(9)) == [one]
        assert list(queue.take(99)) == []

    def test_an_entry_that_was_removed_or_replaced_is_not_looked_at(self, queue: DueQueue):
        one, other = entry("first"), entry("first")
        queue.add(one)
        queue.look_at(one, 5)
        queue.add(other)
        queue.look_at(one, 5)
        assert list(queue.take(9)) == []
        assert (one in queue, other in queue) == (False, True)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestTerm:
    SECONDS = 10.0

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr("celery_orchestration.scheduler.leadership.monotonic", clock)
        return clock

    @pytest.fixture
    def term(self, clock: Clock) -> Term:
        """Its ledger takes a second to answer."""
        self.answer, self.resigned = "17", list[str]()
        self.silent = 0.0

        def lead(*_: Any) -> Lead:
            clock.now += 1
            return Lead(self.answer, 5000, "somebody", 0, "1")

        ledger: Any = SimpleNamespace(lead=lead, resign=lambda _, term: self.resigned.append(term), address="there")
        return Term(ledger, "s1", "s1@host", self.SECONDS, lambda: None, lambda: self.silent)

    def test_a_term_is_trusted_from_before_the_question_and_for_less_than_the_ledger_grants(
        self, term: Term, clock: Clock
    ):
        asked = clock.now
        term._ask()
        assert term.number == "17"
        clock.now = asked + self.SECONDS * (1 - MARGIN) - 0.01
        assert term.number == "17"
        clock.now = asked + self.SECONDS * (1 - MARGIN)
        assert term.number == ""

    def test_a_term_is_over_at_once_when_the_ledger_says_so(self, term: Term):
        term._ask()
        term.lost("16")
        assert term.number == "17"
        term.lost("17")
        assert term.number == ""

    def test_a_term_is_over_when_another_scheduler_leads(self, term: Term):
        term._ask()
        self.answer = ""
        term._ask()
        assert (term.number, term.others_led) == ("", True)

    def test_a_leader_whose_dispatcher_is_stuck_resigns(self, term: Term):
        term._ask()
        self.silent = self.SECONDS
        term._ask()
        assert self.resigned == []
        self.silent = self.SECONDS + 0.1
        term._ask()
        assert (self.resigned, term.number) == (["17"], "")

    def test_the_clock_of_redis_is_reckoned_from_the_middle_of_the_answer(self, term: Term):
        term._ask()
        assert term.now() == 5500

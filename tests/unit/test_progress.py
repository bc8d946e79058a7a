"""The progress of a run: accepted reports, and how they reach the ledger."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from celery_orchestration import OrchestratedTask
from celery_orchestration.cli.show.status_sections import progress_text as _progress
from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.job import progress
from celery_orchestration.job.progress import EVERY, LONGEST_WAIT, MOST, Reporter, as_json
from celery_orchestration.ledger.keys import LONGEST_PROGRESS
from celery_orchestration.operate import Progress


@pytest.mark.parametrize(
    ("done", "total"), [(0, 0), (3, 10), (0.5, 1.0), (11, 10), (3, None), (2**53, 2**60), (Fraction(1, 4), 1)]
)
def test_numbers_are_reported_unchanged(done: Any, total: Any) -> None:
    assert json.loads(as_json(done, total)) == {"done": done, "total": total, "note": ""}


@pytest.mark.parametrize("done", ["3", None, True, 1j, Decimal(1), [1]])
def test_progress_that_is_not_a_number_is_refused(done: Any) -> None:
    with pytest.raises(TypeError, match="progress: done should be a number, not "):
        as_json(done, 10)


@pytest.mark.parametrize("number", [math.nan, math.inf, -1, -0.5, -(10**400), 10**400])
def test_infinite_and_negative_progress_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="progress: done should be at least 0 and finite, not "):
        as_json(number, 10)
    with pytest.raises(ValueError, match="progress: total should be"):
        as_json(1, number)


def test_a_note_is_a_string_of_bounded_length() -> None:
    with pytest.raises(TypeError, match="note should be a string, not bytes"):
        as_json(1, 2, b"x")
    assert json.loads(as_json(1, 2, "x" * 1000))["note"] == "x" * 200
    for char in ("\0", "\U0001f600"):
        assert len(as_json(1.7976931348623157e308, 1.7976931348623157e308, char * 1000).encode()) <= LONGEST_PROGRESS
    assert json.loads(as_json(1, 2, "\ud800"))["note"] == "?"


@pytest.mark.parametrize("always_eager", [True, False])
def test_progress_outside_of_a_worker_does_nothing(
    app: Any, monkeypatch: pytest.MonkeyPatch, always_eager: bool
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connects"))
    monkeypatch.setattr(progress, "reporter", lambda *_: pytest.fail("a reporter"))
    app.conf.task_always_eager = always_eager

    @app.task(base=OrchestratedTask, bind=True, name="shop.job", shared=False)
    def job(self: Any) -> str:
        self.progress(1, 2, "half")
        return "done"

    assert job() == "done"
    assert job.apply().get() == "done"
    job.progress(1)
    with pytest.raises(ValueError, match="at least 0"):
        job.progress(-1)


class Ledger:
    """Answers as the test chooses."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.told: list[tuple[str, str, str]] = []

    def record_progress(self, said: Iterable[tuple[str, str, str]]) -> int:
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        self.told += said
        return 0


def reporter(*answers: Exception | None) -> tuple[Reporter, Ledger]:
    ledger = Ledger(*answers)
    return Reporter(lambda: ledger), ledger  # type: ignore[arg-type,return-value]


def test_the_latest_report_of_each_run_is_sent() -> None:
    one, ledger = reporter()
    for number in range(10):
        one.report(("a", "1"), str(number))
        one.report(("b", "2"), str(number))
    one._tell()
    assert ledger.told == [("a", "1", "9"), ("b", "2", "9")]


def test_unsent_progress_is_sent_later_unless_there_is_newer_progress() -> None:
    one, ledger = reporter(LedgerUnavailable("away"), LedgerUnavailable("away"))
    one.report(("a", "1"), "old")
    one.report(("b", "1"), "kept")
    one._tell()
    one.report(("a", "1"), "new")
    one._tell()
    assert one._wait == 4 * EVERY
    one._tell()
    assert sorted(ledger.told) == [("a", "1", "new"), ("b", "1", "kept")]
    assert one._wait == EVERY


def test_patience_and_memory_are_bounded_while_the_ledger_is_away() -> None:
    one, _ = reporter(*[LedgerUnavailable("away")] * 20)
    for number in range(MOST + 500):
        one.report((str(number), "1"), "x")
    for _ in range(20):
        one._tell()
    assert one._wait == LONGEST_WAIT
    assert len(one._reports) == MOST


@pytest.mark.parametrize("error", [LedgerError("no"), RuntimeError("a bug")])
def test_progress_that_the_ledger_refuses_is_dropped(error: Exception) -> None:
    one, ledger = reporter(error)
    one.report(("a", "1"), "x")
    one._tell()
    one._tell()
    assert ledger.told == []


@pytest.mark.parametrize(
    ("done", "total", "note", "text"),
    [
        (3, 10, "", "3/10"),
        (3, 10, "up", "3/10 up"),
        (420, 1000, "note", "42 % note"),
        (0.421, 1.0, "", "42 %"),
        (7, None, "rows", "7 rows"),
        (0.5, None, "", "0.5"),
        (0, 0, "", "0/0"),
        (0.0, 0.0, "", "100 %"),
        (1, 2, "z" * 100, f"1/2 {'z' * 60}…"),
    ],
)
def test_progress_is_shown_with_its_share_and_note(done: Any, total: Any, note: str, text: str) -> None:
    assert _progress(Progress(done=done, total=total, note=note, at="2030-01-01T00:00:00Z")) == text

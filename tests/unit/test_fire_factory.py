"""The endurance run finds what it looks for: fires that are not in the history, or are twice."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.fires import MISSED, SKIPPED, Account, Record, account

EVERY = 1000
#: Due times: one each second, the first at 1000.
FIRST = 1000


def ran(due: int, outcome: str = "succeeded", late: int = 0) -> Record:
    return Record(f"run-{due}", outcome, due + late, due + late + 10, due + late + 20, 0, due, 1)


def none(outcome: str, due: int, count: int) -> Record:
    return Record(f"none-{due}", outcome, due, None, due, 0, due, count)


def by_hand() -> Record:
    return Record("by-hand", "succeeded", 1, 2, 3, 0, None, 1)


def told(last: int, *records: Record) -> Account:
    """`records`: in the order in which they came."""
    return account(FIRST, last, EVERY, records[::-1])


def test_nothing_is_reported_if_each_due_time_made_a_run() -> None:
    found = told(3000, ran(1000), by_hand(), ran(2000, "failed", late=300), ran(3000))
    assert (found.due, found.ran, found.latest, found.problems) == (3, 3, 300, [])


def test_an_entry_that_was_never_due_needs_no_record() -> None:
    assert told(0, by_hand()) == Account()


@pytest.mark.parametrize("lost", [1000, 2000, 3000])
def test_a_lost_fire_is_found(lost: int) -> None:
    found = told(3000, *(ran(due) for due in (1000, 2000, 3000) if due != lost))
    assert found.problems == [f"due at {lost}: not in the history"]


def test_a_fire_that_made_two_runs_is_found() -> None:
    assert told(2000, ran(1000), ran(2000), ran(2000)).problems == ["due at 2000: 2 times in the history"]


def test_a_fire_that_made_a_run_and_was_skipped_is_found() -> None:
    assert told(2000, ran(1000), ran(2000), none(SKIPPED, 2000, 1)).problems == ["due at 2000: 2 times in the history"]


def test_a_fire_beside_the_due_times_is_found() -> None:
    assert told(2000, ran(1000), ran(1500), ran(2000)).problems == ["due at 1500: it was not"]


def test_skipped_fires_in_a_row_are_one_record() -> None:
    found = told(4000, none(SKIPPED, 3000, 2), ran(1000), ran(4000))
    assert (found.ran, found.skipped, found.problems) == (2, 2, [])


def test_too_few_skipped_fires_are_found() -> None:
    assert told(4000, none(SKIPPED, 3000, 1), ran(1000), ran(4000)).problems == ["due at 2000: not in the history"]


def test_missed_fires_may_end_before_one_that_made_a_run_or_with_one_that_made_none() -> None:
    assert told(4000, ran(1000), none(MISSED, 4000, 2), ran(4000)).problems == []
    assert told(4000, ran(1000), none(MISSED, 4000, 3)).problems == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_missed_fires_is_found(count: int) -> None:
    found = told(4000, ran(1000), none(MISSED, 4000, count), ran(4000))
    assert found.problems == [f"{count} were missed until 4000, and 2 are not in the history"]


@given(st.lists(st.sampled_from(["ran", SKIPPED, MISSED]), min_size=1, max_size=30), st.data())
def test_whatever_became_of_fires_it_is_accounted_for_and_the_loss_of_a_run_is_found(fates, data) -> None:
    """The ledger's way of writing it down: fires in a row that made no run, for one reason, are one record."""
    records: list[Record] = []
    for due, fate in enumerate(fates, start=1):
        head = records[-1] if records else None
        if fate == "ran":
            records.append(ran(due * EVERY))
        elif head is not None and head.outcome == fate:
            records[-1] = none(fate, due * EVERY, head.count + 1)
        else:
            records.append(none(fate, due * EVERY, 1))
    last = len(fates) * EVERY
    found = told(last, *records)
    assert found.problems == []
    assert found.due == found.ran + found.skipped + found.missed == len(fates)
    gone = data.draw(st.sampled_from(records))
    assert told(last, *(record for record in records if record is not gone)).problems


def test_records_are_read_as_the_ledger_writes_them() -> None:
    run = {"id": "id", "attempt": 0, "outcome": "succeeded", "arrived": 5, "started": 7, "ended": 9, "worker": "w@h"}
    run |= {"fence": "12", "recoveries": 1}
    fired = {"entry": "shop.fetch", "due": 4}
    assert Record.read(json.dumps({**run, **fired})) == Record("id", "succeeded", 5, 7, 9, 1, 4, 1)
    assert Record.read(json.dumps(run)).due is None
    skips = {"id": "id", "attempt": 0, "outcome": SKIPPED, "arrived": 4, "ended": 9, "error": "why"}
    skips |= {"entry": "shop.fetch", "due": 8, "fires": 3}
    assert Record.read(json.dumps(skips)) == Record("id", SKIPPED, 4, None, 9, 0, 8, 3)

"""A job whose last success is older than it should be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_orchestration.operate.status.overdue import is_overdue, next_fire, passed

MINUTE = 60_000


def entry(**fields: object) -> dict[str, object]:
    return {"paused": False, **fields}


def fired(last: int, gap: int = MINUTE, **fields: object) -> dict[str, object]:
    return entry(prev=last - gap, last=last, at=last, next=last + gap, **fields)


@pytest.mark.parametrize(
    ("found", "now", "succeeded", "took", "late"),
    [
        pytest.param(fired(10 * MINUTE), 10 * MINUTE + 1, 9 * MINUTE, 0, False, id="the last fire has just come"),
        pytest.param(fired(10 * MINUTE), 10 * MINUTE + 1, 9 * MINUTE - 1, 0, True, id="two fires without success"),
        pytest.param(fired(10 * MINUTE), 10 * MINUTE + 1, None, None, True, id="it never succeeded"),
        pytest.param(fired(10 * MINUTE), 10 * MINUTE + 1, 5 * MINUTE, 5 * MINUTE, False, id="its runs take that long"),
        pytest.param(fired(10 * MINUTE), 11 * MINUTE, 9 * MINUTE, 0, True, id="the next one is not fired in time"),
        pytest.param(fired(10 * MINUTE), 12 * MINUTE, 10 * MINUTE, 0, True, id="nobody fires any more"),
        pytest.param(fired(10 * MINUTE, paused=True), 99 * MINUTE, None, None, False, id="paused by a person"),
        pytest.param(entry(last=MINUTE, next=2 * MINUTE), MINUTE, None, None, False, id="new"),
        pytest.param(entry(prev=None, last=2, at=2, next=MINUTE), 3, None, None, False, id="fired for the first time"),
        pytest.param(entry(last=5, at=5, gap=0), 5 + MINUTE, None, None, False, id="continuous, in its first run"),
        pytest.param(entry(last=5, at=5, gap=0), 6 + MINUTE, None, None, True, id="continuous, stuck"),
        pytest.param(entry(last=5, at=5, gap=0), 2 * MINUTE, None, MINUTE, False, id="continuous, with long runs"),
        pytest.param(entry(last=90, at=5, gap=0), 89 + MINUTE, None, None, False, id="continuous, just resumed"),
        pytest.param(entry(next=MINUTE), 99 * MINUTE, None, None, False, id="corrupt, too"),
        pytest.param(entry(), 99 * MINUTE, None, None, False, id="corrupt"),
    ],
)
def test_an_entry_is_overdue_when_its_run_should_have_succeeded(found, now, succeeded, took, late):
    found = {key: value for key, value in found.items() if value is not None}
    assert is_overdue(now, [found], succeeded, took) is late


def test_one_late_entry_of_many_is_enough():
    assert is_overdue(10 * MINUTE, [fired(10 * MINUTE, gap=5 * MINUTE), fired(10 * MINUTE)], 6 * MINUTE, 0)


def test_the_next_fire_is_the_earliest_of_those_that_are_not_paused():
    found = [entry(next=5), entry(next=3), entry(next=1, paused=True), entry()]
    assert next_fire([{**one} for one in found]) == 3
    assert next_fire([entry()]) is None


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(0, 10**13))
def test_due_times_are_reckoned_in_bounded_time(gap, last, waited):
    """However long nobody has fired."""
    found = passed(last + waited, fired(last, gap))
    assert len(found) <= 5
    assert found == sorted(found)
    assert found[-1] <= last + waited < found[-1] + gap or found[-1] == last

"""How long a channel waits that came too late."""

from __future__ import annotations

import pytest

from celery_orchestration.worker.fetch import misses
from celery_orchestration.worker.fetch.misses import FIRST_BACK_OFF, FORGET_AFTER, LONGEST_BACK_OFF, Misses


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(misses, "monotonic", clock)
    monkeypatch.setattr(misses.random, "uniform", lambda least, most: most)
    return clock


def missed(times: int) -> Misses:
    found = Misses()
    for _ in range(times):
        found.heard()
        found.looked(False)
    return found


def test_nobody_waits_at_first(clock: Clock):
    assert Misses().back_off() == 0.0


def test_a_look_without_a_message_is_no_miss_if_none_was_announced(clock: Clock):
    found = Misses()
    found.looked(False)
    assert found.back_off() == 0.0


def test_the_wait_grows_with_every_miss_up_to_a_limit(clock: Clock):
    assert missed(1).back_off() == FIRST_BACK_OFF * 2
    assert missed(2).back_off() == FIRST_BACK_OFF * 4
    assert missed(100).back_off() == LONGEST_BACK_OFF


def test_a_message_that_was_got_ends_the_wait(clock: Clock):
    found = missed(3)
    found.heard()
    found.looked(True)
    assert found.back_off() == 0.0


def test_misses_are_forgotten_where_messages_are_rare(clock: Clock):
    found = missed(3)
    clock.now += FORGET_AFTER + 0.1
    assert found.back_off() == 0.0

"""Calls that are due later."""

from __future__ import annotations

from typing import Any

import pytest
from celery.utils.timer2 import Timer
from kombu.asynchronous import Hub

from celery_orchestration.worker.loop import DirectLoop, HubLoop
from support.wait import stays, until


@pytest.fixture(params=["hub", "timer"])
def timing(request: pytest.FixtureRequest) -> Any:
    """A loop, a function that clears its timers as the loss of a connection does, and a function that runs it."""
    if request.param == "hub":
        hub = Hub()
        loop, going = HubLoop(hub), hub.create_loop()
        hub.add_reader(loop._read, lambda: None)
        yield loop, hub.timer.clear, lambda: next(going)
        hub.close()
    else:
        timer = Timer()
        yield DirectLoop(timer), timer.clear, lambda: None
        timer.stop()


def test_a_call_that_is_due_later_survives_the_loss_of_the_timers(timing):
    loop, clear, go_on = timing
    called = []
    loop.later(0.02, lambda: called.append("first"))
    loop.later(0.01, lambda: called.append("second"))
    clear()
    loop.schedule_again()
    loop.schedule_again()

    def both() -> bool:
        go_on()
        return sorted(called) == ["first", "second"]

    until(both)
    stays(both, 0.1)


def test_a_call_that_is_due_soon_survives_a_foreign_error_in_the_hub():
    hub = Hub()
    loop, called = HubLoop(hub), []
    hub.call_soon(_lose_the_connection)
    loop.soon(lambda: called.append(1))
    loop.call(lambda: called.append(2))
    with pytest.raises(ConnectionError):
        next(hub.create_loop())
    hub.reset()
    loop.register()
    going = hub.create_loop()
    until(lambda: next(going) or called == [1, 2])
    hub.close()


def _lose_the_connection() -> None:
    raise ConnectionError


def test_a_call_that_a_timer_asks_for_is_made_before_the_loop_sleeps(timing):
    loop, _, go_on = timing
    called = []
    loop.later(0.01, lambda: loop.soon(lambda: called.append("soon")))
    until(lambda: go_on() or called, 0.5)  # kombu's hub sleeps for a second if nothing is due

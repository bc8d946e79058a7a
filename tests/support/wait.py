"""The one way to wait in a test: for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.02


def until(
    predicate: Callable[[], T],
    timeout: float = 30,
    message: str | Callable[[], str] = "",
    *,
    poll: float = POLL_SECONDS,
) -> T:
    """Calls ``predicate`` until its value is true, and returns that value; fails with the last value after ``timeout``.

    It is called once more after the deadline: a machine that stood still past the deadline is not the code's fault.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            what = message() if callable(message) else message or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"not within {timeout:g} s: {what} (last value: {value!r})")
        time.sleep(poll)


def stays(
    predicate: Callable[[], object],
    seconds: float,
    message: str = "",
    *,
    poll: float = POLL_SECONDS,
) -> None:
    """Fails as soon as ``predicate`` is not true, for ``seconds``: for checks that nothing starts meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if not value:
            what = message or getattr(predicate, "__name__", "the condition")
            raise AssertionError(f"did not stay for {seconds:g} s: {what} (last value: {value!r})")
        if time.monotonic() >= deadline:
            return
        time.sleep(poll)

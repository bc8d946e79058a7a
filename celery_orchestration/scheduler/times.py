"""When an entry is due: pure functions of its schedule, its last due time and the time.

A due time follows from the schedule and the due time before it, not from when a scheduler looked, so that every
scheduler that looks finds the same ones. All times are milliseconds since 1970, and all are Redis's: the clocks of the
machines that schedulers run on do not matter.

Celery's schedules answer how long it is until they are due. Asked at the very time of their last due time, that is the
distance to the next one (:class:`Calendar`), with time zones and daylight saving as Celery does them. A schedule of the
user's own that decides in another way can only be asked whether it is due now (:class:`Asked`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Protocol

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

#: A due time that Celery cannot step over (an hour that comes twice) is looked for in steps of this, so many.
_STEP_MS, _MOST_STEPS = 60_000, 24 * 60
#: An event of the sun is known to a tenth of a second: what is found so soon after the last one is that one again.
_SAME_EVENT_MS = 1000
#: How many due times are counted that passed without a fire.
MOST_MISSED = 100
#: Within so many ms of a due time nobody is late, whatever ``catch_up`` says: a takeover takes that long, or, of longer
#: terms, so many of them.
ON_TIME_MS, ON_TIME_TERMS = 15_000, 1.5
#: A schedule of the user's own is asked at least so often.
_ASK_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Due:
    """The latest due time that has come, how many before it passed without a fire, and the one after it."""

    at: int
    missed: int
    next: int


class Times(Protocol):
    def next(self, last: int, now: int) -> int:
        """When to look: the due time after `last`."""

    def due(self, last: int, now: int) -> Due | None:
        """What is due now, if the last due time was `last`."""


@dataclass(frozen=True, slots=True)
class Every:
    """Every so many ms after the time at which the entry came."""

    ms: int

    def next(self, last: int, now: int) -> int:
        return last + self.ms

    def due(self, last: int, now: int) -> Due | None:
        passed = (now - last) // self.ms
        if passed < 1:
            return None
        at = last + passed * self.ms
        return Due(at, passed - 1, at + self.ms)


class Calendar:
    """One of Celery's schedules that names its due times."""

    def __init__(self, schedule: BaseSchedule, zone: tzinfo) -> None:
        self._schedule, self._zone = schedule, zone
        self._same_ms = _SAME_EVENT_MS if isinstance(schedule, solar) else 0
        self._asked_at = 0
        schedule.nowfun = lambda: _datetime(self._asked_at, zone)

    def next(self, last: int, now: int) -> int:
        for step in range(_MOST_STEPS):
            self._asked_at = last + step * _STEP_MS
            remaining = self._schedule.remaining_estimate(_datetime(self._asked_at, self._zone))
            due: int = self._asked_at + round(remaining.total_seconds() * 1000)
            if due > last + self._same_ms:
                return due
        raise ValueError(f"{self._schedule!r} is never due after {_datetime(last, self._zone)}")

    def due(self, last: int, now: int) -> Due | None:
        first = self.next(last, now)
        if first > now:
            return None
        passed = [first]
        while len(passed) <= MOST_MISSED:
            following = self.next(passed[-1], now)
            if following > now:
                return Due(passed[-1], len(passed) - 1, following)
            passed.append(following)
        at = self._latest(passed[-1], now)
        return Due(at, MOST_MISSED, self.next(at, now))

    def _latest(self, early: int, now: int) -> int:
        """The last due time that has come; `early` is one that has. There may be many between: by halves."""
        found, late = early, now
        while late - early > 1:
            middle = (early + late) // 2
            due = self.next(middle, now)
            if due <= now:
                found = early = due
            else:
                late = middle
        return found


class Asked:
    """A schedule that only says whether it is due now. It is due when it is asked."""

    def __init__(self, schedule: BaseSchedule, zone: tzinfo) -> None:
        self._schedule, self._zone = schedule, zone

    def next(self, last: int, now: int) -> int:
        is_due, seconds = self._schedule.is_due(_datetime(last, self._zone))
        return now if is_due else now + self._wait(seconds)

    def due(self, last: int, now: int) -> Due | None:
        is_due, seconds = self._schedule.is_due(_datetime(last, self._zone))
        return Due(now, 0, now + self._wait(seconds)) if is_due and now > last else None

    @staticmethod
    def _wait(seconds: float | None) -> int:
        return max(50, min(_ASK_EVERY_MS, round((seconds or 0) * 1000)))


def times_of(when: BaseSchedule, app: Celery) -> Times:
    kind = type(when)
    if kind is schedule and when.nowfun is None and not (when.relative and when.seconds >= 1):
        # Celery rounds to seconds at the finest: below one, relative means nothing.
        return Every(max(1, round(when.seconds * 1000)))
    if kind in (schedule, crontab, solar) and when.nowfun is None:
        own = copy.copy(when)  # its clock is ours
        own.app = app
        return Calendar(own, app.timezone)
    return Asked(when, app.timezone)


def latest_is_late(catch_up: str, catch_up_seconds: float, term_seconds: float) -> int:
    """How many ms after its due time a fire is still made."""
    on_time = max(ON_TIME_MS, round(term_seconds * ON_TIME_TERMS * 1000))
    return max(on_time, round(catch_up_seconds * 1000)) if catch_up == "latest" else on_time


def _datetime(ms: int, zone: tzinfo) -> datetime:
    """In the app's time zone, as Celery's beat has it: before Celery 5.7 a crontab reads the clock it is given."""
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)).astimezone(zone)

"""When an entry is due: pure functions of its schedule, its last due time and the current time.

A due time follows from the schedule and the previous due time, not from the time at which a scheduler looks. So every
scheduler finds the same due times. All times are milliseconds since 1970 by Redis's clock: the clocks of the
schedulers' machines do not matter.

Celery's schedules say how long it is until they are due. Asked at their last due time, that is the distance to the next
one (:class:`Calendar`), with Celery's own handling of time zones and daylight saving. A custom schedule class can only
be asked whether it is due now (:class:`Asked`).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Protocol

from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

#: If Celery finds no next due time (in an hour that comes twice), it is searched in steps: their length and number.
_STEP_MS, _MOST_STEPS = 60_000, 24 * 60
#: Solar events are computed to a tenth of a second: one found this soon after the last one is the same event.
_SAME_EVENT_MS = 1000
#: At most this many missed due times are counted.
MOST_MISSED = 100
#: A fire this many ms after its due time is not late, whatever ``catch_up`` says: a takeover may take that long. With
#: longer terms: this many terms.
ON_TIME_MS, ON_TIME_TERMS = 15_000, 1.5
#: A custom schedule is asked at least this often.
_ASK_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Due:
    """The latest due time that has come, the number of missed due times before it, and the next one."""

    at: int
    missed: int
    next: int


class Times(Protocol):
    def next(self, last: int, now: int) -> int:
        """The due time after `last`: when to look next."""

    def due(self, last: int, now: int) -> Due | None:
        """The due time that has come since `last`, if any."""


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed interval in ms, counted from the time at which the entry was added."""

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
    """A schedule of Celery's that knows its due times."""

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
        """The last due time that has come, by bisection; `early` is a due time that has come."""
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
    """A schedule that only says whether it is due now: its due time is the time of that question."""

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
        # Celery rounds to whole seconds, so `relative` means nothing below one second.
        return Every(max(1, round(when.seconds * 1000)))
    if kind in (schedule, crontab, solar) and when.nowfun is None:
        own = copy.copy(when)  # its clock is replaced
        own.app = app
        return Calendar(own, app.timezone)
    return Asked(when, app.timezone)


def latest_is_late(catch_up: str, catch_up_seconds: float, term_seconds: float) -> int:
    """How many ms after its due time an entry still fires."""
    on_time = max(ON_TIME_MS, round(term_seconds * ON_TIME_TERMS * 1000))
    return max(on_time, round(catch_up_seconds * 1000)) if catch_up == "latest" else on_time


def _datetime(ms: int, zone: tzinfo) -> datetime:
    """In the app's time zone, as in Celery's beat: before Celery 5.7 a crontab uses the zone of the given time."""
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)).astimezone(zone)

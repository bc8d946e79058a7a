"""When entries are due: whatever the schedule, the time zone and the clock, all schedulers find the same due times.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_orchestration.scheduler.times import (
    MOST_MISSED,
    ON_TIME_MS,
    Asked,
    Calendar,
    Due,
    Every,
    Times,
    latest_is_late,
    times_of,
)

UTC = timezone.utc
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
#: With the days on which their clocks change: forward, then back. On Lord Howe Island by half an hour.
ZONES = {
    "Europe/Berlin": (date(2024, 3, 31), date(2024, 10, 27)),
    "America/New_York": (date(2024, 3, 10), date(2024, 11, 3)),
    "Australia/Lord_Howe": (date(2024, 10, 6), date(2024, 4, 7)),
}
CHANGES = [(zone, day) for zone, days in ZONES.items() for day in days]


def app_in(zone: str = "UTC") -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    return app


APPS = {zone: app_in(zone) for zone in ("UTC", *ZONES)}


def ms(*parts: int, zone: str = "UTC") -> int:
    return round(datetime(*parts, tzinfo=ZoneInfo(zone)).timestamp() * 1000)  # type: ignore[arg-type, misc]


def shown(times: list[int], zone: str = "UTC") -> list[str]:
    return [datetime.fromtimestamp(one / 1000, ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M") for one in times]


def chain(times: Times, last: int, until: int) -> list[int]:
    """All due times after `last`, up to `until`."""
    found = []
    while (last := times.next(last, last)) <= until:
        assert not found or last > found[-1], "due times rise"
        found.append(last)
    return found


def first_ones(times: Times, last: int, count: int) -> list[int]:
    found = []
    for _ in range(count):
        last = times.next(last, last)
        found.append(last)
    return found


def stock_beat(when: BaseSchedule, app: Celery, start: int, end: int) -> list[int]:
    """When Celery's own beat fires, if it wakes at exactly the times that it plans."""
    now = start
    own = copy.copy(when)
    own.nowfun = lambda: datetime.fromtimestamp(now / 1000, UTC).astimezone(app.timezone)
    entry = ScheduleEntry("entry", "task", schedule=own, app=app)
    found = []
    while now <= end:
        is_due, seconds = entry.is_due()
        if is_due:
            found.append(now)
            entry = next(entry)
        now += max(1, round(seconds * 1000))
    return found


# -- strategies


def examples(count: int = 100) -> settings:
    return settings(max_examples=count)


def some(low: int, high: int) -> st.SearchStrategy[str]:
    sets = st.sets(st.integers(low, high), min_size=1, max_size=3)
    steps = st.integers(2, 20).map(lambda step: f"*/{min(step, high)}")
    return st.one_of(st.just("*"), sets.map(lambda found: ",".join(map(str, sorted(found)))), steps)


@st.composite
def crontabs(draw: st.DrawFn) -> crontab:
    days = draw(st.sampled_from(["*", "*", "1", "31", "1,15", "28-31", "29"]))
    weekdays = draw(st.sampled_from(["*", "*", "1-5", "0", "6,0", "3"]))
    months = draw(st.sampled_from(["*", "*", "1", "2,8", "*/3", "12"]))
    if (days, months) == ("31", "2,8"):
        months = "8"
    return crontab(draw(some(0, 59)), draw(some(0, 23)), weekdays, days, months)


def moments() -> st.SearchStrategy[int]:
    """Any time, and often one around a change of clocks."""
    anywhere = st.integers(ms(1999, 12, 30), ms(2040, 1, 3))
    around = st.builds(
        lambda change, offset: ms(change[1].year, change[1].month, change[1].day, zone=change[0]) + offset,
        st.sampled_from(CHANGES),
        st.integers(-6 * HOUR, 12 * HOUR),
    )
    return st.one_of(anywhere, around)


def zones() -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(APPS))


def calendars() -> st.SearchStrategy[Times]:
    relative = st.builds(
        lambda seconds, zone: times_of(schedule(seconds, relative=True, app=APPS[zone]), APPS[zone]),
        st.sampled_from([1, 7, 60, 90, 600, 3600, 5400, 21_600, 86_400, 3 * 86_400]),
        zones(),
    )
    cron = st.builds(lambda when, zone: times_of(when, APPS[zone]), crontabs(), zones())
    return st.one_of(cron, cron, relative)


def all_times() -> st.SearchStrategy[Times]:
    return st.one_of(calendars(), st.integers(1, 10**9).map(Every))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Times, int, list[int]]:
    """Times, a last due time, and some due times after it."""
    times, last = draw(all_times()), draw(moments())
    return times, last, first_ones(times, last, draw(st.integers(1, 40)))


# -- what holds for all of them


class TestDueTimes:
    @examples()
    @given(histories())
    def test_due_times_rise(self, history: tuple[Times, int, list[int]]):
        _, last, found = history
        assert all(a < b for a, b in pairwise([last, *found]))

    @examples()
    @given(histories(), st.data())
    def test_the_latest_that_has_come_is_due_and_those_before_it_were_missed(
        self, history: tuple[Times, int, list[int]], data: st.DataObject
    ):
        times, last, found = history
        following = times.next(found[-1], last)
        now = data.draw(st.one_of(st.just(found[-1]), st.integers(found[-1], following - 1)))
        assert times.due(last, now) == Due(found[-1], len(found) - 1, following)

    @examples()
    @given(histories(), st.data())
    def test_nothing_is_due_before_the_first(self, history: tuple[Times, int, list[int]], data: st.DataObject):
        times, last, found = history
        assert times.due(last, data.draw(st.integers(last, found[0] - 1))) is None
        assert times.next(last, last) == found[0]

    @examples()
    @given(histories(), st.integers(0, 10 * 365 * DAY))
    def test_a_clock_that_was_set_back_makes_nothing_due(self, history: tuple[Times, int, list[int]], back: int):
        times, last, found = history
        assert times.due(last, last - back) is None
        assert times.next(last, last - back) == found[0], "what is due next stays"

    @examples()
    @given(histories(), st.data())
    def test_due_times_do_not_depend_on_when_or_how_often_they_are_asked_for(
        self, history: tuple[Times, int, list[int]], data: st.DataObject
    ):
        """More questions find more of them, fewer questions merge some into one: there are no others."""
        times, last, found = history
        looks = sorted(data.draw(st.lists(st.integers(last, found[-1]), max_size=10)))
        fired, missed = [], 0
        for now in [*looks, found[-1]]:
            due = times.due(fired[-1] if fired else last, now)
            if due is not None:
                assert due.at <= now < due.next
                fired.append(due.at)
                missed += due.missed
        assert set(fired) <= set(found)
        assert fired[-1] == found[-1]
        assert len(fired) + missed == len(found)

    @examples(40)
    @given(all_times(), moments(), st.integers(30 * 365 * DAY, 40 * 365 * DAY))
    def test_a_clock_far_ahead_makes_one_fire(self, times: Times, last: int, ahead: int):
        now = last + ahead
        due = times.due(last, now)
        assert due is not None
        assert last < due.at <= now < due.next
        assert times.due(due.at, now) is None
        assert times.due(due.at, due.next) == Due(due.next, 0, times.next(due.next, now))


class TestEvery:
    def test_is_in_step_with_the_time_at_which_the_entry_came(self):
        every = Every(10_000)
        assert first_ones(every, 1_234, 3) == [11_234, 21_234, 31_234]

    def test_counts_what_was_missed(self):
        assert Every(10).due(0, 9) is None
        assert Every(10).due(0, 10) == Due(10, 0, 20)
        assert Every(10).due(0, 39) == Due(30, 2, 40)

    @pytest.mark.parametrize("zone", sorted(ZONES))
    def test_does_not_care_for_changes_of_clocks(self, zone: str):
        times = times_of(schedule(3600, app=APPS[zone]), APPS[zone])
        assert isinstance(times, Every)
        for day in ZONES[zone]:
            start = ms(day.year, day.month, day.day, zone=zone)
            assert chain(times, start, start + DAY) == [start + hour * HOUR for hour in range(1, 25)]

    @pytest.mark.parametrize(
        ("seconds", "found"), [(0.5, 500), (0.0001, 1), (timedelta(hours=1), HOUR), (1e9, 10**12), (0, 1)]
    )
    def test_is_made_of_any_interval(self, seconds: float | timedelta, found: int):
        assert times_of(schedule(seconds), APPS["UTC"]) == Every(found)


# -- crontabs


def by_looking_at_every_minute(when: crontab, start: int, end: int) -> list[int]:
    """In UTC: the due times of a crontab, read field by field."""
    found = []
    for at in range(start // MINUTE * MINUTE + MINUTE, end + 1, MINUTE):
        local = datetime.fromtimestamp(at / 1000, UTC)
        fields = (local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
        wanted = (when.minute, when.hour, when.day_of_month, when.month_of_year, when.day_of_week)
        if all(field in some for field, some in zip(fields, wanted, strict=True)):
            found.append(at)
    return found


class TestCrontab:
    @examples(60)
    @given(crontabs(), st.integers(ms(1999, 12, 28), ms(2040, 1, 3)))
    def test_is_due_at_every_minute_it_names_and_no_other(self, when: crontab, start: int):
        end = start + 5 * DAY
        assert chain(times_of(when, APPS["UTC"]), start, end) == by_looking_at_every_minute(when, start, end)

    @pytest.mark.parametrize(
        ("when", "start", "found"),
        [
            (
                crontab("0", "0", day_of_month="31"),
                (2023, 1, 31),
                ["2023-03-31 00:00", "2023-05-31 00:00", "2023-07-31 00:00", "2023-08-31 00:00", "2023-10-31 00:00"],
            ),
            (
                crontab("30", "12", day_of_month="29", month_of_year="2"),
                (2023, 1, 1),
                ["2024-02-29 12:30", "2028-02-29 12:30", "2032-02-29 12:30"],
            ),
            (
                crontab("30", "12", day_of_month="29", month_of_year="2"),
                (2096, 2, 29, 12, 30),
                ["2104-02-29 12:30", "2108-02-29 12:30"],
            ),
            (
                crontab("59", "23", day_of_month="28-31", month_of_year="2"),
                (2023, 2, 28),
                ["2023-02-28 23:59", "2024-02-28 23:59", "2024-02-29 23:59", "2025-02-28 23:59"],
            ),
            (
                crontab("0", "0", day_of_month="1", month_of_year="1"),
                (2023, 12, 31, 23, 59),
                ["2024-01-01 00:00", "2025-01-01 00:00"],
            ),
            (
                crontab("*/30", "*"),
                (2024, 12, 31, 23, 15),
                ["2024-12-31 23:30", "2025-01-01 00:00", "2025-01-01 00:30"],
            ),
            (
                crontab("0", "9", day_of_week="fri", day_of_month="13"),
                (2023, 11, 1),
                ["2024-09-13 09:00", "2024-12-13 09:00", "2025-06-13 09:00"],
            ),
        ],
    )
    def test_crontabs_are_right_at_month_ends_leap_years_and_year_ends(
        self, when: crontab, start: tuple[int, ...], found: list[str]
    ):
        assert shown(first_ones(times_of(when, APPS["UTC"]), ms(*start), len(found))) == found

    def test_the_count_of_missed_due_times_is_bounded(self):
        times, start = times_of(crontab(), APPS["UTC"]), ms(2024, 1, 1)
        for passed in (MOST_MISSED, MOST_MISSED + 1, MOST_MISSED + 2, 500_000):
            at = start + passed * MINUTE
            expected = Due(at, min(passed - 1, MOST_MISSED), at + MINUTE)
            assert times.due(start, at) == times.due(start, at + MINUTE - 1) == expected

    def test_is_read_in_the_time_zone_of_the_app(self):
        [found] = first_ones(times_of(crontab("30", "9"), APPS["America/New_York"]), ms(2024, 7, 1), 1)
        assert found == ms(2024, 7, 1, 13, 30)

    def test_a_crontab_that_is_never_due_is_reported(self):
        class Never(crontab):
            def remaining_estimate(self, last_run_at: datetime, *args: object) -> timedelta:
                return timedelta(days=-10)

        with pytest.raises(ValueError, match="is never due after 2024"):
            Calendar(Never(app=APPS["UTC"]), UTC).next(ms(2024, 1, 1), 0)


class TestChangesOfClocks:
    @pytest.mark.parametrize(
        ("zone", "change", "when", "found"),
        [
            # The hour from 2 to 3 does not exist.
            ("Europe/Berlin", 0, crontab("30", "2"), ["30 02:30", "31 03:30", "01 02:30"]),
            ("America/New_York", 0, crontab("30", "2"), ["09 02:30", "10 03:30", "11 02:30"]),
            # Half an hour does not exist, from 2 to half past.
            ("Australia/Lord_Howe", 0, crontab("15", "2"), ["05 02:15", "06 02:45", "07 02:15"]),
            # An hour comes twice: due times in it count once.
            ("Europe/Berlin", 1, crontab("30", "2"), ["26 02:30", "27 02:30", "28 02:30"]),
            ("America/New_York", 1, crontab("30", "1"), ["02 01:30", "03 01:30", "04 01:30"]),
            # Half an hour comes twice, from half past 1 to 2.
            ("Australia/Lord_Howe", 1, crontab("45", "1"), ["06 01:45", "07 01:45", "08 01:45"]),
        ],
    )
    def test_a_daily_crontab_is_due_once_a_day(self, zone: str, change: int, when: crontab, found: list[str]):
        day = ZONES[zone][change]
        start = ms(day.year, day.month, day.day, zone=zone) - DAY
        times = chain(times_of(when, APPS[zone]), start, start + 3 * DAY)
        assert [one[8:] for one in shown(times, zone)] == found

    @pytest.mark.parametrize(("zone", "day"), CHANGES)
    @pytest.mark.parametrize(
        "spec", ["* *", "*/5 *", "*/15 *", "0 *", "30 *", "45 *", "15 */2", "30 1,2,3", "0,15,40 2", "59 1", "0 0-4"]
    )
    def test_crontabs_are_due_when_stock_beat_fires_them(self, zone: str, day: date, spec: str):
        when = crontab(*spec.split())
        start = ms(day.year, day.month, day.day, zone=zone) - 5 * HOUR - 7 * MINUTE
        end = start + 36 * HOUR
        assert chain(times_of(when, APPS[zone]), start, end) == stock_beat(when, APPS[zone], start, end)

    @examples(60)
    @given(crontabs(), st.sampled_from(sorted(ZONES)), moments())
    def test_any_crontab_is_due_when_stock_beat_fires_it(self, when: crontab, zone: str, start: int):
        end = start + 2 * DAY
        assert chain(times_of(when, APPS[zone]), start, end) == stock_beat(when, APPS[zone], start, end)

    @pytest.mark.parametrize(("zone", "day"), CHANGES)
    @pytest.mark.parametrize("seconds", [60, 600, 3600, 5400, 21_600, 86_400])
    def test_relative_intervals_are_due_when_stock_beat_fires_them(self, zone: str, day: date, seconds: int):
        when = schedule(seconds, relative=True)
        start = ms(day.year, day.month, day.day, zone=zone) - 5 * HOUR - 7 * MINUTE
        end = start + 3 * DAY
        assert chain(times_of(when, APPS[zone]), start, end) == stock_beat(when, APPS[zone], start, end)


class TestRelativeIntervals:
    @pytest.mark.parametrize(
        ("seconds", "found"),
        [
            (30, ["12:34:30", "12:35:00"]),
            (600, ["12:44:00", "12:54:00"]),
            (7200, ["14:00:00", "16:00:00"]),
        ],
    )
    def test_are_rounded_to_their_unit(self, seconds: int, found: list[str]):
        times = times_of(schedule(seconds, relative=True), APPS["UTC"])
        ones = first_ones(times, ms(2024, 5, 5, 12, 34), 2)
        assert [datetime.fromtimestamp(one / 1000, UTC).strftime("%H:%M:%S") for one in ones] == found

    def test_days_begin_at_midnight(self):
        times = times_of(schedule(86_400, relative=True), APPS["Europe/Berlin"])
        found = first_ones(times, ms(2024, 10, 26, 12), 3)
        assert shown(found, "Europe/Berlin") == ["2024-10-27 00:00", "2024-10-28 00:00", "2024-10-29 00:00"]

    def test_below_a_second_they_are_as_others(self):
        assert times_of(schedule(0.25, relative=True), APPS["UTC"]) == Every(250)


class TestSolar:
    @pytest.fixture(autouse=True)
    def _ephem(self) -> None:
        pytest.importorskip("ephem", reason="Celery needs ephem for solar schedules")

    @pytest.mark.parametrize("event", ["sunset", "dusk_civil", "dawn_nautical", "dawn_astronomical", "solar_noon"])
    @pytest.mark.parametrize("place", [(52.5, 13.4), (-37, 144)])
    def test_is_due_once_a_day(self, event: str, place: tuple[float, float]):
        """ephem finds an event again if asked at exactly its time."""
        times = times_of(solar(event, *place), APPS["UTC"])
        found = first_ones(times, ms(2024, 8, 1), 400)
        gaps = [b - a for a, b in pairwise(found)]
        assert all(gap > 23 * HOUR for gap in gaps)
        late = [gap for gap in gaps if gap > 25 * HOUR]
        assert not late or event == "dawn_astronomical", "in June it does not get quite dark in the north"

    def test_looks_for_the_sun_beyond_a_polar_night(self):
        found = first_ones(times_of(solar("sunrise", 69.6, 18.9), APPS["UTC"]), ms(2024, 11, 20), 20)
        [dark] = [gap // DAY for gap in (b - a for a, b in pairwise(found)) if gap > 2 * DAY]
        assert 40 < dark < 60

    def test_missed_due_times_make_one_fire(self):
        times = times_of(solar("sunset", 52.5, 13.4), APPS["UTC"])
        due = times.due(ms(2024, 1, 1), ms(2024, 1, 11))
        assert due is not None
        assert (shown([due.at, due.next]), due.missed) == (["2024-01-10 15:13", "2024-01-11 15:15"], 9)


# -- schedules of the user's own


class OwnCrontab(crontab):
    """As in packages that keep schedules in a database."""


class EvenMinutes(BaseSchedule):
    """Due once in every even minute."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        raise AssertionError("beat does not ask for this")

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:  # type: ignore[override]
        now, last = self.now(), last_run_at
        due = now.minute % 2 == 0 and (now - last) >= timedelta(minutes=1)
        return schedstate(due, 60 - now.second)  # type: ignore[return-value]


class Clock:
    def __init__(self, at: int) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.at / 1000, UTC)


class TestOwnSchedules:
    @pytest.mark.parametrize(
        "when",
        [OwnCrontab("0", "0"), EvenMinutes(), crontab(nowfun=Clock(0)), schedule(5, nowfun=Clock(0))],
        ids=["a kind of crontab", "one of its own", "a clock of its own", "an interval with a clock of its own"],
    )
    def test_a_schedule_of_the_user_is_asked_for_its_due_times(self, when: BaseSchedule):
        assert isinstance(times_of(when, APPS["UTC"]), Asked)

    @pytest.fixture
    def even(self) -> tuple[Times, Clock]:
        clock = Clock(ms(2024, 5, 5, 12, 1))
        return times_of(EvenMinutes(nowfun=clock, app=APPS["UTC"]), APPS["UTC"]), clock

    def test_are_due_when_they_say_so(self, even: tuple[Times, Clock]):
        times, clock = even
        last = clock.at
        assert times.due(last, clock.at) is None
        assert times.next(last, clock.at) == clock.at + MINUTE
        clock.at += MINUTE + 250
        assert times.next(last, clock.at) == clock.at
        assert times.due(last, clock.at) == Due(clock.at, 0, clock.at + MINUTE)
        assert times.due(clock.at, clock.at) is None

    def test_all_missed_due_times_of_a_users_schedule_make_one_fire(self, even: tuple[Times, Clock]):
        times, clock = even
        last, clock.at = clock.at, clock.at + DAY + MINUTE
        due = times.due(last, clock.at)
        assert due == Due(clock.at, 0, clock.at + MINUTE)

    def test_are_not_due_twice_at_the_same_time(self, even: tuple[Times, Clock]):
        """By Redis's clock, which may stand still while the schedule's clock advances."""
        times, clock = even
        last, clock.at = clock.at, clock.at + DAY + MINUTE
        assert times.due(last, last) is None

    @pytest.mark.parametrize(("said", "wait"), [(0, 50), (None, 50), (-5, 50), (3, 3000), (10**9, MINUTE)])
    def test_are_asked_neither_all_the_time_nor_hardly_ever(self, said: float | None, wait: int):
        class Says(BaseSchedule):
            def is_due(self, last_run_at: datetime) -> tuple[bool, float]:  # type: ignore[override]
                return False, said  # type: ignore[return-value]

        assert times_of(Says(), APPS["UTC"]).next(0, 1000) == 1000 + wait

    def test_get_the_last_time_in_the_time_zone_of_the_app(self):
        told = []

        class Told(BaseSchedule):
            def is_due(self, last_run_at: datetime) -> tuple[bool, float]:  # type: ignore[override]
                told.append(last_run_at)
                return False, 1

        times_of(Told(), APPS["Europe/Berlin"]).next(ms(2024, 7, 1, 12), 0)
        assert told[0].isoformat() == "2024-07-01T14:00:00+02:00"


class TestUsersObjects:
    """One schedule may be in several entries, and used by other code."""

    def schedules(self) -> Iterator[BaseSchedule]:
        yield crontab("*/5", "2-4", nowfun=None)
        yield schedule(90)
        yield schedule(90, relative=True)
        yield OwnCrontab("0", "0", app=APPS["UTC"])

    def test_are_not_changed(self):
        for when in self.schedules():
            before, clock = dict(vars(when)), when.nowfun
            times = times_of(when, APPS["Europe/Berlin"])
            if not isinstance(times, Asked):
                times.due(ms(2024, 3, 30), ms(2024, 4, 2))
                assert vars(when) == before
            assert when.nowfun is clock is None
            assert when.app is not APPS["Europe/Berlin"]

    def test_may_be_shared(self):
        when = crontab("0", "12")
        zones = sorted(ZONES)
        several = [times_of(when, APPS[zone]) for zone in zones]
        found = [times.next(ms(2024, 6, 1), 0) for times in several for _ in range(2)][::2]
        assert [shown([one], zone)[0][11:] for one, zone in zip(found, zones, strict=True)] == ["12:00"] * 3


@pytest.mark.parametrize(
    ("catch_up", "seconds", "late"),
    [
        ("latest", 3600, HOUR),
        ("latest", 0.5, ON_TIME_MS),
        ("latest", 10**9, 10**12),
        ("none", 3600, ON_TIME_MS),
    ],
)
def test_a_fire_may_be_as_late_as_catch_up_allows(catch_up: str, seconds: float, late: int):
    """A takeover takes some seconds: a fire within that time is not late."""
    assert latest_is_late(catch_up, seconds, 10) == late

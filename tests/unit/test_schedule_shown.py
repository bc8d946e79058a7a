"""The schedule in a terminal: entries, leaders, and the results of fires. No control characters reach a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from rich.cells import cell_len

from celery_orchestration.cli.show.history import print_history
from celery_orchestration.cli.show.schedule import print_schedule
from celery_orchestration.cli.show.status import print_status
from celery_orchestration.ledger import keys
from celery_orchestration.operate import Ended, EntryStatus, Paused, SchedulerStatus, Status
from celery_orchestration.operate.history.records import read_ended
from support.hostile import TEXTS

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
NOW_MS = round(NOW.timestamp() * 1000)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def show(render: Callable[..., None], what: Any, columns: int = 80, **more: Any) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        file = StringIO()
        render(what, file, **more)
        return file.getvalue()

    return show


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def entry(name: str = "mails", **more: Any) -> EntryStatus:
    common = {"task": "shop.mail", "is_job": False, "every": "every 60 s", "source": "people", "continuous": False}
    common |= {"args": [], "named_args": {}, "options": {}, "paused": None, "problem": None}
    common |= {"last_fire": NOW - timedelta(seconds=50), "last_outcome": "sent", "last_run": None}
    common |= {"next_fire": NOW + timedelta(seconds=10), "fires": 12, "skips": 0, "misses": 0}
    return EntryStatus(**{**common, "name": name, **more})


def table(shown: Callable[..., str], *entries: EntryStatus, columns: int = 80) -> str:
    return shown(print_schedule, entries, columns, now=NOW)


# -- entries


def test_an_entry_shows_its_task_its_times_and_its_last_fire(shown):
    text = table(shown, entry(skips=3, misses=1))
    assert re.search(r"mails +every 60 s +sent +in 10 s +12 *\n", text), text
    assert re.search(r"shop.mail +by people +50 s ago +3 skipped *\n", text), text
    assert re.search(r"\n +1 missed *\n", text), text


def test_an_entry_that_never_fired_and_an_entry_of_a_job_are_shown(shown):
    text = table(
        shown,
        entry(last_fire=None, last_outcome=None, next_fire=None, fires=0),
        entry("shop.fetch", task="shop.fetch", source="code"),
        entry("late", next_fire=NOW - timedelta(minutes=5)),
    )
    assert text.count("shop.fetch") == 1
    assert text.count("by people") == 2
    assert "5 min late" in text


def test_an_entry_that_never_fired_takes_one_line(shown):
    never = {"last_fire": None, "last_outcome": None, "fires": 0, "source": "code"}
    lines = table(shown, *(entry(name, task=name, **never) for name in ("one", "two"))).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(" one "))
    assert lines[first + 1].startswith(" two ")


def test_entries_that_are_paused_or_cannot_fire_say_why(shown):
    text = table(
        shown,
        entry("a", paused=Paused(by="me@host", why="holidays", at=NOW), next_fire=None),
        entry("b", paused=Paused(by="me@host", why="", at=NOW), next_fire=None),
        entry("c", problem="this app has no task 'shop.mail'", next_fire=None),
    )
    assert "a is paused: holidays (me@host)" in text
    assert "b is paused: no reason given (me@host)" in text
    assert "! c: this app has no task 'shop.mail'" in text
    assert "never" in text


def test_a_schedule_without_entries_says_so(shown):
    assert table(shown) == "the schedule has no entries\n"


def test_of_very_many_entries_the_first_are_shown_and_all_that_cannot_be_fired(shown):
    entries = [entry(f"entry-{number:05}") for number in range(9_999)] + [entry("last", problem="it is broken")]
    text = table(shown, *entries)
    assert "entry-00199" in text
    assert "entry-00200" not in text
    assert "\n … 9,800 more\n" in text
    assert "\n! last: it is broken\n" in text
    assert "entry-00002" not in shown(print_schedule, entries, most=2)


@pytest.mark.parametrize("columns", [80, 250])
@pytest.mark.parametrize("name", [*TEXTS, "long", "dotted", "wide", "newlines"])
def test_the_table_keeps_to_the_width_of_the_terminal(shown, name, columns):
    others = {"long": "x" * 1000, "dotted": "shop.tasks.import." * 8, "wide": "数据" * 300, "newlines": "\n" * 30}
    name = {**TEXTS, **others}[name]
    entries = [
        entry(name, task=name, every="cron 0,5,10,15,20,25,30,35,40,45,50,55 1-7 */2 1,6 mon,fri", skips=12345),
        entry(name, task="shop." + name, paused=Paused(by=name, why=name, at=NOW), last_outcome="skipped"),
        entry(name, problem=name, misses=98765, last_fire=NOW - timedelta(days=400)),
    ]
    text = table(shown, *entries, columns=columns)
    assert harmless(text), text
    assert [line for line in text.splitlines() if cell_len(line) > columns] == []
    assert all(word in text for word in ("12345 skipped", "98765 missed", "400.0 d ago"))


# -- who leads


def status(**scheduler: Any) -> Status:
    return Status(
        namespace="shop", at=NOW, paused=False, running=0, max_running=None, waiting=0, later=0, dead_letters=0,
        jobs=[], runs=[], waits=[], workers=[], died=[], queues=[], problems=[], scheduler=SchedulerStatus(**scheduler),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ({"leader": "beat-1@host", "since": NOW - timedelta(minutes=5)}, "beat-1@host has led for 5 min"),
        (
            {"leader": "b", "since": NOW - timedelta(hours=30), "standbys": ["c"], "entries": 12},
            "b has led for 1.2 d, 1 stands by, 12 entries",
        ),
        ({"standbys": ["c", "d"], "entries": 1}, "2 stand by, 1 entry"),
    ],
)
def test_status_says_in_one_line_who_leads(shown, scheduler, line):
    assert f"\nscheduler: {line}\n" in shown(print_status, status(**scheduler))


def test_status_says_nothing_of_a_schedule_where_there_is_none(shown):
    assert "scheduler" not in shown(print_status, status())


def test_a_hostile_name_of_a_leader_is_shown_harmlessly(shown):
    for text in TEXTS.values():
        assert harmless(shown(print_status, status(leader=text, since=NOW)))


# -- history


def record(entry: str | None = None, due: int | None = None, outcome: str = "succeeded", error: str = "") -> str:
    """A record as the ledger keeps it."""
    run = {"id": "the-id", "attempt": 0, "outcome": outcome, "arrived": NOW_MS - 5000, "started": NOW_MS - 1000}
    run |= {"ended": NOW_MS, "worker": "w1@host", "fence": "7", "recoveries": 0, "key": ""}
    fired = {"entry": entry, "due": due} if entry else {}
    return json.dumps({**run, **fired, **({"error": error} if error else {})})


def none(outcome: str, why: str, count: int, entry: str = "often") -> str:
    """Fires that made no run."""
    fields = {"id": "an-id", "attempt": 0, "outcome": outcome, "arrived": NOW_MS - 9000, "ended": NOW_MS, "key": ""}
    return json.dumps({**fields, "recoveries": 0, "error": why, "entry": entry, "due": NOW_MS - 3000, "fires": count})


def test_records_with_fields_of_another_version_are_read():
    ended = read_ended("fetch", json.dumps({**json.loads(record()), "colour": "red"}))
    assert (ended.id, ended.fence, ended.seconds, ended.waited_seconds) == ("the-id", 7, 1, 4)
    assert (ended.entry, ended.due, ended.fires, ended.made_run) == (None, None, 1, True)


def test_a_run_that_nobody_scheduled_has_no_entry():
    ended = read_ended("fetch", record())
    assert (ended.entry, ended.due, ended.fires, ended.made_run) == (None, None, 1, True)


def test_a_scheduled_run_has_its_entry_and_due_time():
    ended = read_ended("fetch", record("a%3A%20b", NOW_MS - 5000))
    assert (ended.entry, ended.due) == ("a: b", NOW - timedelta(seconds=5))


def test_fires_that_made_no_run_are_counted():
    ended = read_ended("fetch", none("skipped", "the run before it has not ended", 3))
    assert (ended.entry, ended.due, ended.fires, ended.made_run) == ("often", NOW - timedelta(seconds=3), 3, False)
    assert (ended.waited_seconds, ended.worker, ended.error) == (0, None, "the run before it has not ended")


def told(shown: Callable[..., str], *records: str, columns: int = 80) -> str:
    return shown(print_history, [read_ended("fetch", one) for one in records], columns)


def test_history_shows_fires_that_made_no_run(shown):
    text = told(shown, none("skipped", "the run before it has not ended", 3, "fetch"))
    assert "    3 fires skipped: the run before it has not ended\n" in text
    assert "an-id" not in text
    assert "    a fire of entry often missed: nobody fired it in time\n" in told(
        shown, none("missed", "nobody fired it in time", 1)
    )


def test_history_shows_entry_and_due_time_where_they_are_of_use(shown):
    assert "took 1.0 s  waited 4 s\n" in told(shown, record("fetch", NOW_MS - 5000))
    assert "waited 4 s  fired by often\n" in told(shown, record("often", NOW_MS - 5000))
    due = (NOW - timedelta(minutes=5)).astimezone().strftime("%m-%d %H:%M:%S")
    assert f"waited 4 s  due {due}\n" in told(shown, record("fetch", NOW_MS - 300_000))


def test_history_shows_hostile_entries_harmlessly(shown):
    for text in TEXTS.values():
        one = told(shown, record(keys.entry(text), NOW_MS), none("skipped", "x", 2, keys.entry(text)), columns=250)
        assert harmless(one), one


# -- history in full


def ended(**more: Any) -> Ended:
    common: dict[str, Any] = {
        "id": "01234567-89ab-cdef-0123-456789abcdef", "job": "fetch", "outcome": "succeeded", "retries": 0, "key": "",
        "arrived": NOW - timedelta(seconds=100), "started": NOW - timedelta(seconds=10), "ended": NOW, "seconds": 10.0,
        "waited_seconds": 90.0, "waited_for": None, "worker": "w1@host", "fence": 1763299000000000, "recoveries": 0,
        "error": None,
    }  # fmt: skip
    return Ended(**{**common, **more})


def test_a_run_is_shown_in_full(shown):
    more = {"waited_for": "room of fetch", "error": "ValueError: no", "entry": "often"}
    run = ended(outcome="failed", retries=1, recoveries=2, key="7", **more)
    clock = NOW.astimezone().strftime("%m-%d %H:%M:%S")
    assert shown(print_history, [run]) == (
        f"01234567-89ab-cdef-0123-456789abcdef  {clock}  failed\n"
        "    w1@host  key '7'  fence 1763299000000000  1 retry  2 recoveries  took 10 s\n"
        "    waited 90 s for room of fetch  fired by often\n"
        "    ValueError: no\n"
    )


def test_a_run_that_never_started_says_so(shown):
    run = ended(outcome="revoked", started=None, seconds=None, worker=None, fence=None)
    assert shown(print_history, [run]).endswith("  revoked\n    not started  waited 90 s\n")


def test_an_empty_history_says_that_no_run_has_ended(shown):
    assert shown(print_history, []) == "no such run has ended yet\n"


@pytest.mark.parametrize("columns", [20, 40, 80, 250])
@pytest.mark.parametrize("text", [*TEXTS.values(), "x" * 2000, "数据 " * 100])
def test_history_keeps_to_the_window(shown, text, columns):
    none = {"made_run": False, "outcome": "skipped", "fires": 3}
    run = ended(error=text, waited_for=text, worker=text, key=text, entry=text)
    found = shown(print_history, [run, ended(error=text, entry=text, **none)], columns)
    assert harmless(found)
    assert [line for line in found.splitlines() if cell_len(line) > columns] == []

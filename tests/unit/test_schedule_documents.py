"""Entries that people write: checked when they are written, kept as JSON, and read unchanged."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from celery_orchestration import OrchestratedTask
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import keys
from celery_orchestration.scheduler import entry_documents
from celery_orchestration.scheduler.entry_documents import MOST_WRITTEN, document, from_document
from support.hostile import TEXTS

NOW = 1_893_456_000_000


@pytest.fixture
def shop(app: Celery) -> Celery:
    @app.task(name="shop.mail", shared=False, lazy=False)
    def mail(to: str, subject: str = "") -> None: ...

    @app.task(name="shop.fetch", base=OrchestratedTask, bind=True, shared=False, lazy=False)
    def fetch(self: Any, pages: int = 1) -> None: ...

    return app


def written(shop: Celery, when: Any = 60, name: str = "hourly", task: str = "shop.fetch", **more: Any) -> str:
    parts = {"args": [], "kwargs": {}, "options": {}, **more}
    return document(shop, name, task, when, parts["args"], parts["kwargs"], parts["options"])


def read(shop: Celery, text: str, name: str = "hourly") -> Any:
    return from_document(shop, keys.entry(name), text, jobs_of(shop))


# -- what is kept


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (60, "every 60 s"),
        (0.5, "every 0.5 s"),
        ("90", "every 90 s"),
        (timedelta(minutes=5), "every 300 s"),
        (schedule(30), "every 30 s"),
        (schedule(timedelta(hours=1), relative=True), "every 3600 s"),
        (crontab(minute="*/5"), "cron */5 * * * *"),
        (crontab(minute=[3, 1], hour={4}, day_of_week="mon,fri"), "cron 1,3 4 * * mon,fri"),
        (crontab(0, 3, day_of_month="1-7", month_of_year="1,6"), "cron 0 3 1-7 1,6 *"),
        ("*/5 * * * *", "cron */5 * * * *"),
        ("  0  3 * * sun ", "cron 0 3 * * sun"),
    ],
)
def test_a_schedule_is_read_as_it_was_written(shop, when, words):
    entry = read(shop, written(shop, when))
    assert entry.every == words


@pytest.mark.parametrize("when", [0.5, schedule(30, relative=True), crontab(minute=[3, 1], day_of_week="mon,fri")])
def test_an_update_that_leaves_the_schedule_writes_the_same(shop, when):
    text = written(shop, when)
    assert written(shop, entry_documents.written("hourly", text).when(shop)) == text


def test_task_and_arguments_are_read_as_they_were_written(shop):
    call = {"args": ("a@b",), "kwargs": {"subject": "\u202e {0} \x00 ü"}, "options": {"queue": "mails", "expires": 30}}
    entry = read(shop, written(shop, task="shop.mail", **call))
    assert (entry.call.task, entry.call.args) == ("shop.mail", ["a@b"])
    assert (entry.call.kwargs, entry.call.options) == (call["kwargs"], call["options"])
    assert (entry.source, entry.policy, entry.gap_ms) == ("people", None, None)


def test_an_entry_that_fires_a_job_has_its_policy(shop):
    assert read(shop, written(shop)).policy is jobs_of(shop)["shop.fetch"]


@pytest.mark.parametrize(
    "name", [*TEXTS.values(), "x" * keys.LONGEST_ENTRY_NAME, "数据" * 300], ids=lambda n: ascii(n)[:20]
)
def test_any_name_is_kept_as_it_is(shop, name):
    entry = read(shop, written(shop, name=name), name)
    assert (entry.name, entry.id) == (name, keys.entry(name))
    assert len(entry.id) <= keys.LONGEST_NAME


def test_times_depend_on_nothing_but_what_is_kept(shop):
    """Any scheduler that reads it finds the same due times."""
    text = written(shop, crontab(minute="*/5"))
    assert read(shop, text).times.next(NOW, NOW) == read(shop, text).times.next(NOW, NOW + 999) == NOW + 300_000
    assert read(shop, written(shop, 7)).times.next(NOW, NOW) == NOW + 7000


# -- what is refused, in words


class Own(schedule):
    pass


@pytest.mark.parametrize(
    "when",
    [
        *(0, -1, True, None, [], float("nan"), float("inf"), 10**9, "", "soon", "nan", "-5", "* * * *", "61 * * * *"),
        *("* * * * * *", "0 0 * * noday", timedelta(0), timedelta(seconds=-1), timedelta(days=100_000)),
        *(schedule(0), Own(5), schedule(5, nowfun=lambda: None), crontab(nowfun=lambda: None), lambda: 5),
    ],
)
def test_an_invalid_schedule_is_refused(shop, when):
    with pytest.raises(ConfigurationError, match=r"crontab"):
        written(shop, when)


def test_a_crontab_that_is_never_due_is_refused(shop):
    with pytest.raises(ConfigurationError, match="never"):
        written(shop, "0 0 31 2 *")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"task": "shop.fetsh"}, r"there is no task 'shop.fetsh' in this app, did you mean 'shop.fetch'\?"),
        ({"task": "fetch"}, r"did you mean 'shop.fetch'\?"),
        ({"task": 5}, "there is no task 5"),
        ({"name": ""}, "an entry needs a name"),
        ({"name": None}, "an entry needs a name"),
        ({"name": "x" * 1001}, "at most 1000 characters"),
        ({"name": "\ud800"}, "UTF-8"),
        ({"args": "abc"}, "args of an entry should be a list"),
        ({"args": {"a": 1}}, "args of an entry should be a list"),
        ({"kwargs": [1]}, "kwargs of an entry should be a mapping"),
        ({"kwargs": {1: 2}}, "kwargs of an entry should be a mapping"),
        ({"options": "x"}, "options of an entry should be a mapping"),
        ({"args": [object()]}, "have to be JSON"),
        ({"args": [float("nan")]}, "have to be JSON"),
        ({"args": ["\ud800"]}, "have to be JSON"),
        ({"args": ["x" * MOST_WRITTEN]}, "at most 100000 characters"),
        ({"args": [1, 2]}, "cannot be called like that"),
        ({"kwargs": {"page": 1}}, "cannot be called like that: .*page"),
        ({"task": "shop.mail"}, "cannot be called like that: .*to"),
        ({"options": {"queue": 5}}, "option queue"),
        ({"options": {"queue": ""}}, "option queue"),
        ({"options": {"priority": "hihg"}}, r"option priority .* did you mean 'high'\?"),
        ({"options": {"priority": 1.5}}, "option priority"),
        ({"task": "shop.mail", "args": ["a"], "options": {"priority": "high"}}, "option priority .* a number"),
        ({"options": {"expires": "soon"}}, "option expires"),
        ({"options": {"countdown": [1]}}, "option countdown"),
    ],
)
def test_an_entry_that_could_not_fire_is_refused_when_it_is_written(shop, more, words):
    with pytest.raises(ConfigurationError, match=words):
        written(shop, **more)


def test_arguments_that_are_nested_too_deep_are_refused(shop):
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigurationError, match="have to be JSON"):
        written(shop, args=deep)


def test_a_job_takes_priorities_by_name_or_number(shop):
    for priority in ("high", 5):
        assert read(shop, written(shop, options={"priority": priority})).call.options == {"priority": priority}


def test_errors_show_hostile_names_harmlessly(shop):
    for text in TEXTS.values():
        with pytest.raises(ConfigurationError) as caught:
            written(shop, task=text)
        assert str(caught.value).isprintable()
        with pytest.raises(ConfigurationError) as caught:
            read(shop, "nonsense", text)
        assert str(caught.value).isprintable()


# -- what is found in the ledger, whoever wrote it


def test_an_entry_whose_task_is_gone_says_so(shop):
    text = written(shop)
    del shop.tasks["shop.fetch"]
    with pytest.raises(ConfigurationError, match=r"^entry 'hourly': this app has no task 'shop.fetch'$"):
        from_document(shop, "hourly", text, {})


def test_a_document_of_another_version_with_more_fields_is_read(shop):
    text = json.dumps({**json.loads(written(shop)), "colour": "blue"})
    assert read(shop, text).every == "every 60 s"


@pytest.mark.parametrize(
    "change",
    [
        *({"name": 5}, {"name": "another"}, {"task": None}, {"args": "abc"}, {"args": None}, {"kwargs": []}),
        *({"options": 1}, {"args": ["\ud800"]}, {"kwargs": {"pages": "\ud800"}}, {"schedule": None}, {"schedule": {}}),
        *({"schedule": {"every": value}} for value in (0, -1, "1", None, [], float("nan"), float("inf"))),
        *({"schedule": {"cron": value}} for value in (5, "5", "* * *", "99 * * * *", None)),
        *({"schedule": {"solar": value}} for value in (5, [], ["sunrise"], ["sunrise", "x", "y"])),
    ],
)
def test_a_broken_document_is_one_error_in_words(shop, change):
    text = json.dumps({**json.loads(written(shop)), **change})
    with pytest.raises(ConfigurationError, match=r"^entry 'hourly': "):
        read(shop, text)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", "null", "\x00", "[" * 100_000, '{"name": "hourly"}'], ids=range(8)
)
def test_a_text_that_is_no_document_is_one_error_in_words(shop, text):
    with pytest.raises(ConfigurationError, match=r"^entry 'hourly': its document in the ledger cannot be read$"):
        read(shop, text)

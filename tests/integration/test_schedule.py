"""Changes of the schedule by people, by client and by verb: ``change_schedule``, ``read_changes`` and ``read_entries``.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_orchestration import OrchestratedTask, Orchestration
from celery_orchestration.errors import BadCall, ConfigurationError, LedgerUnavailable, UnknownEntry
from celery_orchestration.ledger import Adopted, Adoption, Fire, Presence, keys
from celery_orchestration.ledger.records import key_of
from support.hostile import TEXTS
from support.ledger import PREFIX, Shop
from support.servers import RedisServer, redis_binaries


class Diary(Shop):
    """A ledger with a schedule, and one scheduler that leads."""

    def lead(self, scheduler: str = "s1") -> str:
        self.term = self.ledger.lead(scheduler, f"{scheduler}@host", 10_000, "").term
        return self.term

    def people(self, what: str, name: str = "hourly", *, why: str = "", task: str = "one", gen: str = "") -> str:
        written = (task, task, "every 60 s", f'{{"name": "{name}"}}', gen)
        return self.ledger.change_schedule("me", what, name, why, written if what in ("add", "update") else ())

    def adopt(self, name: str = "hourly", source: str = "people", now_ms: int | None = None) -> Adopted:
        adoption = Adoption(keys.entry(name), name, "one", "one", "every 60 s", source, None)
        [found] = self.ledger.adopt_entries(self.term, self.now() if now_ms is None else now_ms, [adoption]) or ()
        return found

    def fire(self, due_ms: int, name: str = "hourly") -> str:
        entry = keys.entry(name)
        id, gen = f"{name}-{due_ms}", self.entry(name)["generation"]
        fire = Fire(entry, gen, due_ms, due_ms + 1, 0, "one", id, 10**9, message=b"message")
        return self.ledger.dispatch(self.term, [fire]).answers[0][0]

    def entry(self, name: str = "hourly") -> dict[str, str]:
        found = self.ledger.read_entry(name)
        assert found is not None
        return found

    def audited(self) -> list[tuple[str, str, str, str]]:
        found = map(json.loads, self.ledger.read_audit(100))
        return [(one["who"], one["what"], one["about"], one["why"]) for one in found]

    def changed(self, known: int | None) -> list[tuple[str, bool]]:
        return [(entry, there) for entry, there, _ in self.ledger.read_changes(known).entries]


@pytest.fixture(params=sorted(redis_binaries()))
def diary(request: pytest.FixtureRequest, redis_factory: Callable[..., RedisServer]) -> Diary:
    diary = Diary(redis_factory(binary=redis_binaries()[request.param]))
    diary.install({"one": {}})
    diary.lead()
    return diary


# -- the verb schedule


def test_an_added_entry_exists_and_begins_then(diary):
    before = diary.now()
    assert diary.people("add") == "ok"
    found = diary.entry()
    assert {name: found[name] for name in ("name", "task", "job", "every", "source", "written")} == {
        **{"name": "hourly", "task": "one", "job": "one", "every": "every 60 s"},
        **{"source": "people", "written": '{"name": "hourly"}'},
    }
    assert before <= int(found["last"]) <= diary.now()
    adopted = diary.adopt()
    assert (adopted.generation, adopted.last_ms, adopted.paused) == (found["generation"], int(found["last"]), False)
    assert diary.audited() == [("me", "add entry", "hourly", "")]


def test_an_existing_entry_is_not_added_again(diary):
    diary.people("add")
    before = diary.entry()
    assert diary.people("add", task="two") == "exists"
    assert diary.entry() == before
    assert diary.ledger.read_changes(None).number == len(diary.audited()) == 1


def test_a_task_that_is_no_job_has_no_job(diary):
    diary.ledger.change_schedule("me", "add", "plain", "", ("mail", "", "every 1 s", "{}", ""))
    assert "job" not in diary.entry("plain")


def test_a_changed_entry_gets_another_generation_and_begins_anew(diary):
    diary.people("add")
    diary.adopt()
    diary.ledger.record_next_due(diary.term, [("hourly", 5)])
    before = diary.entry()
    assert diary.people("update", task="two", gen=before["generation"]) == "ok"
    after = diary.entry()
    assert (after["task"], after["source"]) == ("two", "people")
    assert int(after["generation"]) > int(before["generation"])
    assert int(after["last"]) >= int(before["last"])
    assert "next" not in after
    assert diary.audited()[0] == ("me", "update entry", "hourly", "")


def test_of_two_people_who_change_an_entry_the_second_has_to_read_it_again(diary):
    """Also one whose reply was lost."""
    diary.people("add")
    gen = diary.entry()["generation"]
    assert diary.people("update", gen=gen) == "ok"
    changed = diary.entry()
    assert diary.people("update", gen=gen) == "changed"
    assert diary.entry() == changed


def test_a_removed_entry_leaves_nothing_but_its_change(diary):
    diary.people("add")
    assert diary.people("remove") == "ok"
    assert diary.ledger.read_entry("hourly") is None
    assert diary.ledger.read_entries(0, 10) == []
    assert diary.redis.exists(key_of(PREFIX, "entries"), key_of(PREFIX, "added_entries")) == 0
    assert diary.changed(0) == [("hourly", False)]
    assert diary.adopt().problem == "gone"


@pytest.mark.parametrize("what", ["update", "remove", "pause", "resume"])
def test_a_missing_entry_cannot_be_changed(diary, what):
    assert diary.people(what) == "none"
    assert diary.ledger.read_changes(None).number == 0
    assert diary.audited() == []


def test_an_entry_of_the_code_can_be_paused_and_nothing_else(diary):
    diary.adopt("nightly", "code")
    gen = diary.entry("nightly")["generation"]
    answers = [diary.people(what, "nightly", gen=gen) for what in ("add", "update", "remove")]
    assert answers == ["exists", "code", "code"]
    assert diary.people("pause", "nightly", why="too loud") == "ok"
    assert diary.adopt("nightly", "code").paused
    assert diary.people("resume", "nightly") == "ok"
    assert not diary.adopt("nightly", "code").paused
    assert [what for _, what, _, _ in diary.audited()] == ["resume entry", "pause entry"]


def test_a_paused_entry_does_not_fire_and_what_was_due_is_not_made_up_for(diary):
    diary.people("add")
    last = diary.adopt().last_ms
    assert diary.people("pause", why="holidays") == "ok"
    assert json.loads(diary.entry()["paused"]) | {"at": 0} == {"by": "me", "why": "holidays", "at": 0}
    assert diary.fire(last + 1) == "paused"
    assert diary.people("resume") == "ok"
    assert "paused" not in diary.entry()
    assert diary.adopt().last_ms >= last
    assert diary.fire(diary.adopt().last_ms) == "known"
    assert diary.fire(diary.adopt().last_ms + 1) == "fired"


def test_resuming_an_entry_that_is_not_paused_moves_no_due_time(diary):
    diary.people("add")
    before = diary.entry()
    assert diary.people("resume") == "ok"
    assert diary.entry() == before
    assert diary.changed(1) == []


def test_a_paused_entry_that_is_changed_stays_paused(diary):
    diary.people("add")
    diary.people("pause")
    diary.people("update", gen=diary.entry()["generation"])
    assert diary.adopt().paused


def test_the_time_of_the_last_fire_is_that_of_a_fire_and_not_of_a_change(diary):
    diary.people("add")
    due = diary.adopt().last_ms + 1
    assert "at" not in diary.entry()
    assert diary.fire(due) == "fired"
    for what in ("pause", "resume", "update"):
        diary.people(what, gen=diary.entry()["generation"])
        assert (diary.entry()["at"], diary.entry()["how"]) == (str(due), "fired")


def test_names_stay_distinct_whatever_they_are(diary):
    names = [*TEXTS.values(), "x" * 300, "x" * 300 + "y"]
    for name in names:
        assert diary.ledger.change_schedule("me", "add", name, name, ("one", "one", "every 1 s", "{}", "")) == "ok"
    assert sorted(fields["name"] for _, fields in diary.ledger.read_entries(0, 100)) == sorted(names)
    assert [(what, about) for _, what, about, _ in reversed(diary.audited())] == [("add entry", name) for name in names]
    for name in names:
        assert diary.people("remove", name) == "ok"
    assert diary.ledger.read_entries(0, 100) == []


def test_a_redis_that_is_full_takes_no_new_entry_and_lets_go_of_old_ones(diary):
    diary.people("add")
    diary.redis.config_set("maxmemory", 1)
    with pytest.raises(LedgerUnavailable, match="maxmemory"):
        diary.people("add", "another")
    assert [diary.people(what) for what in ("pause", "resume", "remove")] == ["ok"] * 3
    diary.redis.config_set("maxmemory", 0)
    assert diary.ledger.read_entries(0, 10) == []
    assert diary.changed(1) == [("hourly", False)]


# -- records that are broken


def break_as_text(diary: Diary) -> None:
    diary.redis.set(key_of(PREFIX, "entry", "hourly"), "x")


def break_generation(diary: Diary) -> None:
    diary.redis.hset(key_of(PREFIX, "entry", "hourly"), "generation", "x")


def break_last(diary: Diary) -> None:
    diary.redis.hdel(key_of(PREFIX, "entry", "hourly"), "last")


@pytest.mark.parametrize("broken", [break_as_text, break_generation, break_last])
@pytest.mark.parametrize("source", ["people", "code"])
def test_a_broken_record_can_be_removed_and_nothing_else(diary, broken, source):
    if source == "people":
        diary.people("add")
    diary.adopt(source=source)
    broken(diary)
    for what in ("add", "update", "pause", "resume"):
        assert diary.people(what) == ("exists" if what == "add" else "corrupt")
    [(entry, fields)] = diary.ledger.read_entries(0, 10)
    assert entry == "hourly"
    assert ("generation" not in fields) or ("last" not in fields) or fields["generation"] == "x"
    assert diary.adopt(source=source).problem.startswith("corrupt")
    assert diary.people("remove") == "ok"
    if source == "code":
        assert diary.adopt(source=source).problem == ""  # it is back, and intact
    else:
        assert diary.people("add") == "ok"


def test_an_entry_whose_record_vanished_is_listed_until_it_is_removed_or_added_again(diary):
    diary.people("add")
    diary.redis.delete(key_of(PREFIX, "entry", "hourly"))
    assert diary.ledger.read_entry("hourly") == {}
    assert diary.people("pause") == "corrupt"
    assert diary.people("remove") == "ok"
    assert diary.people("remove") == "none"
    diary.people("add")
    diary.redis.delete(key_of(PREFIX, "entry", "hourly"))
    assert diary.people("add") == "ok"


def test_bytes_that_are_no_text_are_read_as_far_as_possible(diary):
    diary.people("add")
    diary.redis.hset(key_of(PREFIX, "entry", "hourly"), mapping={"written": b"\xff\x00", "name": b"\xfe"})
    [(_, fields)] = diary.ledger.read_entries(0, 10)
    assert (fields["written"], fields["name"]) == ("\ufffd\x00", "\ufffd")
    assert diary.ledger.read_changes(None).entries == [("hourly", True, "\ufffd\x00")]


# -- the verb changes


def test_a_scheduler_that_knows_some_changes_gets_the_later_ones(diary):
    diary.adopt("nightly", "code")
    assert (diary.ledger.read_changes(None).number, diary.changed(None)) == (0, [])
    diary.people("add", "a")
    diary.people("add", "b")
    diary.people("pause", "nightly")
    assert diary.ledger.read_changes(0).number == 3
    assert diary.changed(0) == [("a", True), ("b", True), ("nightly", True)]
    assert diary.changed(2) == [("nightly", True)]
    assert diary.changed(3) == []
    diary.people("remove", "a")
    assert diary.changed(2) == [("nightly", True), ("a", False)], "each once, with what it came to"


def test_a_scheduler_that_knows_no_change_gets_all_entries_that_people_added(diary):
    diary.adopt("nightly", "code")
    diary.people("pause", "nightly")
    for name in "abc":
        diary.people("add", name)
    diary.people("remove", "b")
    found = diary.ledger.read_changes(None)
    assert (found.number, found.complete) == (5, True)
    assert sorted(found.entries) == [("a", True, '{"name": "a"}'), ("c", True, '{"name": "c"}')]


def test_a_scheduler_that_missed_too_many_changes_has_to_ask_for_all_entries(diary):
    for number in range(1001):
        diary.people("add", f"e{number}")
    assert not diary.ledger.read_changes(0).complete
    assert diary.ledger.read_changes(1).complete
    assert len(diary.changed(1)) == 1000
    assert diary.redis.zcard(key_of(PREFIX, "changed_entries")) == 1000
    assert len(diary.changed(None)) == 1001


def test_a_scheduler_hears_of_changes_with_its_term(diary):
    assert diary.ledger.lead("s1", "s1@host", 10_000, diary.term).changes == 0
    diary.people("add")
    assert diary.ledger.lead("s1", "s1@host", 10_000, diary.term).changes == 1
    assert diary.ledger.lead("s2", "s2@host", 10_000, "").changes == 1


# -- the verb entries


def test_entries_come_in_parts(diary):
    for number in range(25):
        diary.people("add", f"e{number}")
    parts = [diary.ledger.read_entries(skip, 10) for skip in (0, 10, 20, 30)]
    assert [len(part) for part in parts] == [10, 10, 5, 0]
    assert {entry for part in parts for entry, _ in part} == {f"e{number}" for number in range(25)}
    assert diary.ledger.read_entries(0, 0) == []


def test_entries_show_what_became_of_their_fires(diary):
    diary.people("add")
    due = diary.adopt().last_ms + 1
    assert diary.fire(due) == "fired"
    found = diary.entry()
    assert (found["how"], found["run"], found["fires"]) == ("fired", f"hourly-{due}", "1")
    assert (found["last"], found["at"], found["next"]) == (str(due), str(due), str(due + 1))


# -- the client


@pytest.fixture
def app(redis_server: RedisServer) -> Iterator[Celery]:
    app = Celery("shop", broker=redis_server.url(), set_as_current=False)
    app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
    app.conf.beat_schedule = {"nightly": {"task": "shop.mail", "schedule": crontab(hour=3), "args": ("a",)}}

    @app.task(name="shop.mail", shared=False, lazy=False)
    def mail(to: str, subject: str = "") -> None: ...

    @app.task(name="shop.fetch", base=OrchestratedTask, shared=False, lazy=False, interval_seconds=60)
    def fetch(pages: int = 1) -> None: ...

    @app.task(name="shop.poll", base=OrchestratedTask, shared=False, lazy=False, mode="continuous")
    def poll() -> None: ...

    yield app
    app.close()


@pytest.fixture
def client(app: Celery) -> Iterator[Orchestration]:
    client = Orchestration(app)
    yield client
    client.close()


@pytest.fixture
def shop(redis_server: RedisServer, app: Celery) -> Diary:
    """The ledger of the app, after a scheduler has adopted its entries."""
    diary = Diary(redis_server)
    diary.install({"shop.fetch": {}, "shop.poll": {}})
    diary.lead()
    return diary


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def recently(when: datetime | None) -> bool:
    return when is not None and abs(datetime.now(timezone.utc) - when) < timedelta(minutes=1)


def test_an_entry_is_added_seen_changed_paused_resumed_and_removed(client, shop):
    schedule = client.schedule
    added = schedule.add("mails", "shop.mail", 60, ("a@b",), {"subject": "x"}, {"queue": "mails"})
    assert (added.name, added.task, added.is_job, added.every) == ("mails", "shop.mail", False, "every 60 s")
    assert (added.args, added.named_args, added.options) == (["a@b"], {"subject": "x"}, {"queue": "mails"})
    assert (added.source, added.paused, added.problem, added.continuous) == ("people", None, None, False)
    assert (added.last_fire, added.last_outcome, added.last_run, added.next_fire) == (None, None, None, None)
    assert (added.fires, added.skips, added.misses) == (0, 0, 0)
    assert schedule.list() == [added] == [schedule.get("mails")]

    changed = schedule.update("mails", schedule="*/5 * * * *")
    assert (changed.every, changed.args, changed.options) == ("cron */5 * * * *", ["a@b"], {"queue": "mails"})
    changed = schedule.update("mails", task="shop.fetch", args=[], kwargs={"pages": 3})
    assert (changed.task, changed.is_job, changed.every) == ("shop.fetch", True, "cron */5 * * * *")
    assert (changed.args, changed.named_args, changed.options) == ([], {"pages": 3}, {"queue": "mails"})
    assert schedule.update("mails", options={}).options == {}

    paused = schedule.pause("mails", "holidays").paused
    assert (paused.why, recently(paused.at)) == ("holidays", True)
    assert schedule.resume("mails").paused is None
    assert schedule.remove("mails").name == "mails"
    assert schedule.list() == []

    audit = client.audit()
    assert {(one.who, one.about) for one in audit} == {(paused.by, "mails")}
    assert [one.what.removesuffix(" entry") for one in reversed(audit)] == [
        *("add", "update", "update", "update", "pause", "resume", "remove")
    ]
    assert [one.why for one in audit if one.why] == ["holidays"]


def test_a_task_may_be_given_itself(client, app):
    assert client.schedule.add("x", app.tasks["shop.fetch"], timedelta(seconds=5)).task == "shop.fetch"


def test_fires_of_an_entry_are_shown(client, shop):
    client.schedule.add("often", "shop.fetch", 1)
    due = shop.adopt("often").last_ms + 1
    shop.ledger.record_next_due(shop.term, [("often", due)])
    assert client.schedule.get("often").next_fire == at(due)
    gen = shop.entry("often")["generation"]
    fire = Fire("often", gen, due, due + 1, 3, "shop.fetch", "the-run", 10**9, "skip", message=b"message")
    assert shop.ledger.dispatch(shop.term, [fire]).answers == [("fired",)]
    found = client.schedule.get("often")
    assert (found.last_outcome, found.last_run, found.fires, found.misses) == ("fired", "the-run", 1, 3)
    assert (found.last_fire, found.next_fire) == (at(due), at(due + 1))
    again = Fire("often", gen, due + 1, due + 2, 0, "shop.fetch", "no-run", 10**9, "skip", message=b"message")
    assert shop.ledger.dispatch(shop.term, [again]).answers[0][0] == "skipped"
    found = client.schedule.get("often")
    assert (found.last_outcome, found.last_run, found.fires, found.skips) == ("skipped", "the-run", 1, 1)
    assert found.last_fire == at(due + 1)


def test_errors_say_what_to_do(client, shop):
    schedule = client.schedule
    schedule.add("mails", "shop.mail", 60, ["a"])
    shop.adopt("elsewhere", "code")
    in_code = "is defined in the code: change it there, or pause it"
    for call, error, words in (
        (lambda: schedule.add("mails", "shop.mail", 5, ["a"]), BadCall, "there is an entry 'mails' already"),
        (lambda: schedule.add("nightly", "shop.mail", 5, ["a"]), BadCall, in_code),
        (lambda: schedule.add("shop.fetch", "shop.fetch", 5), BadCall, in_code),
        (lambda: schedule.add("shop.poll", "shop.poll", 5), BadCall, in_code),
        (lambda: schedule.add("elsewhere", "shop.fetch", 5), BadCall, in_code),
        (lambda: schedule.update("elsewhere", schedule=5), BadCall, in_code),
        (lambda: schedule.remove("elsewhere"), BadCall, in_code),
        (lambda: schedule.update("mails"), BadCall, "give something to change"),
        (lambda: schedule.add("x", "shop.mial", 5), ConfigurationError, "did you mean 'shop.mail'"),
        (lambda: schedule.add("x", "shop.mail", 5), ConfigurationError, "cannot be called like that"),
        (lambda: schedule.add("x", "shop.fetch", "soon"), ConfigurationError, "neither a number of seconds nor"),
        (lambda: schedule.update("mails", args=[1, 2, 3]), ConfigurationError, "cannot be called like that"),
        (lambda: schedule.update("mial", schedule=5), UnknownEntry, "no entry 'mial' .* did you mean 'mails'"),
        (lambda: schedule.remove("mial"), UnknownEntry, "did you mean 'mails'"),
        (lambda: schedule.pause("mial"), UnknownEntry, "did you mean 'mails'"),
        (lambda: schedule.resume("mial"), UnknownEntry, "did you mean 'mails'"),
        (lambda: schedule.get("nothing like it"), UnknownEntry, "in the schedule$"),
        (lambda: schedule.pause("nightly"), UnknownEntry, "no scheduler has registered the entry 'nightly'"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert [entry.name for entry in schedule.list()] == ["elsewhere", "mails"]
    assert len(client.audit()) == 1


def test_a_simultaneous_change_of_another_part_loses_nothing(client, app, monkeypatch):
    client.schedule.add("mails", "shop.mail", 60, ["a"])
    another = Orchestration(app)
    read = client.schedule._read

    def meanwhile(name: str, found: Any) -> Any:
        monkeypatch.undo()
        another.schedule.update("mails", args=["b"])
        return read(name, found)

    monkeypatch.setattr(client.schedule, "_read", meanwhile)
    found = client.schedule.update("mails", schedule=5)
    assert (found.every, found.args) == ("every 5 s", ["b"])
    another.close()


def test_one_bad_entry_does_not_hide_the_others(client, app, shop):
    schedule = client.schedule
    for name in ("b", "a", "d", "e", "f", "g"):
        schedule.add(name, "shop.mail", 60, ["a"])
    schedule.add("gone", "shop.fetch", 60)
    del app.tasks["shop.fetch"]
    shop.redis.set(key_of(PREFIX, "entry", "b"), "x")
    shop.redis.delete(key_of(PREFIX, "entry", "d"))
    shop.redis.hset(key_of(PREFIX, "entry", "e"), "written", "{")
    shop.redis.hset(key_of(PREFIX, "entry", "f"), mapping={"paused": "{", "name": b"\xff"})
    shop.redis.hset(key_of(PREFIX, "entry", "g"), "fires", "many")
    problems = {entry.name: entry.problem for entry in schedule.list()}
    corrupt = "its record is corrupt"
    assert problems == {
        **{"a": None, "b": corrupt, "d": corrupt, "e": "its document in the ledger cannot be read"},
        **{"\ufffd": corrupt, "g": corrupt, "gone": "this app has no task 'shop.fetch'"},
    }
    assert list(problems) == sorted(problems)
    with pytest.raises(BadCall, match="remove it and add it again"):
        schedule.update("e", schedule=5)
    with pytest.raises(BadCall, match="its record is corrupt; remove it"):
        schedule.pause("b")
    for name in ("b", "d", "e", "f", "g", "gone"):
        schedule.remove(name)
    assert [entry.name for entry in schedule.list()] == ["a"]


def test_an_entry_of_the_code_whose_task_is_elsewhere_is_no_problem(client, shop):
    """Celery's beat sends it by its name."""
    shop.ledger.adopt_entries(shop.term, shop.now(), [Adoption("x", "x", "other.task", "", "every 5 s", "code", None)])
    [found] = client.schedule.list()
    assert (found.problem, found.is_job, found.source) == (None, False, "code")


def test_a_continuous_entry_is_shown_as_continuous(client, shop):
    one = Adoption("shop.poll", "shop.poll", "shop.poll", "shop.poll", "continuously", "code", None, 0, b"x", "q")
    shop.ledger.adopt_entries(shop.term, shop.now(), [one])
    [found] = client.schedule.list()
    assert (found.continuous, found.is_job, found.every) == (True, True, "continuously")


def test_all_entries_are_read_though_one_call_reads_a_part(client, shop):
    for number in range(450):
        shop.ledger.change_schedule("me", "add", f"e{number:03}", "", ("shop.mail", "", "every 1 s", "{}", ""))
    assert [entry.name for entry in client.schedule.list()] == [f"e{number:03}" for number in range(450)]
    assert client.status().scheduler.entries == 450


def test_hostile_names_are_kept_as_they_are(client, shop):
    names = [*TEXTS.values(), "x" * 1000, "數" * 300]
    for name in names:
        assert client.schedule.add(name, "shop.fetch", 60).name == name
        client.schedule.pause(name, name)
    assert [entry.name for entry in client.schedule.list()] == sorted(names)
    assert {entry.problem for entry in client.schedule.list()} == {None}
    assert {(one.about, one.why) for one in client.audit() if one.what == "pause entry"} == {(n, n) for n in names}
    for name in names:
        client.schedule.remove(name)
    assert client.schedule.list() == []


# -- who leads, in status


def member(shop: Diary, name: str, kind: str = "beat") -> None:
    presence = Presence(
        worker=name, name=f"{name}@host", host="host", pid=1, slots=0, kind=kind, queues=(), release="r1",
        mode="enforce", lease_ms=30_000, owner="shop", done_ms=60_000, policies=shop.document, jobs=shop.jobs,
    )  # fmt: skip
    shop.ledger.register(presence)


LEADERLESS = "no scheduler leads: nothing is fired; start one with celery -A … beat"


def test_status_names_the_leader_and_the_standbys(client, shop):
    for name in ("s1", "s3", "s2"):
        member(shop, name)
    status = client.status()
    assert (status.scheduler.leader, status.scheduler.standbys) == ("s1@host", ["s2@host", "s3@host"])
    assert recently(status.scheduler.since)
    assert [worker.name for worker in status.workers] == ["w1@host"]
    shop.ledger.leave("w1")
    status = client.status()
    assert status.workers == []
    assert "no worker is alive" in status.problems
    assert not [problem for problem in status.problems if "scheduler" in problem]


def test_a_term_that_is_over_has_no_leader(client, shop):
    member(shop, "s1")
    shop.redis.hset(key_of(PREFIX, "leader"), "until", shop.now() - 1)
    status = client.status()
    assert (status.scheduler.leader, status.scheduler.since) == (None, None)
    assert status.scheduler.standbys == ["s1@host"]
    assert [problem for problem in status.problems if "no scheduler leads at the moment" in problem]
    shop.ledger.leave("s1")
    assert LEADERLESS in client.status().problems
    shop.lead("s2")
    assert client.status().scheduler.leader == "s2@host"
    shop.ledger.resign("s2", shop.term)
    assert client.status().scheduler.leader is None


def test_nobody_has_to_lead_where_nothing_is_to_be_fired_by_ours(client, app, redis_server):
    assert LEADERLESS in client.status().problems
    app.conf.beat_scheduler = "celery.beat:PersistentScheduler"
    assert LEADERLESS not in client.status().problems
    bare = Celery("bare", broker=redis_server.url(), set_as_current=False)
    bare.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
    other = Orchestration(bare)
    assert LEADERLESS not in other.status().problems
    other.schedule.add("cleanup", "celery.backend_cleanup", 5)
    assert LEADERLESS in other.status().problems
    other.close()
    bare.close()


def test_a_broken_record_of_the_lead_does_not_break_status(client, shop):
    shop.redis.delete(key_of(PREFIX, "leader"), key_of(PREFIX, "entries"))
    shop.redis.set(key_of(PREFIX, "leader"), "x")
    shop.redis.set(key_of(PREFIX, "entries"), "x")
    assert client.status().scheduler.leader is None


def test_a_scheduler_that_died_is_no_worker_that_died(client, shop):
    for name, kind in (("s1", "beat"), ("w2", "prefork")):
        member(shop, name, kind)
        shop.redis.zadd(key_of(PREFIX, "leases"), {name: -1})
    shop.redis.hincrby(key_of(PREFIX, "ledger"), "clock", 1)
    assert sorted(shop.ledger.sweep("w1", 1, 5000).dead_workers) == ["s1@host", "w2@host"]
    assert [death.name for death in client.status().died] == ["w2@host"]


# -- fires in the history


def test_history_has_entry_and_due_time_and_counts_fires_that_made_no_run(client, shop):
    client.schedule.add("of\u202eten:", "shop.fetch", 1)
    entry, begin = keys.entry("of\u202eten:"), shop.adopt("of\u202eten:").last_ms
    gen = shop.entry("of\u202eten:")["generation"]
    for number in range(1, 5):
        due = begin + number
        fire = Fire(entry, gen, due, due + 1, 0, "shop.fetch", f"run-{number}", 10**9, "skip", message=b"x")
        shop.ledger.dispatch(shop.term, [fire])
    [skipped] = client.history("shop.fetch")
    assert (skipped.outcome, skipped.fires, skipped.made_run) == ("skipped", 3, False)
    assert (skipped.entry, skipped.error) == ("of\u202eten:", "the run before it has not started")
    assert skipped.due == at(begin + 4)
    assert skipped.waited_seconds == 0
    assert client.cancel("run-1").cancelled
    ended = client.history("shop.fetch")[0]
    assert (ended.outcome, ended.entry, ended.fires, ended.made_run) == ("revoked", "of\u202eten:", 1, True)
    assert ended.due == at(begin + 1)


def test_an_entry_that_nothing_would_fire_is_not_added(client, app):
    app.conf.beat_scheduler = "celery.beat:PersistentScheduler"
    with pytest.raises(BadCall, match="nothing would fire it: this app's beat_scheduler is ") as found:
        client.schedule.add("x", "shop.fetch", 5)
    assert "beat -S celery_orchestration:OrchestratedScheduler" in str(found.value)
    health = client.health(scheduler=True)
    assert (health.ok, health.problem) == (
        False,
        "this app's beat is celery.beat:PersistentScheduler: the ledger does not know whether it is alive",
    )
    # A scheduler of ours may have been started with -S.
    client._ledger.lead("s1", "s1@host", 60_000, "")
    assert client.schedule.add("x", "shop.fetch", 5).name == "x"
    assert client.health(scheduler=True).ok

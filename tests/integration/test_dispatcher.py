"""The dispatcher of one scheduler, step by step on a real Redis: every fire is made, also if errors occur among many
fires."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from celery import Celery

from celery_orchestration import OrchestratedTask
from celery_orchestration.errors import LedgerError, LedgerUnavailable
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Fire, Grant
from celery_orchestration.ledger.records import key_of
from celery_orchestration.scheduler.dispatcher import MOST_FIRES
from celery_orchestration.scheduler.entries import from_code
from celery_orchestration.scheduler.entry_table import MOST_ENTRIES
from celery_orchestration.scheduler.runtime import SchedulerRuntime
from support.servers import RedisServer
from support.wait import until
from support.workers import close_app

#: More entries than one call to the ledger takes.
COUNT = max(2 * MOST_FIRES, MOST_ENTRIES) + 10
HOUR_MS = 3_600_000


class Scheduler:
    """A scheduler whose threads are not started: the tests call its steps one after the other."""

    def __init__(self, app: Celery, server: RedisServer) -> None:
        entries, _ = from_code(app, jobs_of(app), {})
        self.runtime = SchedulerRuntime(app, entries)
        self.redis = server.client()
        self.ledger = self.runtime.dispatcher._ledger
        self.entries = list(entries.values())
        self.names = [entry.id for entry in entries.values()]
        self.runtime.heartbeat._register()
        self.runtime.term._ask()

    def close(self) -> None:
        parts = self.runtime.heartbeat, self.runtime.term, self.runtime.publisher
        for ledger in (self.ledger, *(part._ledger for part in parts)):
            ledger.close()

    def round(self) -> None:
        self.runtime.dispatcher._round()

    def make_due(self) -> None:
        """Makes all entries due, as if each had fired an hour ago."""
        last = self.runtime.term.now() - HOUR_MS
        for name in self.names:
            self.redis.hset(key_of("{fires}:", "entry", name), mapping={"generation": "1", "last": last})

    def take_over(self) -> None:
        """Gets a term of its own, after another scheduler's."""
        term = self.runtime.term
        term._ledger.resign(self.runtime.worker, term.number)
        term.lost(term.number)
        term._ask()

    def has_a_worker(self) -> None:
        """Registers a worker with slots for all: every fire is handed over."""
        presence = self.runtime.as_present("worker@host", "prefork", 2 * COUNT, ("celery", "default.granted"))
        self.ledger.register(replace(presence, worker="worker"))

    def published(self) -> list[Grant]:
        """Publishes all granted runs. Returns the messages in the broker then."""
        publisher = self.runtime.publisher
        publisher.start()
        publisher.stop()
        publisher.join(20)
        messages = [json.loads(text)["headers"] for text in self.redis.lrange("default.granted", 0, -1)]
        return [Grant(message["id"], message["orchestration"]["grant"]) for message in messages]

    @property
    def fires(self) -> dict[str, int]:
        return {name: int(self.redis.hget(key_of("{fires}:", "entry", name), "fires") or 0) for name in self.names}

    def all_fire_once(self) -> bool:
        self.round()
        return self.fires == dict.fromkeys(self.names, 1)

    def fails_once(self, verb: str, call: int, *, after: bool = False) -> None:
        """The ledger does not answer that call, which may or may not have taken effect."""
        original, calls = getattr(self.ledger, verb), 0

        def failing(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls != call:
                return original(*args)
            if after:
                original(*args)
            raise LedgerUnavailable("gone for a moment")

        setattr(self.ledger, verb, failing)


def _nothing() -> None: ...
def _takes_anything(**_: Any) -> None: ...


@pytest.fixture
def scheduler(redis_server: RedisServer) -> Iterator[Scheduler]:
    app = Celery("fires", broker=redis_server.url(), set_as_current=False)
    app.task(name="fired", base=OrchestratedTask, overlap="allow")(_nothing)
    app.conf.beat_schedule = {f"entry{i}": {"task": "fired", "schedule": HOUR_MS / 1000} for i in range(COUNT)}
    app.finalize()
    scheduler = Scheduler(app, redis_server)
    yield scheduler
    scheduler.close()
    close_app(app)


@pytest.mark.parametrize("after", [False, True], ids=["not asked", "answer lost"])
def test_many_fires_survive_a_short_outage_of_the_ledger(scheduler: Scheduler, after: bool):
    scheduler.make_due()
    scheduler.fails_once("dispatch", 2, after=after)
    with pytest.raises(LedgerUnavailable):
        scheduler.round()
    scheduler.round()
    assert scheduler.fires == dict.fromkeys(scheduler.names, 1)


def test_fires_that_are_asked_for_one_by_one_survive_a_short_outage_of_the_ledger(scheduler: Scheduler):
    """As after an error that concerns one of them."""
    scheduler.make_due()
    scheduler.fails_once("dispatch", 3)
    original = scheduler.ledger.dispatch

    def refusing(term: str, fires: list[Fire]) -> Any:
        if len(fires) > 1:
            raise LedgerError("one of these")
        return original(term, fires)

    scheduler.ledger.dispatch = refusing  # type: ignore[method-assign]
    with pytest.raises(LedgerUnavailable):
        scheduler.round()
    until(scheduler.all_fire_once, message="each entry has fired")


@pytest.mark.parametrize("adopted", [False, True])
def test_a_leader_whose_term_the_ledger_refuses_stands_by(scheduler: Scheduler, adopted: bool):
    """It still trusts its term, but another scheduler has a newer one."""
    if adopted:
        scheduler.make_due()
        scheduler.runtime.dispatcher._take_over(scheduler.runtime.term.number)
    scheduler.ledger.resign(scheduler.runtime.worker, scheduler.runtime.term.number)
    assert scheduler.ledger.lead("other", "other@host", 10_000, "").term
    scheduler.round()
    assert scheduler.runtime.term.number == ""
    assert set(scheduler.fires.values()) == {0}


def test_fires_survive_a_term_that_cannot_be_trusted_for_a_moment(scheduler: Scheduler):
    """As after a pause of the process: the same term is renewed right away."""
    scheduler.make_due()
    term, original = scheduler.runtime.term, scheduler.ledger.dispatch

    def paused(*args: Any) -> Any:
        term._held = (term._held[0], 0.0)
        return original(*args)

    scheduler.ledger.dispatch = paused  # type: ignore[method-assign]
    scheduler.round()
    assert sum(scheduler.fires.values()) == MOST_FIRES
    scheduler.ledger.dispatch = original  # type: ignore[method-assign]
    term._ask()
    scheduler.round()
    assert scheduler.fires == dict.fromkeys(scheduler.names, 1)


def test_entries_are_adopted_despite_a_short_outage_of_the_ledger(scheduler: Scheduler):
    scheduler.round()
    scheduler.make_due()
    scheduler.take_over()
    scheduler.fails_once("adopt_entries", 2)
    with pytest.raises(LedgerUnavailable):
        scheduler.round()
    scheduler.round()
    assert scheduler.fires == dict.fromkeys(scheduler.names, 1)


def test_a_lost_entry_is_adopted_again_despite_a_short_outage(scheduler: Scheduler):
    scheduler.make_due()
    vanished = scheduler.names[0]
    original = scheduler.runtime.dispatcher._dispatch

    def dispatch() -> None:
        scheduler.redis.delete(key_of("{fires}:", "entry", vanished))
        original()

    scheduler.runtime.dispatcher._dispatch = dispatch  # type: ignore[method-assign]
    adopting = -(-COUNT // MOST_ENTRIES)
    scheduler.fails_once("adopt_entries", adopting + 1)
    with pytest.raises(LedgerUnavailable):
        scheduler.round()
    scheduler.runtime.dispatcher._dispatch = original  # type: ignore[method-assign]
    until(scheduler.all_fire_once, message="each entry has fired")


def test_runs_that_were_granted_again_meanwhile_are_published_once(scheduler: Scheduler):
    scheduler.has_a_worker()
    scheduler.make_due()
    scheduler.round()
    granted = scheduler.redis.zrange(key_of("{fires}:", "deadlines"), 0, -1)
    scheduler.redis.zadd(key_of("{fires}:", "deadlines"), dict.fromkeys(granted[::3], -1))
    scheduler.runtime.heartbeat._sweep()
    grants = scheduler.published()
    assert sorted(grant.id for grant in grants) == sorted(granted)
    assert None not in scheduler.ledger.read_all_granted(grants)
    assert scheduler.ledger.confirm_published(grants) == COUNT


def test_one_message_that_cannot_be_published_keeps_no_other_one_back(scheduler: Scheduler):
    scheduler.has_a_worker()
    scheduler.make_due()
    scheduler.round()
    granted = scheduler.redis.zrange(key_of("{fires}:", "deadlines"), 0, -1)
    scheduler.redis.hset(key_of("{fires}:", "run", granted[COUNT // 2]), "message", "unreadable")
    grants = scheduler.published()
    assert sorted(grant.id for grant in grants) == sorted(set(granted) - {granted[COUNT // 2]})


def test_messages_are_made_before_they_are_due(scheduler: Scheduler):
    """Many may be due at once."""

    def nothing_left_to_do() -> bool:
        scheduler.round()
        return scheduler.runtime.dispatcher._entries.is_prepared

    until(nothing_left_to_do, message="all entries are prepared")
    assert all(entry.template for entry in scheduler.entries)
    assert set(scheduler.fires.values()) == {0}


class TestAPublisherThatIsBehind:
    @pytest.fixture
    def publisher(self, scheduler: Scheduler) -> Any:
        publisher = scheduler.runtime.publisher
        publisher.publish([Grant("run", "1")] * 1000)
        return publisher

    def test_is_waited_for(self, scheduler: Scheduler, publisher: Any, monkeypatch: pytest.MonkeyPatch):
        scheduler.make_due()
        publisher._done_at = monotonic()
        waited = _called(monkeypatch, publisher._errands.queue.clear)
        scheduler.round()
        assert waited
        assert scheduler.fires == dict.fromkeys(scheduler.names, 1)

    def test_is_not_waited_for_if_it_gets_nothing_done(
        self, scheduler: Scheduler, publisher: Any, monkeypatch: pytest.MonkeyPatch
    ):
        """The broker is unavailable, or hangs: fires still go into the ledger."""
        scheduler.make_due()
        publisher._done_at = monotonic() - 10
        waited = _called(monkeypatch, lambda: None)
        scheduler.round()
        assert not waited
        assert scheduler.fires == dict.fromkeys(scheduler.names, 1)


def _called(monkeypatch: pytest.MonkeyPatch, do: Callable[[], None]) -> list[float]:
    """The pauses of the dispatcher."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        do()

    monkeypatch.setattr("celery_orchestration.scheduler.dispatcher.sleep", sleep)
    return pauses


def test_a_fire_that_the_key_does_not_fit_is_made_and_left_to_fail(redis_server: RedisServer):
    """A worker fails it, so that it is in the history and counts."""
    app = Celery("fires", broker=redis_server.url(), set_as_current=False)
    options = {"base": OrchestratedTask, "max_running": 1, "key": "{tenant}"}
    app.task(name="fired", shared=False, **options)(_takes_anything)
    app.conf.beat_schedule = {"entry": {"task": "fired", "schedule": HOUR_MS / 1000}}
    app.finalize()
    with closing(Scheduler(app, redis_server)) as scheduler:
        scheduler.make_due()
        assert scheduler.all_fire_once()
    close_app(app)


def test_an_emptied_ledger_has_the_last_fires_that_its_leader_knows(redis_server: RedisServer):
    app = Celery("fires", broker=redis_server.url(), set_as_current=False)
    app.task(name="fired", base=OrchestratedTask, overlap="allow")(_nothing)
    app.conf.beat_schedule = {"hourly": {"task": "fired", "schedule": HOUR_MS / 1000}}
    app.finalize()
    scheduler = Scheduler(app, redis_server)
    scheduler.make_due()
    scheduler.round()
    last = scheduler.redis.hget(key_of("{fires}:", "entry", "hourly"), "last")
    scheduler.redis.flushall()
    scheduler.round()  # the ledger says that nobody leads
    scheduler.runtime.heartbeat._registered = False
    scheduler.runtime.heartbeat._register()
    scheduler.runtime.term._ask()
    scheduler.round()
    assert scheduler.redis.hget(key_of("{fires}:", "entry", "hourly"), "last") == last
    scheduler.close()
    close_app(app)


def test_a_leader_whose_thread_died_cannot_dispatch(redis_server: RedisServer):
    app = Celery("fires", broker=redis_server.url(), set_as_current=False)
    app.task(name="fired", base=OrchestratedTask)(_nothing)
    app.finalize()
    scheduler = Scheduler(app, redis_server)
    dispatcher = scheduler.runtime.dispatcher
    assert dispatcher.silent_for() == 0, "it has not begun"
    dispatcher._go = lambda: None  # type: ignore[method-assign]
    dispatcher.start()
    dispatcher.join()
    assert dispatcher.silent_for() > 3600
    dispatcher.stop()
    assert dispatcher.silent_for() == 0, "it was told to"
    scheduler.close()
    close_app(app)

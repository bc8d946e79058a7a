"""Code that hooks into the sending of a task, such as monitors and tracers, sees each fire as with Celery's beat, and a
fire still becomes one run. One scheduler, step by step on a real Redis."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.beat import ScheduleEntry, Scheduler, Service
from kombu.exceptions import OperationalError

from celery_orchestration import OrchestratedScheduler, OrchestratedTask
from celery_orchestration.errors import LedgerUnavailable
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger.records import HistoryLine, key_of
from celery_orchestration.scheduler.apply_entry import NOT_SENT, Applier
from celery_orchestration.scheduler.entries import from_code
from celery_orchestration.scheduler.runtime import SchedulerRuntime
from support.servers import RedisServer
from support.wait import until
from support.workers import close_app

HOUR_MS = 3_600_000
PREFIX = "{fires}:"
BOTH = pytest.mark.parametrize("entry", ["job", "plain"])


def _nothing() -> None: ...


class Beat:
    """A scheduler whose threads are not started: the tests call its steps one after the other."""

    def __init__(self, server: RedisServer) -> None:
        self.app = app = Celery("fires", broker=server.url(), set_as_current=False)
        app.task(name="job", base=OrchestratedTask, overlap="allow", shared=False)(_nothing)
        app.task(name="skips", base=OrchestratedTask, shared=False)(_nothing)
        app.task(name="goes on", base=OrchestratedTask, mode="continuous", shared=False)(_nothing)
        app.task(name="plain", shared=False)(_nothing)
        app.conf.beat_schedule = {
            name: {"task": name, "schedule": HOUR_MS / 1000, "options": {"headers": {"mine": 1}}}
            for name in ("job", "skips", "plain")
        }
        app.finalize()
        self.redis, self.raw = server.client(), server.client(decode_responses=False)
        self._count = itertools.count()

    def begin(self) -> None:
        entries, _ = from_code(self.app, jobs_of(self.app), {})
        self.runtime = SchedulerRuntime(self.app, entries, Applier(OrchestratedScheduler(self.app, lazy=True)))
        self.entries = entries
        self.ledger = self.runtime.dispatcher._ledger
        self.runtime.heartbeat._register()
        self.runtime.term._ask()
        self.runtime.dispatcher._round()

    def close(self) -> None:
        parts = self.runtime.heartbeat, self.runtime.term, self.runtime.publisher
        for ledger in (self.ledger, *(part._ledger for part in parts)):
            ledger.close()
        close_app(self.app)

    def make_due(self, entry: str) -> None:
        """As if it had last fired an hour ago: each time at another due time."""
        last = self.runtime.term.now() - HOUR_MS - 10_000 + 100 * next(self._count)
        self.redis.hset(key_of(PREFIX, "entry", entry), "last", last)
        self.runtime.dispatcher._adopt_at = 0.0

    def fire(self, entry: str) -> None:
        self.make_due(entry)
        self.runtime.dispatcher._round()
        self.send()

    def send(self) -> None:
        """Does the work of the thread that sends plain tasks and events."""
        sender = self.runtime.dispatcher._sender
        sender.stop()
        sender.run()
        self.runtime.dispatcher._round()

    def record(self, entry: str) -> dict[str, str]:
        return self.redis.hgetall(key_of(PREFIX, "entry", entry))

    def fires(self, entry: str) -> tuple[int, int]:
        """The number of fires that made a run, and of those that were skipped."""
        record = self.record(entry)
        return int(record.get("fires", 0)), int(record.get("skips", 0))

    def sent(self, entry: str) -> list[dict[str, Any]]:
        """The headers of the messages of its runs, or of the messages in the broker, the first one first. No worker is
        alive: runs wait."""
        if entry == "plain":
            return [json.loads(text)["headers"] for text in self.redis.lrange("celery", 0, -1)][::-1]
        ids = self.redis.zrange(key_of(PREFIX, "waiting"), 0, -1)
        found = [Envelope.unpack(self.raw.hget(key_of(PREFIX, "run", id), "message")).headers for id in ids]
        return [headers for headers in found if headers["task"] == entry]


@pytest.fixture
def beat(redis_server: RedisServer) -> Iterator[Beat]:
    beat = Beat(redis_server)
    beat.begin()
    yield beat
    beat.close()


Patch = Callable[[Callable[..., Any]], None]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Wraps Celery's own ``apply_entry`` as monitors do, with the scheduler and the entry as positional arguments."""

    def patch(around: Callable[..., Any]) -> None:
        original = Scheduler.apply_entry

        def apply_entry(*args: Any, **kwargs: Any) -> Any:
            _, entry = args
            return around(lambda: original(*args, **kwargs), entry)

        monkeypatch.setattr(Scheduler, "apply_entry", apply_entry)

    return patch


class TestAPatchedApplyEntry:
    @BOTH
    def test_sees_each_fire_and_adds_headers(self, beat: Beat, patch: Patch, entry: str):
        seen: list[ScheduleEntry] = []

        def around(original: Callable[[], None], one: ScheduleEntry) -> None:
            seen.append(one)
            one.options["headers"]["check-in"] = len(seen)
            original()

        patch(around)
        beat.fire(entry)
        beat.fire(entry)
        assert [headers["check-in"] for headers in beat.sent(entry)] == [1, 2]
        assert [headers["mine"] for headers in beat.sent(entry)] == [1, 1]
        assert all(headers["celery_beat_task"] for headers in beat.sent(entry))
        assert [(one.name, one.task, one.schedule.seconds) for one in seen] == [(entry, entry, 3600)] * 2
        assert beat.fires(entry) == (2, 0)

    @BOTH
    def test_that_does_not_send_skips_the_fire(self, beat: Beat, patch: Patch, entry: str):
        patch(lambda original, one: None)
        beat.fire(entry)
        assert beat.sent(entry) == []
        assert beat.fires(entry) == (0, 1)
        assert beat.record(entry)["how"] == "skipped"
        assert beat.runtime.dispatcher._entries.queue.first() is not None
        if entry == "job":
            [record] = [HistoryLine.read(one) for one in beat.ledger.read_history("job", 10) or ()]
            assert (record.outcome, record.error) == ("skipped", NOT_SENT)

    @BOTH
    def test_cannot_change_the_id_of_the_run_nor_what_sends_it(self, beat: Beat, patch: Patch, entry: str):
        def around(original: Callable[[], None], one: ScheduleEntry) -> None:
            one.options["task_id"] = "another"
            beat.runtime.applier._scheduler.apply_async(one)

        patch(around)
        beat.fire(entry)
        [headers] = beat.sent(entry)
        assert headers["id"] == beat.entries[entry].run_id(int(beat.record(entry)["at"]))

    @BOTH
    def test_that_sends_twice_makes_no_second_run(self, beat: Beat, patch: Patch, entry: str):
        def around(original: Callable[[], None], one: ScheduleEntry) -> None:
            original()
            original()

        patch(around)
        beat.fire(entry)
        assert len({headers["id"] for headers in beat.sent(entry)}) == 1
        assert beat.fires(entry) == (1, 0)

    @BOTH
    def test_that_fails_when_it_has_sent_has_sent(self, beat: Beat, patch: Patch, entry: str):
        def around(original: Callable[[], None], one: ScheduleEntry) -> None:
            original()
            raise RuntimeError("no monitor")

        patch(around)
        beat.fire(entry)
        assert len(beat.sent(entry)) == 1
        assert beat.fires(entry) == (1, 0)

    @BOTH
    def test_that_fails_is_tried_again_later(self, beat: Beat, patch: Patch, entry: str):
        calls = itertools.count(1)

        def around(original: Callable[[], None], one: ScheduleEntry) -> None:
            if next(calls) == 1:
                raise RuntimeError("no monitor")
            original()

        patch(around)
        beat.fire(entry)
        assert beat.fires(entry) == (0, 0)
        beat.fire(entry)
        assert beat.fires(entry) == (1, 0)

    def test_is_not_called_for_a_fire_that_makes_no_run(self, beat: Beat, patch: Patch):
        """A monitor would wait for its end."""
        seen: list[str] = []
        patch(lambda original, one: (seen.append(one.name), original()))
        beat.fire("skips")
        beat.fire("skips")
        assert beat.fires("skips") == (1, 1)
        assert seen == ["skips"]

    @pytest.mark.parametrize("call", [1, 2])
    @pytest.mark.parametrize("after", [False, True], ids=["not asked", "answer lost"])
    def test_makes_one_run_though_the_ledger_is_gone_for_a_moment(
        self, beat: Beat, patch: Patch, call: int, after: bool
    ):
        seen: list[str] = []
        patch(lambda original, one: (seen.append(one.name), original()))
        original, calls = beat.ledger.dispatch, itertools.count(1)

        def dispatch(*args: Any) -> Any:
            if next(calls) != call:
                return original(*args)
            if after:
                original(*args)
            raise LedgerUnavailable("gone for a moment")

        beat.ledger.dispatch = dispatch  # type: ignore[method-assign]
        beat.make_due("job")
        with pytest.raises(LedgerUnavailable):
            beat.runtime.dispatcher._round()
        beat.runtime.dispatcher._round()
        assert beat.fires("job") == (1, 0)
        assert len(beat.sent("job")) == 1
        assert seen == ["job"]

    def test_does_not_hide_that_the_broker_is_away(
        self, beat: Beat, patch: Patch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ):
        patch(lambda original, one: original())

        def refused(*args: Any, **kwargs: Any) -> None:
            raise OperationalError("refused")

        with monkeypatch.context() as context:
            context.setattr("kombu.messaging.Producer.publish", refused)
            beat.fire("plain")
        assert "The broker is unavailable: entry plain is sent again in 1 s: refused" in caplog.text
        assert beat.fires("plain") == (0, 0)

    def test_of_a_subclass_is_called_too(self, beat: Beat):
        class Own(OrchestratedScheduler):
            def apply_entry(self, entry: Any, producer: Any = None) -> None: ...

        beat.runtime.applier._scheduler = Own(beat.app, lazy=True)
        beat.fire("job")
        assert beat.fires("job") == (0, 1)


class TestMessages:
    def test_are_made_once_if_nothing_can_change_them(self, beat: Beat):
        beat.fire("job")
        template = beat.entries["job"].template
        beat.fire("job")
        assert template is not None
        assert beat.entries["job"].template is template
        assert len(beat.sent("job")) == 2

    @pytest.mark.parametrize("where", ["Task", "Celery", "the app"])
    def test_are_made_for_each_fire_if_sending_is_patched(
        self, beat: Beat, monkeypatch: pytest.MonkeyPatch, where: str
    ):
        beat.fire("job")
        count = itertools.count(1)

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, headers: dict[str, Any] | None = None, **options: Any) -> Any:
                return original(*args, headers={**(headers or {}), "sent-at": next(count)}, **options)

            wrapped.__module__, wrapped.__qualname__ = original.__module__, original.__qualname__
            return wrapped

        if where == "Task":
            monkeypatch.setattr(Task, "apply_async", wrap(Task.apply_async))
        elif where == "Celery":
            monkeypatch.setattr(Celery, "send_task", wrap(Celery.send_task))
        else:
            monkeypatch.setattr(beat.app, "send_task", wrap(beat.app.send_task))
        beat.fire("job")
        beat.fire("job")
        found = [headers.get("sent-at") for headers in beat.sent("job")]
        assert found[0] is None
        assert found[1] < found[2]

    def test_are_made_for_each_fire_if_a_signal_is_connected(self, beat: Beat):
        count = itertools.count(1)

        def trace(headers: dict[str, Any], **_: Any) -> None:
            headers["trace"] = next(count)

        signals.before_task_publish.connect(trace)
        try:
            beat.fire("job")
            beat.fire("job")
        finally:
            signals.before_task_publish.disconnect(trace)
        first, second = (headers["trace"] for headers in beat.sent("job"))
        assert first < second

    def test_of_a_continuous_job_carry_only_what_is_true_of_all_its_runs(
        self, beat: Beat, monkeypatch: pytest.MonkeyPatch
    ):
        count, original = itertools.count(1), Task.apply_async

        def traced(self: Task, *args: Any, headers: dict[str, Any] | None = None, **options: Any) -> Any:
            more = {"tenant": "shop", "sent-at": next(count), "headers": {"trace": next(count), "tenant": "shop"}}
            return original(self, *args, headers={**(headers or {}), **more}, **options)

        monkeypatch.setattr(Task, "apply_async", traced)
        beat.fire("job")
        [found] = [key for key in beat.raw.keys(key_of(PREFIX, "entry", "*")) if beat.raw.hget(key, "gap")]
        headers = Envelope.unpack(beat.raw.hget(found, "message")).headers
        assert headers["tenant"] == "shop"
        assert headers["headers"] == {"tenant": "shop"}
        assert "sent-at" not in headers


class TestEvents:
    """``task-sent``, if ``task_send_sent_event`` is on."""

    def listens(self, beat: Beat, connection: Any) -> bool:
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        return bool(beat.redis.pubsub_numpat() or beat.redis.pubsub_channels())

    @pytest.mark.parametrize("patched", [False, True], ids=["made once", "made for each fire"])
    def test_say_that_a_run_was_sent(self, beat: Beat, patch: Patch, patched: bool):
        beat.app.conf.task_send_sent_event = True
        if patched:
            patch(lambda original, one: original())
        events: list[dict[str, Any]] = []
        with beat.app.connection_for_read() as origin:
            receiver = beat.app.events.Receiver(origin, handlers={"task-sent": events.append})
            with receiver.consumer_context() as (connection, *_):
                until(lambda: self.listens(beat, connection), message="the receiver listens")
                beat.fire("job")
                beat.fire("job")
                beat.fire("skips")
                beat.fire("skips")
                while len(events) < 3:
                    connection.drain_events(timeout=20)
        runs = [headers["id"] for name in ("job", "skips") for headers in beat.sent(name)]
        assert [event["uuid"] for event in events] == runs
        first = events[0]
        assert (first["name"], first["queue"], first["routing_key"]) == ("job", "celery", "celery")
        assert (first["args"], first["kwargs"], first["retries"], first["root_id"]) == ("()", "{}", 0, runs[0])

    def test_are_not_sent_otherwise(self, beat: Beat):
        beat.fire("job")
        assert beat.runtime.dispatcher._sender._producer is None


def test_nothing_fires_before_the_handlers_of_beat_init_have_run(beat: Beat, caplog: pytest.LogCaptureFixture):
    """Monitors are often set up there."""
    alive: list[bool] = []
    service = Service(beat.app, scheduler_cls=OrchestratedScheduler)

    def begin(sender: Service, **_: Any) -> None:
        sender.stop()
        alive.append(sender.scheduler._runtime.dispatcher.is_alive())

    caplog.set_level("INFO")
    before = signal.getsignal(signal.SIGTERM)
    signals.beat_init.connect(begin)
    try:
        service.start()
        assert alive == [False]
        assert "Job goes on has the defaults of recurring jobs: timeout_seconds=60, max_running=1" in caplog.text
    finally:
        signals.beat_init.disconnect(begin)
        signal.signal(signal.SIGTERM, before)

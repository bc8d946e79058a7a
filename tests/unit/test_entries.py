"""Entries of the schedule, and the messages of their fires.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import BaseSchedule, crontab, schedule
from kombu import Exchange, Producer, Queue
from kombu.common import Broadcast
from kombu.message import Message as Delivered

from celery_orchestration import OrchestratedTask
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.envelope import HEADER, Envelope
from celery_orchestration.job.task import jobs_of
from celery_orchestration.scheduler.entries import Entry, from_code, in_words
from celery_orchestration.scheduler.entry_documents import document, from_document
from celery_orchestration.scheduler.message import MARK, Call, Message, Unroutable, is_constant, make
from celery_orchestration.scheduler.times import Asked, Calendar, Every

ID = "11111111-2222-4333-8444-555555555555"
HOUR = 3_600_000


def job(app: Celery, name: str = "shop.job", base: type = OrchestratedTask, **options: Any) -> Any:
    def body(*args: Any, **kwargs: Any) -> None: ...

    return app.task(body, base=base, name=name, shared=False, lazy=False, **options)


def entries_of(app: Celery, **defaults: Any) -> dict[str, Entry]:
    found, problems = from_code(app, jobs_of(app), defaults)
    assert problems == []
    return found


# -- entries


class TestFromOptions:
    def test_a_job_with_an_interval_has_an_entry_of_its_name(self, app):
        job(app, interval_seconds=90, catch_up_seconds=60)
        entry = entries_of(app)["shop.job"]
        assert (entry.name, entry.call.task, entry.source) == ("shop.job", "shop.job", "code")
        assert entry.every == "every 90 s"
        assert (entry.times, entry.late_ms, entry.gap_ms) == (Every(90_000), 60_000, None)
        assert entry.policy is jobs_of(app)["shop.job"]

    def test_a_job_with_a_schedule_has_an_entry_of_its_name(self, app):
        job(app, schedule=crontab("*/5", "4"), catch_up="none")
        entry = entries_of(app)["shop.job"]
        assert isinstance(entry.times, Calendar)
        assert (entry.every, entry.late_ms) == ("cron */5 4 * * *", 15_000)

    @pytest.mark.parametrize(
        ("options", "pause", "every"),
        [({}, 0, "continuously"), ({"interval_seconds": 2.5}, 2500, "continuously, 2.5 s after the last")],
    )
    def test_a_continuous_job_has_an_entry_without_due_times(
        self, app, options: dict[str, Any], pause: int, every: str
    ):
        job(app, mode="continuous", **options)
        entry = entries_of(app)["shop.job"]
        assert (entry.times, entry.gap_ms, entry.every) == (None, pause, every)

    def test_a_triggered_job_has_no_entry(self, app):
        job(app, mode="triggered")
        job(app, "shop.plain", max_running=1)
        assert entries_of(app) == {}


class TestFromBeatSchedule:
    def test_an_entry_has_what_was_written(self, app):
        job(app, mode="triggered")
        written = {"task": "shop.job", "schedule": 30, "args": (1,), "kwargs": {"a": 2}, "options": {"priority": 3}}
        app.conf.beat_schedule = {"every half minute": written}
        entry = entries_of(app)["every half minute"]
        assert entry.call == Call("shop.job", (1,), {"a": 2}, {"priority": 3})
        assert (entry.times, entry.late_ms) == (Every(30_000), HOUR)
        assert entry.policy is not None

    @pytest.mark.parametrize(
        ("when", "every", "kind"),
        [
            (5, "every 5 s", Every),
            (timedelta(minutes=1), "every 60 s", Every),
            (schedule(0.5), "every 0.5 s", Every),
            (crontab(), "cron * * * * *", Calendar),
            (crontab({0, 30}, "*/2", "mon,fri", "1-7", [6, 12]), "cron 0,30 */2 1-7 6,12 mon,fri", Calendar),
        ],
    )
    def test_any_schedule_of_celery_makes_an_entry(self, app, when: Any, every: str, kind: type):
        app.conf.beat_schedule = {"one": {"task": "plain", "schedule": when}}
        entry = entries_of(app)["one"]
        assert (entry.every, type(entry.times)) == (every, kind)

    def test_a_schedule_class_of_the_user_is_asked_for_its_due_times(self, app):
        class Own(BaseSchedule):
            """Its repr differs in each process."""

        app.conf.beat_schedule = {"one": {"task": "plain", "schedule": Own()}}
        entry = entries_of(app)["one"]
        assert isinstance(entry.times, Asked)
        assert entry.every.endswith(".Own")

    def test_a_relative_interval_stays_relative(self, app):
        app.conf.beat_schedule = {"one": {"task": "plain", "schedule": 3600, "relative": True}}
        assert isinstance(entries_of(app)["one"].times, Calendar)

    def test_a_task_that_is_no_job_fires_however_late_it_is(self, app):
        app.conf.beat_schedule = {"one": {"task": "elsewhere", "schedule": 5}}
        entry = entries_of(app)["one"]
        assert entry.policy is None
        assert entry.late_ms > 1000 * 365 * 24 * HOUR

    def test_a_crontab_of_a_plain_task_keeps_the_deadline_of_celerys_setting(self, app):
        app.conf.beat_cron_starting_deadline = 60
        when = {"cron": crontab(), "interval": 5}
        app.conf.beat_schedule = {name: {"task": "elsewhere", "schedule": one} for name, one in when.items()}
        late = {name: entry.late_ms for name, entry in entries_of(app).items()}
        assert late["cron"] == 60_000
        assert late["interval"] > 1000 * 365 * 24 * HOUR

    def test_an_entry_with_the_name_of_a_job_replaces_the_jobs_own(self, app):
        job(app, interval_seconds=90)
        app.conf.beat_schedule = {"shop.job": {"task": "shop.job", "schedule": 5, "args": (1,)}}
        [entry] = entries_of(app).values()
        assert (entry.times, entry.call.args) == (Every(5000), (1,))

    def test_an_entry_cannot_replace_that_of_a_continuous_job(self, app):
        job(app, mode="continuous")
        app.conf.beat_schedule = {"shop.job": {"task": "plain", "schedule": 5}}
        found, problems = from_code(app, jobs_of(app), {})
        assert found["shop.job"].gap_ms == 0
        assert problems == ["entry 'shop.job' of beat_schedule: the job of this name is continuous"]

    def test_default_entries_of_celery_are_included(self, app):
        cleanup = {"task": "celery.backend_cleanup", "schedule": crontab("0", "4"), "options": {"expires": 43_200}}
        found = entries_of(app, **{"celery.backend_cleanup": cleanup})
        assert found["celery.backend_cleanup"].call.options == {"expires": 43_200}
        app.conf.beat_schedule = {"celery.backend_cleanup": {**cleanup, "schedule": 5}}
        assert entries_of(app, **{"celery.backend_cleanup": cleanup})["celery.backend_cleanup"].times == Every(5000)

    @pytest.mark.parametrize(
        "broken",
        [
            {},
            {"task": "plain"},
            {"schedule": 5},
            {"task": "plain", "schedule": "hourly"},
            {"task": "plain", "schedule": schedule()},
            "no entry at all",
            None,
        ],
    )
    def test_a_broken_entry_is_named_and_the_others_are_kept(self, app, broken: Any):
        job(app, interval_seconds=90)
        app.conf.beat_schedule = {"bad": broken, "good": {"task": "plain", "schedule": 5}}
        found, [problem] = from_code(app, jobs_of(app), {})
        assert sorted(found) == ["good", "shop.job"]
        assert problem.startswith("entry 'bad': ")


class TestRunIds:
    def test_run_ids_follow_from_entry_generation_and_due_time(self, app):
        def entry(name: str, generation: str) -> Entry:
            return Entry(name, Call("t", (), {}, {}), "", None, generation=generation)

        one = entry("one", "7").run_id(1000)
        assert one == entry("one", "7").run_id(1000)
        others = [entry("one", "7").run_id(1001), entry("one", "8").run_id(1000), entry("two", "7").run_id(1000)]
        assert len({one, *others}) == 4
        assert len(one) == len(MARK)
        assert uuid.UUID(one)

    def test_no_two_entries_share_a_key(self):
        names = ["a", "a:b", "a b", "a%20b", "ä", "x" * 300, "x" * 301, "\udcff", ""]
        entries = [Entry(name, Call("t", (), {}, {}), "", None) for name in names]
        assert len({entry.id for entry in entries}) == len(names)
        assert all(":" not in entry.id and len(entry.id) <= 200 for entry in entries)


class TestDocuments:
    """Entries that people add are kept as JSON."""

    @pytest.mark.parametrize(
        "when",
        [
            *(5, 0.25, timedelta(hours=1), "90", "*/5 4 * * mon", schedule(60, relative=True)),
            *(crontab({0, 30}, "*/2", "mon,fri", "1-7", [6, 12]), crontab(minute="1, 2")),
        ],
        ids=str,
    )
    def test_a_document_keeps_everything_that_was_written(self, app, when: Any):
        job(app)
        text = document(app, "one", "shop.job", when, (1, "a"), {"b": None}, {"priority": "high"})
        found = from_document(app, "one", text, jobs_of(app))
        assert found.call == Call("shop.job", [1, "a"], {"b": None}, {"priority": "high"})
        assert (found.name, found.source, found.policy) == ("one", "people", jobs_of(app)["shop.job"])
        start = 1_700_000_000_000
        written = {"90": 90, "*/5 4 * * mon": crontab("*/5", "4", "mon")}.get(str(when), when)
        app.conf.beat_schedule = {"one": {"task": "shop.job", "schedule": written}}
        expected = entries_of(app)["one"].times
        assert found.times.next(start, start) == expected.next(start, start)

    @pytest.mark.parametrize("when", [0, -1, True, None, "soon", "* * *", "61 * * * *", float("nan"), schedule(0), []])
    def test_a_document_without_a_valid_schedule_is_refused(self, app, when: Any):
        job(app)
        with pytest.raises(ConfigurationError):
            document(app, "one", "shop.job", when, (), {}, {})

    def test_a_document_with_arguments_that_do_not_fit_is_refused(self, app):
        @app.task(base=OrchestratedTask, name="shop.one", shared=False, lazy=False)
        def one(a: int) -> None: ...

        for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"b": 1}), ((object(),), {}), (("x" * 200_000,), {})]:
            with pytest.raises(ConfigurationError):
                document(app, "one", "shop.one", 5, args, kwargs, {})
        with pytest.raises(ConfigurationError, match=r"there is no task 'shop.two'"):
            document(app, "one", "shop.two", 5, (), {}, {})

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "one", "task": "shop.job"}'])
    def test_a_corrupt_document_is_reported(self, app, text: str):
        job(app)
        with pytest.raises(ConfigurationError, match=r"entry 'one': .* cannot be read"):
            from_document(app, "one", text, jobs_of(app))

    def test_a_document_of_a_missing_task_is_reported(self, app):
        job(app)
        text = document(app, "one", "shop.job", 5, (), {}, {})
        with pytest.raises(ConfigurationError, match=r"entry 'one': this app has no task 'shop.job'"):
            from_document(Celery("other", set_as_current=False), "one", text, {})


def test_a_crontab_is_shown_in_the_order_of_cron():
    assert in_words(crontab("1", "2", "3", "4", "5")) == "cron 1 2 4 5 3"


# -- messages


class Shop:
    """An app with a broker in memory, and what is published there."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.queue = app.conf.task_default_queue = f"queue-{uuid.uuid4().hex}"
        app.conf.accept_content = ["json", "pickle"]
        self.task = job(app)
        self.connection = app.connection_for_read()

    def empty(self, queue: str | None) -> None:
        """A broker in memory is one for all tests of a process."""
        bound = Queue(queue or self.queue)(self.connection.default_channel)
        bound.declare()
        bound.purge()

    def taken(self, queue: str | None = None) -> Delivered:
        channel = self.connection.default_channel
        message = Queue(queue or self.queue)(channel).get(no_ack=True, accept={"json", "pickle"})
        assert message is not None
        return message

    def by_stock_beat(self, call: Call, queue: str | None = None) -> Delivered:
        self.empty(queue)
        options = {**call.options, "task_id": ID}
        entry = ScheduleEntry("one", call.task, None, 0, 5, call.args, call.kwargs, options, app=self.app)
        Scheduler(self.app, lazy=True).apply_async(entry, advance=False)
        return self.taken(queue)

    def made(self, call: Call) -> Message:
        return make(self.app, call, ID)

    def by_us(self, call: Call) -> Delivered:
        """Made, kept in the ledger, and published."""
        made = self.made(call)
        self.empty(made.queue)
        kept = Envelope.unpack(made.envelope.pack())
        kept.publish(Producer(self.connection.default_channel), Queue(made.queue), "")
        return self.taken(made.queue)


def everything(message: Delivered) -> dict[str, Any]:
    """Without the parts of one delivery, the parts that differ between calls, and the time to live in one queue."""
    left_out = ("delivery_tag", "message_id", "expiration")
    properties = {name: value for name, value in message.properties.items() if name not in left_out}
    return {
        "headers": {name: value for name, value in message.headers.items() if name != HEADER},
        "properties": properties,
        "body": message.body,
        "content": (message.content_type, message.content_encoding),
        "decoded": message.decode(),
    }


@pytest.fixture
def shop(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    now = datetime(2024, 5, 5, 12, tzinfo=timezone.utc)
    monkeypatch.setattr(app, "now", lambda: now)
    found = Shop(app)
    yield found
    found.connection.close()


def call(*args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Call:
    return Call("shop.job", args, kwargs, options or {})


ETA = datetime(2024, 5, 6, tzinfo=timezone.utc)
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "pickle": {"serializer": "pickle"},
    "gzip": {"compression": "gzip"},
    "bzip2 by its content type": {"compression": "application/x-bz2"},
    "a message priority": {"priority": 5},
    "headers": {"headers": {"tenant": "a", "when": "now"}},
    "expires in": {"expires": 60},
    "expires at": {"expires": ETA},
    "countdown": {"countdown": 30},
    "eta": {"eta": ETA},
    "limits": {"time_limit": 20, "soft_time_limit": 10},
    "a shadow": {"shadow": "other name"},
    "callbacks": {"link": {"task": "other", "args": (1,)}, "link_error": {"task": "another"}},
    "no result": {"ignore_result": True},
    "not persistent": {"delivery_mode": 1},
    "reply to": {"reply_to": "somebody"},
    "stamps": {"stamped_headers": ["stamp"], "stamp": "me"},
    "a queue": {"queue": "elsewhere"},
    "retries": {"retry": False, "retry_policy": {"max_retries": 1}},
}


class TestMessages:
    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
    def test_messages_equal_those_of_celery_beat(self, shop: Shop, options: dict[str, Any]):
        one = call(1, "ä", a={"b": [None]}, options=options)
        stock = everything(shop.by_stock_beat(one, options.get("queue")))
        ours = everything(shop.by_us(one))
        for part in stock["headers"]:
            assert ours["headers"][part] == stock["headers"][part], part
        assert ours == stock
        assert ours["headers"]["celery_beat_task"] is True

    def test_messages_of_a_task_with_its_own_settings_equal_those_of_celery_beat(self, shop: Shop):
        own = {"serializer": "pickle", "compression": "gzip", "expires": 60, "priority": "high", "time_limit": 5}
        job(shop.app, "shop.own", **own)
        one = Call("shop.own", (1,), {}, {})
        assert shop.made(one).queue == "default.high"
        assert everything(shop.by_us(one)) == everything(shop.by_stock_beat(one, "default.high"))

    def test_messages_go_to_the_queue_of_their_priority(self, shop: Shop):
        one = call(options={"priority": "critical"})
        assert shop.made(one).queue == "default.critical"
        assert everything(shop.by_us(one)) == everything(shop.by_stock_beat(one, "default.critical"))

    def test_messages_follow_the_users_routes(self, shop: Shop):
        shop.app.conf.task_routes = {"shop.*": {"queue": "routed"}}
        assert shop.made(call()).queue == "routed"

    def test_messages_may_go_to_a_queue_of_the_users_exchange(self, shop: Shop):
        shop.app.conf.task_queues = [Queue("bound", Exchange("topics", "topic"), routing_key="a.b")]
        made = shop.made(call(options={"queue": "bound"}))
        assert (made.queue, made.envelope.exchange, made.envelope.routing_key) == ("bound", "topics", "a.b")

    @pytest.mark.parametrize(
        "options",
        [
            {"exchange": "topics", "routing_key": "a.b"},
            {"exchange": "topics", "routing_key": "a.b", "exchange_type": "topic"},
            {"exchange": Exchange("topics", "topic"), "routing_key": "a.b"},
            {"queue": "bound", "routing_key": "a.c"},
            {"queue": "all"},
            {"queue": "each"},
        ],
        ids=str,
    )
    def test_messages_that_name_no_queue_are_not_handed_over(self, shop: Shop, options: dict[str, Any]):
        shop.app.conf.task_queues = [
            Queue("bound", Exchange("topics", "topic"), routing_key="a.b"),
            Queue("all", Exchange("all", "fanout")),
            Broadcast("each"),
        ]
        with pytest.raises(Unroutable):
            shop.made(call(options=options))

    def test_a_task_sent_event_does_not_replace_the_message(self, shop: Shop):
        shop.app.conf.task_send_sent_event = True
        made = shop.made(call(1))
        assert (made.queue, made.envelope.headers["id"]) == (shop.queue, ID)
        assert made.envelope.body.startswith(b"[[1], {}")

    def test_lazy_arguments_are_evaluated_for_each_message(self, shop: Shop):
        counted = iter(range(10))
        one = call(BeatLazyFunc(lambda: next(counted)), a=BeatLazyFunc(lambda x: x + next(counted), 10))
        assert [shop.made(one).args for _ in range(2)] == [[0], [2]]
        assert shop.made(one).kwargs == {"a": 15}
        assert everything(shop.by_us(one))["decoded"][:2] == [[6], {"a": 17}]

    def test_making_a_message_needs_no_broker_and_no_backend(
        self, new_app: Callable[..., Celery], no_network: None, monkeypatch: pytest.MonkeyPatch
    ):
        """And nobody subscribes to their results."""
        app = new_app(broker_url="redis://broker.invalid/0", result_backend="redis://backend.invalid/0")
        job(app)
        for options in ({}, {"countdown": 30}, {"expires": 60}):
            assert make(app, call(1, options=options), ID).envelope.headers["id"] == ID
        assert app.backend.result_consumer._pubsub is None
        amqp = new_app(broker_url="amqp://broker.invalid//", result_backend="rpc://")
        job(amqp)
        assert make(amqp, call(1), ID).queue == "celery"

    def test_making_a_message_does_not_change_what_users_wrote(self, shop: Shop):
        options = {"headers": {"a": 1}, "priority": "high"}
        one = Call("shop.job", [1], {"b": 2}, options)
        shop.made(one)
        assert one == Call("shop.job", [1], {"b": 2}, {"headers": {"a": 1}, "priority": "high"})

    def test_a_task_that_publishes_nothing_is_an_error(self, shop: Shop):
        class Silent(OrchestratedTask):
            abstract = True

            def apply_async(self, *args: Any, **options: Any) -> None: ...

        job(shop.app, "shop.silent", base=Silent)
        with pytest.raises(ConfigurationError, match=r"'shop.silent' publishes nothing"):
            shop.made(Call("shop.silent", (), {}, {}))


class TestReceivers:
    """Receivers of before_task_publish see each message, and may change it."""

    @pytest.fixture
    def connect(self) -> Iterator[Callable[..., None]]:
        connected = []

        def connect(signal: Any, receiver: Callable[..., None]) -> None:
            signal.connect(receiver, weak=False)
            connected.append((signal, receiver))

        yield connect
        for signal, receiver in connected:
            signal.disconnect(receiver)

    def test_receivers_may_change_headers_properties_and_body(self, shop: Shop, connect: Callable[..., None]):
        seen = []

        def change(sender: str, headers: dict[str, Any], properties: dict[str, Any], body: Any, **_: Any) -> None:
            seen.append((sender, headers["id"]))
            headers["tenant"] = len(seen)
            properties["priority"] = 7
            body[1]["added"] = True

        connect(signals.before_task_publish, change)
        message = shop.by_us(call(1))
        assert seen == [("shop.job", ID)]
        assert (message.headers["tenant"], message.properties["priority"]) == (1, 7)
        assert message.decode()[1] == {"added": True}

    @pytest.mark.parametrize("signal", [signals.before_task_publish, signals.after_task_publish])
    def test_connected_receivers_see_every_message(self, shop: Shop, connect: Callable[..., None], signal: Any):
        assert is_constant(shop.app, call())
        connect(signal, lambda **_: None)
        assert not is_constant(shop.app, call())


class TestWhatIsMadeOnce:
    def made(self, shop: Shop, one: Call, id: str) -> bytes:
        return make(shop.app, one, id).envelope.pack()

    @pytest.mark.parametrize("options", [{}, {"priority": 5}, {"headers": {"a": 1}}, {"compression": "gzip"}])
    def test_a_constant_message_differs_by_nothing_but_its_id(self, shop: Shop, options: dict[str, Any]):
        one = call(1, a=2, options=options)
        assert is_constant(shop.app, one)
        assert self.made(shop, one, MARK).replace(MARK.encode(), ID.encode()) == self.made(shop, one, ID)

    def test_a_constant_message_has_no_id_in_its_body(self, shop: Shop):
        assert MARK.encode() not in make(shop.app, call(1), MARK).envelope.body

    @pytest.mark.parametrize(
        "one",
        [
            call(BeatLazyFunc(int)),
            call(a=BeatLazyFunc(int)),
            *(call(options={name: 5}) for name in ("countdown", "eta", "expires")),
        ],
        ids=["a lazy argument", "a lazy keyword", "countdown", "eta", "expires"],
    )
    def test_a_call_that_depends_on_the_time_is_not_constant(self, shop: Shop, one: Call):
        assert not is_constant(shop.app, one)

    def test_a_call_of_a_task_whose_runs_expire_is_not_constant(self, shop: Shop):
        """The time is counted from each fire, not from the first."""
        job(shop.app, "shop.expires", expires=60)
        assert not is_constant(shop.app, Call("shop.expires", (), {}, {}))

    def test_a_call_of_a_task_with_its_own_apply_async_is_not_constant(self, shop: Shop):
        class Own(OrchestratedTask):
            abstract = True

            def apply_async(self, *args: Any, **options: Any) -> Any:
                return super().apply_async(*args, **options)

        job(shop.app, "shop.own", base=Own)
        assert not is_constant(shop.app, Call("shop.own", (), {}, {}))

    @pytest.mark.parametrize("routes", [{"shop.*": "there"}, ([("shop.job", {"queue": "there"})],)])
    def test_a_call_that_a_table_routes_is_constant(self, shop: Shop, routes: Any):
        shop.app.conf.task_routes = routes
        assert is_constant(shop.app, call())

    def test_a_call_that_a_function_routes_is_not_constant(self, shop: Shop):
        shop.app.conf.task_routes = lambda *args, **_: {"queue": "there"}
        assert not is_constant(shop.app, call())

    def test_a_call_with_arguments_of_unknown_types_is_not_constant(self, shop: Shop):
        class Written:
            def __json__(self) -> float: ...

        assert is_constant(shop.app, call([1, {"a": None}], a=(datetime(2026, 1, 1), "b")))
        assert not is_constant(shop.app, call(a=[Written()]))

    def test_a_call_through_a_wrapped_apply_async_is_not_constant(self, shop: Shop, monkeypatch):
        monkeypatch.setattr(Task, "apply_async", wraps(Task.apply_async)(lambda *args, **options: None))
        assert not is_constant(shop.app, call())

    def test_a_continuous_job_never_expires(self, shop: Shop):
        """The ledger keeps its message for all its runs."""
        job(shop.app, "shop.continuous", mode="continuous", expires=60)
        message = make(shop.app, entries_of(shop.app)["shop.continuous"].call, ID)
        assert message.envelope.headers["expires"] is None

"""Plain tasks in an app that also has jobs are treated as by stock Celery.

Every test does the same with two apps that have the same plain tasks, one with jobs and one without, and compares
everything that is visible from outside.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from kombu import Connection

from celery_orchestration.job.queues import pool_of
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.servers import RabbitServer, RedisServer
from support.wait import until
from support.workers import Broker, WorkerProcess

APP = "support.apps.mixed"
NAME = f"{APP}.{{}}".format

#: Parts that differ between any two messages, events or results.
VOLATILE = {"id", "uuid", "root_id", "parent_id", "correlation_id", "reply_to", "origin", "delivery_tag", "task_id"}
VOLATILE |= {"hostname", "worker", "timestamp", "time_start", "worker_pid", "pid", "clock", "local_received", "runtime"}
VOLATILE |= {"date_done", "traceback", "group_id"}
TIMES = {"eta", "expires"}
FROZEN: Mapping[str, str] = MappingProxyType({})
#: A worker that fetches ahead although its slots are busy.
FETCH_AS_CELERY = {"CELERY_ORCHESTRATION_FETCH": "celery"}


@dataclass
class Side:
    """One of the two apps: its broker, a client of it, and its worker."""

    with_jobs: bool
    broker: Broker
    app: ModuleType
    worker: WorkerProcess | None = None


@pytest.fixture
def brokers(
    request: pytest.FixtureRequest, redis_factory: Callable[..., RedisServer]
) -> Iterator[Callable[[str], Broker]]:
    with contextlib.ExitStack() as cleanups:

        def make(kind: str) -> Broker:
            redis = redis_factory()
            if kind == "redis":
                return Broker("redis", redis.url(0), redis.url(1), redis.url(0), redis)
            rabbit: RabbitServer = request.getfixturevalue("rabbit_server")
            url = rabbit.url(cleanups.enter_context(rabbit.fresh_vhost()))
            return Broker("rabbitmq", url, redis.url(1), redis.url(1), redis, rabbit)

        yield make


@pytest.fixture
def sides(
    brokers: Callable[[str], Broker], worker: Callable[..., WorkerProcess], load_app: Callable[..., ModuleType]
) -> Callable[..., tuple[Side, Side]]:
    """``stock, mixed = sides("redis", concurrency=1)``; with ``workers=False`` no worker takes the messages."""

    def make(
        kind: str = "redis", workers: bool = True, with_jobs_env: Mapping[str, str] = FROZEN, **options: Any
    ) -> tuple[Side, Side]:
        made = []
        for with_jobs in (False, True):
            env = {"TEST_WITH_JOBS": "1", **with_jobs_env} if with_jobs else {}
            broker = brokers(kind)
            side = Side(with_jobs, broker, load_app(broker, APP, env=env))
            if workers:
                side.worker = worker(broker, APP, name="same", ready=False, env=env, **options)
            made.append(side)
        for side in made:
            if side.worker is not None:
                side.worker.wait_ready()
        stock, mixed = made
        if workers:
            # Its jobs are registered before the test begins.
            until(lambda: registered(mixed), 30, "the jobs are registered")
        return stock, mixed

    return make


def registered(side: Side) -> bool:
    found = Orchestration(side.app.app)
    try:
        return bool(found.status().jobs)
    finally:
        found.close()


def stable(found: Any) -> Any:
    """Without the parts that differ each time; for times only whether there is one."""
    if isinstance(found, dict):
        kept = {key: stable(value) for key, value in found.items() if key not in VOLATILE}
        return {key: value is not None if key in TIMES else value for key, value in kept.items()}
    if isinstance(found, list | tuple):
        return [stable(value) for value in found]
    return found


def compared(sides: tuple[Side, Side], observe: Callable[[Side], Any]) -> Any:
    stock, mixed = (observe(side) for side in sides)
    assert mixed == stock
    return stock


# -- what is sent


def test_messages_are_the_same(sides):
    def sent(side: Side) -> Any:
        side.app.note.delay("a")
        side.app.note.apply_async(("b",), priority=6, expires=60, headers={"tenant": 1}, countdown=5)
        side.app.routed.s(1).set(link=side.app.note.s("c")).apply_async()
        client = side.broker.redis.client()
        return {queue: list(map(read, client.lrange(queue, 0, -1))) for queue in client.scan_iter(_type="list")}

    def read(raw: str) -> Any:
        message = json.loads(raw)
        body = json.loads(base64.b64decode(message["body"]))
        return stable({**message, "body": body})

    found = compared(sides(workers=False), sent)
    assert {queue.partition("\x06")[0] for queue in found} == {"celery", "own"}


# -- order


def test_plain_tasks_run_in_the_order_in_which_they_were_sent(sides, tmp_path, history):
    pair = sides(concurrency=1)

    def order(side: Side) -> list[Any]:
        gate = tmp_path / f"go-{side.with_jobs}"
        side.app.held.delay(str(gate))
        results = []
        for number in range(20):
            results.append(side.app.note.delay(number))
            if side.with_jobs:
                side.app.exclusive.delay()
                side.app.urgent.delay()
        gate.touch()
        for result in results:
            result.get(timeout=30)
        started = [event for event in history.started(NAME("note")) if event.worker == side.worker.hostname]
        return [event.note for event in started]

    assert compared(pair, order) == list(range(20))


# -- prefetching


@pytest.mark.parametrize(
    ("kind", "options"), [("redis", ()), ("redis", ("--prefetch-multiplier", "1")), ("rabbitmq", ())]
)
def test_as_many_messages_are_fetched_while_all_slots_are_busy(sides, tmp_path, history, kind, options):
    """On Redis only with orchestration_fetch="celery": see test_the_fetch_check_says_how_messages_are_fetched."""
    pair = sides(kind, concurrency=2, options=options, with_jobs_env=FETCH_AS_CELERY)

    def left_in_the_queue(side: Side) -> int:
        for _ in range(2):
            side.app.held.delay(str(tmp_path / "go"))
        until(lambda: len([e for e in history.started() if e.worker == side.worker.hostname]) == 2)
        for _ in range(30):
            side.app.note.delay("x")
        return settled(lambda: ready_messages(side))

    compared(pair, left_in_the_queue)
    (tmp_path / "go").touch()


def ready_messages(side: Side) -> int:
    if side.broker.name == "redis":
        return int(side.broker.redis.client().llen("celery"))
    with Connection(side.broker.broker_url) as connection:
        return int(connection.default_channel.queue_declare("celery", passive=True).message_count)


def settled(value: Callable[[], int]) -> int:
    """Its value when it has not changed ten times in a row."""
    seen: list[int] = []

    def the_same() -> bool:
        seen.append(value())
        return len(seen) >= 10 and len(set(seen[-10:])) == 1

    until(the_same, poll=0.05)
    return seen[-1]


# -- results, states, events, remote control


def outcomes(side: Side) -> list[Any]:
    """A task of each outcome, one after the other."""
    app = side.app
    calls = [app.note.s("x"), app.fail.s("why"), app.retried.s(), app.routed.s(3).set(queue="celery"), app.late.s(4)]
    results = []
    for call in [*calls, app.note.s("too late").set(expires=-1)]:
        result = call.apply_async()
        result.get(timeout=30, propagate=False)
        results.append(result)
    return results


def test_results_and_states_are_the_same(sides):
    def found(side: Side) -> Any:
        metas = [side.app.app.backend.get_task_meta(result.id) for result in outcomes(side)]
        for meta in metas:
            meta["result"] = repr(meta["result"])
        return stable(metas)

    # One slot: with more, an attempt that retries may store its state after the next one has ended.
    states = [meta["status"] for meta in compared(sides(concurrency=1), found)]
    assert states == ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS", "SUCCESS", "REVOKED"]


def test_events_are_the_same(sides):
    pair = sides(concurrency=1, options=("-E",))

    def seen(side: Side) -> Any:
        """For each task its events, in the order in which they came."""
        with events_of(side) as events:
            ids = [result.id for result in outcomes(side)]
            until(lambda: all(ended(events, id) for id in ids))
        return [[stable(event) for event in events if event.get("uuid") == id] for id in ids]

    def ended(events: list[dict[str, Any]], id: str) -> bool:
        last = ("task-succeeded", "task-failed", "task-revoked")
        return any(event["type"] in last for event in events if event.get("uuid") == id)

    def in_one_order(found: Any) -> Any:
        """The events of a retry may come before those of the attempt before it."""
        return [sorted(map(repr, events)) if "retried" in repr(events) else events for events in found]

    stock, mixed = seen(pair[0]), seen(pair[1])
    assert in_one_order(mixed) == in_one_order(stock)
    types = [[event["type"] for event in events] for events in stock]
    assert types[0] == ["task-received", "task-started", "task-succeeded"]
    assert types[1] == ["task-received", "task-started", "task-failed"]
    assert types[2].count("task-retried") == 2
    assert types[-1] == ["task-revoked"]


@contextlib.contextmanager
def events_of(side: Side) -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []
    ready = threading.Event()
    with side.app.app.connection() as connection:
        receiver = side.app.app.events.Receiver(connection, handlers={"*": found.append})
        receiver.on_consume_ready = lambda *args, **kwargs: ready.set()

        def capture() -> None:
            receiver.capture(limit=None, timeout=None, wakeup=False)

        thread = threading.Thread(target=capture)
        thread.start()
        assert ready.wait(10)
        try:
            yield found
        finally:
            receiver.should_stop = True
            thread.join(10)


def test_remote_control_shows_the_same(sides, tmp_path, history):
    pair = sides(concurrency=1, with_jobs_env=FETCH_AS_CELERY)  # so that it has reserved one
    gate = tmp_path / "go"

    def shown(side: Side) -> Any:
        side.app.held.delay(str(gate))
        until(lambda: any(e.worker == side.worker.hostname for e in history.started()))
        side.app.note.delay("reserved")
        inspect = side.app.app.control.inspect(timeout=5, destination=[side.worker.hostname])
        until(lambda: inspect.reserved()[side.worker.hostname])
        names = ("active", "reserved", "scheduled", "revoked", "active_queues", "registered")
        found = {name: stable(getattr(inspect, name)()[side.worker.hostname]) for name in names}
        jobs = {NAME("exclusive"), NAME("urgent")}
        found["registered"] = [name for name in found["registered"] if name not in jobs]
        # A worker with jobs also serves the queues that these are sent to.
        found["active_queues"] = [queue for queue in found["active_queues"] if not pool_of(queue["name"])]
        return found

    found = compared(pair, shown)
    assert [task["name"] for task in found["active"]] == [NAME("held")]
    assert [task["name"] for task in found["reserved"]] == [NAME("note")]
    gate.touch()


# -- limits


def test_rate_limits_hold(sides, history):
    pair = sides()
    for side in pair:
        for result in [side.app.limited.delay(number) for number in range(3)]:
            result.get(timeout=30)

    def gaps(side: Side) -> list[bool]:
        starts = [e.monotonic for e in history.started(NAME("limited")) if e.worker == side.worker.hostname]
        return [later - earlier > 0.15 for earlier, later in itertools.pairwise(starts)]

    assert compared(pair, gaps) == [True, True]


@pytest.mark.slow
def test_time_limits_hold(sides):
    pair = sides()
    calls = [(side.app.overlong.delay(), side.app.overlong_softly.delay()) for side in pair]
    for hard, soft in calls:
        assert isinstance(hard.get(timeout=30, propagate=False), TimeLimitExceeded)
        assert isinstance(soft.get(timeout=30, propagate=False), SoftTimeLimitExceeded)


# -- nothing in the ledger


def test_plain_tasks_leave_no_trace_in_the_ledger(sides):
    _, mixed = sides()
    client = mixed.broker.redis.client()
    assert mixed.app.note.delay("x").get(timeout=30) == "x"
    of_runs = tuple(key_of("{mixed}:", name, "") for name in ("run", "done", "lane"))
    assert not [key for key in client.keys("{mixed}:*") if key.startswith(of_runs)]

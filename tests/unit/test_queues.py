"""Which queue a run is sent to, which queues a worker serves, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import QueueNotFound
from kombu import Exchange, Queue

from celery_orchestration import OrchestratedTask, Priority
from celery_orchestration.queues import (
    StrictCycle,
    declared,
    granted_queue_for,
    pool_of,
    pool_queues,
    queue_name,
    rank_of,
    select,
)

DEFAULTS = ["default.critical", "default.high", "default.normal", "default.low"]


def job(app: Celery, name: str = "shop.job", **options: Any) -> Any:
    def body() -> None: ...

    return app.task(base=OrchestratedTask, name=name, shared=False, lazy=False, **options)(body)


def destination(send: Callable[[], Any]) -> str:
    """The queue that a call is published to; "exchange/key" if it goes through a named exchange."""
    found = []

    def publishing(exchange: str, routing_key: str, **_: Any) -> None:
        found.append(f"{exchange}/{routing_key}" if exchange else routing_key)

    signals.before_task_publish.connect(publishing)
    try:
        send()
    finally:
        signals.before_task_publish.disconnect(publishing)
    [where] = found
    return where


# -- routing: the call, Task.queue, the user's task_routes, then ours


def test_an_unwritten_job_stays_on_the_queue_it_always_had(app):
    assert destination(job(app, max_running=1).delay) == "celery"


@pytest.mark.parametrize(
    ("written", "queue"),
    [
        ({"priority": "critical"}, "default.critical"),
        ({"priority": "normal"}, "default.normal"),
        ({"pool": "images"}, "images.normal"),
        ({"pool": "images", "priority": "low"}, "images.low"),
        ({"pool": "default"}, "default.normal"),
    ],
)
def test_a_written_priority_or_pool_is_a_queue(app, written, queue):
    assert destination(job(app, **written).delay) == queue


def test_a_job_that_is_called_by_name_goes_the_same_way(app):
    job(app, priority="high")
    assert destination(lambda: app.send_task("shop.job")) == "default.high"
    assert destination(lambda: app.send_task("shop.unknown")) == "celery"


ROUTES = {
    "dict": {"shop.job": {"queue": "mine"}},
    "queue name": {"shop.job": "mine"},
    "glob": {"shop.*": {"queue": "mine"}},
    "pattern": {re.compile(r"shop\.(job|other)"): {"queue": "mine"}},
    "list": [("shop.other", "other"), ("shop.job", "mine")],
    "function": lambda name, args, kwargs, options, task=None, **_: {"queue": "mine"} if name == "shop.job" else None,
    "second": [{"shop.other": "other"}, {"shop.*": "mine"}],
}


@pytest.mark.parametrize("routes", ROUTES.values(), ids=ROUTES.keys())
def test_the_users_routes_come_before_ours(new_app, routes):
    app = new_app(task_routes=routes if not isinstance(routes, list) or isinstance(routes[0], dict) else (routes,))
    assert destination(job(app, priority="high").delay) == "mine"


def test_what_the_users_routes_leave_out_is_ours(new_app):
    app = new_app(task_routes={"shop.other": "mine"})
    assert destination(job(app, priority="high").delay) == "default.high"
    assert destination(job(app, name="shop.other", priority="high").delay) == "mine"


def test_a_router_that_only_adds_options_is_the_users_word_too(new_app):
    """Celery takes the first route that is one: what it leaves open is the default queue, as ever."""
    app = new_app(task_routes={"shop.job": {"priority": 3}})
    assert destination(job(app, pool="images").delay) == "celery"


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute")
def test_task_queue_comes_before_all_routes(new_app):
    app = new_app(task_routes={"shop.job": "mine"})
    assert destination(job(app, queue="of_the_task", priority="high").delay) == "of_the_task"


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute")
def test_the_call_comes_first(new_app):
    task = job(new_app(task_routes={"shop.*": "mine"}), queue="of_the_task", priority="high")
    assert destination(lambda: task.apply_async(queue="of_the_call")) == "of_the_call"
    assert destination(lambda: task.apply_async(queue="of_the_call", priority="low")) == "of_the_call"


def test_a_call_that_names_an_exchange_is_not_moved(app):
    task = job(app, priority="high")
    assert destination(lambda: task.apply_async(exchange="topics", routing_key="a.b")) == "topics/a.b"


def test_a_call_with_a_priority_moves_an_unwritten_job_too(app):
    task = job(app)
    assert destination(lambda: task.apply_async(priority="high")) == "default.high"
    assert destination(task.delay) == "celery"


def test_a_call_with_a_priority_does_not_leave_the_users_route(new_app):
    task = job(new_app(task_routes={"shop.job": "mine"}))
    assert destination(lambda: task.apply_async(priority="high")) == "mine"


def test_plain_tasks_are_not_routed(app):
    job(app, priority="high")

    @app.task(name="shop.plain", shared=False)
    def plain() -> None: ...

    assert destination(plain.delay) == "celery"


def test_routes_that_are_changed_later_come_before_ours(app):
    task = job(app, priority="high")
    assert destination(task.delay) == "default.high"
    for routes, queue in [({"shop.job": "mine"}, "mine"), ({"shop.x": "mine"}, "default.high"), (None, "default.high")]:
        app.conf.update(task_routes=routes)
        assert destination(task.delay) == queue


def test_routes_may_be_assigned_after_the_first_bound_job(app):
    task = job(app, priority="high")
    app.conf.task_routes = {"shop.job": "mine"}
    assert destination(task.delay) == "mine"


def test_our_queues_exist_where_missing_ones_are_not_created(new_app):
    app = new_app(task_queues=[Queue("celery")], task_create_missing_queues=False)
    task = job(app, priority="high")
    assert destination(task.delay) == "default.high"
    with pytest.raises(QueueNotFound):
        task.apply_async(queue="a_typo")
    # They are for sending: a worker consumes from what was configured.
    assert list(app.amqp.queues.consume_from) == ["celery"]


def test_a_queue_of_the_user_that_is_named_like_ours_is_used_as_declared(new_app):
    theirs = Queue("default.high", Exchange("mine"), routing_key="high", queue_arguments={"x-max-length": 5})
    app = new_app(task_queues=[Queue("celery"), theirs])
    assert declared(app, "default.high") == theirs
    assert declared(app, "default.high").queue_arguments == {"x-max-length": 5}


def test_our_queues_are_declared_as_celery_declares_missing_ones(new_app):
    app = new_app(task_create_missing_queue_type="quorum")
    assert declared(app, "default.high").queue_arguments == {"x-queue-type": "quorum"}


# -- names


@pytest.mark.parametrize(
    ("queue", "pool", "rank"),
    [
        ("default.granted", "default", -1),
        ("images.critical", "images", 0),
        ("default.high", "default", 1),
        ("images.normal", "images", 2),
        ("default.low", "default", 3),
        ("celery", None, 2),
        ("high", None, 2),
        ("default.hig", None, 2),
        ("a.b.high", None, 2),
        ("", None, 2),
    ],
)
def test_a_queues_name_tells_pool_and_rank(queue, pool, rank):
    assert (pool_of(queue), rank_of(queue)) == (pool, rank)


def test_every_priority_has_a_queue_the_highest_first():
    assert pool_queues("default") == DEFAULTS
    assert [queue_name("images", priority) for priority in Priority] == [
        "images.low",
        "images.normal",
        "images.high",
        "images.critical",
    ]


@pytest.mark.parametrize(
    ("came_through", "handed_over"),
    [("celery", "default.granted"), ("default.low", "default.granted"), ("images.high", "images.granted"), ("own", "")],
)
def test_where_a_run_is_handed_over(came_through, handed_over):
    assert granted_queue_for(came_through, default_queue="celery") == handed_over


# -- what a worker serves


def served(app: Celery, *chosen: str, strict: bool = False) -> tuple[list[str], list[str]]:
    """Queues on Celery's own channel, and on ours."""
    if chosen:
        app.amqp.queues.select(chosen)
    ours = select(app, bool(chosen), strict)
    return list(app.amqp.queues.consume_from), ours


def test_a_worker_without_q_serves_its_default_queue_and_the_default_pool(app):
    assert served(app) == (["celery"], ["default.granted", *DEFAULTS])


def test_a_worker_without_q_serves_the_users_queues_too(new_app):
    app = new_app(task_queues=[Queue("one"), Queue("two")])
    assert served(app) == (["one", "two"], ["default.granted", *DEFAULTS])


def test_a_queue_that_the_user_declared_is_fetched_by_celery(new_app):
    app = new_app(task_queues=[Queue("celery"), Queue("default.high"), Queue("images.low")])
    theirs, ours = served(app)
    assert theirs == ["celery", "default.high", "images.low"]
    assert ours == ["default.granted", "images.granted", "default.critical", "default.normal", "default.low"]


@pytest.mark.parametrize(
    ("chosen", "ours"),
    [
        (["celery"], []),
        (["own"], []),
        (["default.high"], ["default.granted"]),
        (["images.low", "images.high"], ["images.granted"]),
        (["images.low", "default.low", "own"], ["default.granted", "images.granted"]),
    ],
)
def test_a_worker_with_q_serves_those_and_what_is_handed_over_to_their_pools(app, chosen, ours):
    assert served(app, *chosen) == (chosen, ours)


def test_a_granted_queue_that_is_named_with_q_is_served_once(app):
    assert served(app, "images.granted", "images.low") == (["images.low"], ["images.granted"])


def test_under_strict_priority_one_channel_knows_all_but_the_granted_queues(app):
    assert served(app, strict=True) == (["celery", *DEFAULTS], ["default.granted"])


def test_under_strict_priority_q_is_kept(app):
    assert served(app, "default.low", strict=True) == (["default.low"], ["default.granted"])


def test_a_worker_serves_our_queues_where_missing_ones_are_not_created(new_app):
    app = new_app(task_queues=[Queue("celery")], task_create_missing_queues=False)
    assert served(app) == (["celery"], ["default.granted", *DEFAULTS])


def test_the_default_queue_may_have_another_name(new_app):
    assert served(new_app(task_default_queue="mine")) == (["mine"], ["default.granted", *DEFAULTS])


# -- order


def test_strict_order_is_highest_first_whatever_was_served_last():
    cycle = StrictCycle()
    cycle.update(["default.low", "celery", "default.high", "images.critical", "default.granted", "default.critical"])
    expected = ["default.granted", "default.critical", "images.critical", "default.high", "celery", "default.low"]
    assert cycle.consume(10) == expected
    assert cycle.consume(2) == expected[:2]
    for queue in expected:
        cycle.rotate(queue)
    assert cycle.consume(10) == expected
    cycle.rotate("gone")
    assert cycle.consume(10) == expected

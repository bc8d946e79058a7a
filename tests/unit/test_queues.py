"""The queue that a run is sent to, the queues that a worker serves, and their order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import QueueNotFound
from kombu import Exchange, Queue

from celery_orchestration import OrchestratedTask, Priority
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.queues import (
    StrictCycle,
    check,
    declared,
    destinations,
    granted_queue_for,
    granted_queues,
    may_come,
    pool_of,
    pool_queues,
    queue_name,
    rank_of,
    select,
)
from celery_orchestration.job.task import jobs_of

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


def test_jobs_without_a_route_of_the_user_take_ours(new_app):
    app = new_app(task_routes={"shop.other": "mine"})
    assert destination(job(app, priority="high").delay) == "default.high"
    assert destination(job(app, name="shop.other", priority="high").delay) == "mine"


def test_a_router_that_only_adds_options_counts_as_a_route_of_the_user(new_app):
    """Celery takes the first route that is one; where it says nothing, the default queue applies, as always."""
    app = new_app(task_routes={"shop.job": {"priority": 3}})
    assert destination(job(app, pool="images").delay) == "celery"


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute")
def test_task_queue_comes_before_all_routes(new_app):
    app = new_app(task_routes={"shop.job": "mine"})
    assert destination(job(app, queue="of_the_task", priority="high").delay) == "of_the_task"


@pytest.mark.filterwarnings(r"ignore:\s*The 'queue' task attribute")
def test_the_queue_of_a_call_comes_before_all_routes(new_app):
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


def test_our_queues_are_not_created_where_missing_ones_are_not(new_app):
    app = new_app(task_queues=[Queue("celery"), Queue("default.low")], task_create_missing_queues=False)
    task = job(app, priority="high")
    with pytest.raises(QueueNotFound, match=r"default\.high"):
        task.delay()
    assert destination(lambda: task.apply_async(priority="low")) == "default.low"
    with pytest.raises(ConfigurationError, match=r'shop\.job is sent to queue default\.high.*add Queue\("default'):
        check(app, jobs_of(app))


@pytest.mark.parametrize("settings", [{}, {"task_queues": [Queue("celery"), Queue("default.high")]}])
def test_jobs_whose_queue_is_there_or_may_be_created_are_fine(new_app, settings):
    app = new_app(task_create_missing_queues=not settings, **settings)
    job(app, priority="high")
    check(app, jobs_of(app))


def test_a_job_on_the_users_own_route_needs_no_queue_of_ours(new_app):
    app = new_app(task_queues=[Queue("mine")], task_routes={"shop.*": "mine"}, task_create_missing_queues=False)
    job(app, priority="high")
    check(app, jobs_of(app))


def test_a_queue_of_the_user_that_is_named_like_ours_is_used_as_declared(new_app):
    theirs = Queue("default.high", Exchange("mine"), routing_key="high", queue_arguments={"x-max-length": 5})
    app = new_app(task_queues=[Queue("celery"), theirs])
    assert declared(app, "default.high") == theirs
    assert declared(app, "default.high").queue_arguments == {"x-max-length": 5}


def test_our_queues_are_declared_as_celery_declares_missing_ones(new_app):
    app = new_app(task_create_missing_queue_type="quorum")
    assert declared(app, "default.high").queue_arguments == {"x-queue-type": "quorum"}


def test_our_queues_have_the_type_of_the_default_queue(new_app):
    app = new_app(task_default_queue_type="quorum")
    for name in ("default.high", "images.granted"):
        queue = declared(app, name)
        assert queue.queue_arguments == {"x-queue-type": "quorum"}
        assert queue.exchange.type == "topic"  # Celery's delayed delivery warns of direct ones
    assert declared(app, "of_the_user").queue_arguments is None
    app.amqp.queues.select(["images.low", "own"])
    select(app, chosen=True, destinations=[])
    types = {name: (queue.queue_arguments or {}).get("x-queue-type") for name, queue in app.amqp.queues.items()}
    assert types["images.low"] == "quorum"
    assert types["own"] is None
    assert app.amqp.queues.consume_from["images.low"] is app.amqp.queues["images.low"]


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
def test_a_queues_name_contains_pool_and_rank(queue, pool, rank):
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
def test_a_run_is_handed_over_through_the_granted_queue_of_its_pool(came_through, handed_over):
    assert granted_queue_for(came_through, default_queue="celery") == handed_over


# -- what a worker serves


def served(app: Celery, *chosen: str) -> tuple[list[str], list[str]]:
    """Queues that Celery consumes from, and the granted queues."""
    if chosen:
        app.amqp.queues.select(chosen)
    select(app, bool(chosen), destinations(app, jobs_of(app)))
    return list(app.amqp.queues.consume_from), granted_queues(app, bool(chosen))


def test_a_worker_without_q_serves_its_default_queue(app):
    job(app)
    assert served(app) == (["celery"], ["default.granted"])


def test_a_worker_without_q_serves_the_queues_that_its_jobs_of_the_default_pool_are_sent_to(app):
    job(app, priority="low")
    job(app, name="shop.critical", priority="critical")
    job(app, name="shop.image", pool="images")
    assert served(app) == (["celery", "default.critical", "default.low"], ["default.granted"])


def test_the_other_queues_of_the_default_pool_are_served_once_the_broker_has_them(app):
    job(app, priority="low")
    served(app)
    assert may_come(app, chosen=False) == ["default.critical", "default.high", "default.normal"]
    assert may_come(app, chosen=True) == []


def test_a_worker_without_q_serves_the_users_queues_too(new_app):
    app = new_app(task_queues=[Queue("celery"), Queue("two")])
    assert served(app) == (["celery", "two"], ["default.granted"])


def test_a_queue_that_the_user_declared_is_served(new_app):
    app = new_app(task_queues=[Queue("celery"), Queue("default.high"), Queue("images.low")])
    assert served(app) == (["celery", "default.high", "images.low"], ["default.granted", "images.granted"])


@pytest.mark.parametrize(
    ("chosen", "granted"),
    [
        (["celery"], []),
        (["own"], []),
        (["default.high"], ["default.granted"]),
        (["images.low", "images.high"], ["images.granted"]),
        (["images.low", "default.low", "own"], ["default.granted", "images.granted"]),
    ],
)
def test_a_worker_with_q_serves_those_and_what_is_handed_over_to_their_pools(app, chosen, granted):
    job(app, priority="critical")
    assert served(app, *chosen) == (chosen, granted)


def test_a_granted_queue_that_is_named_with_q_is_served_once(app):
    assert served(app, "images.granted", "images.low") == (["images.granted", "images.low"], [])


def test_where_missing_queues_are_not_created_runs_are_handed_over_through_their_own(new_app):
    app = new_app(task_queues=[Queue("celery"), Queue("default.low")], task_create_missing_queues=False)
    assert served(app) == (["celery", "default.low"], [])
    assert may_come(app, chosen=False) == []


def test_the_default_queue_may_have_another_name(new_app):
    assert served(new_app(task_default_queue="mine")) == (["mine"], ["default.granted"])


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

"""OrchestratedTask as people write it: binding changes what the options say, and nothing else.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, Task, chain, group, shared_task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.schedules import crontab, schedule

from celery_orchestration import OrchestratedTask, Priority
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.app import SCHEDULER, settings_of
from celery_orchestration.job.current_run import default_limit
from celery_orchestration.job.envelope import FENCE
from celery_orchestration.job.queues import PRIORITY_HEADER, queue_name
from celery_orchestration.job.task import jobs_of

#: Set by Celery when it binds any task, by us on every job, or different for any two tasks.
BOOKKEEPING = {"Request", "Strategy", "orchestration", "name", "request_stack", "_app", "app", "backend", "fence"}
BOOKKEEPING |= {"request", "_default_request", "_decorated_fun"}


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    """The published messages: queue, headers and properties."""
    found: list[dict[str, Any]] = []

    def publishing(routing_key: str, headers: Any, properties: Any, **_: Any) -> None:
        found.append({"queue": routing_key, "headers": headers, "properties": properties})

    signals.before_task_publish.connect(publishing, weak=False)
    yield found
    signals.before_task_publish.disconnect(publishing)


def nothing() -> None: ...


def job(app: Celery, body: Callable[..., Any] = nothing, **options: Any) -> Any:
    body.__name__ = "body"  # Celery makes a function of that name, and a lambda's is none
    defaults = {"base": OrchestratedTask, "name": "shop.job", "shared": False, "lazy": False}
    return app.task(**{**defaults, **options})(body)


def plain_task(app: Celery, body: Callable[..., Any] = nothing) -> Any:
    return job(app, body, base=Task)


def visible(task: Task) -> dict[str, Any]:
    """A task's attributes that Celery or a user could read."""
    names = {name for name in dir(task) if not name.startswith("__")} - BOOKKEEPING
    return {name: getattr(task, name) for name in names if not callable(getattr(task, name))}


# -- where options are written


def test_options_are_read_from_the_decorator(app):
    policy = job(app, max_running=2, pool="images", priority="low").orchestration
    assert (policy.name, policy.max_running, policy.pool, policy.priority) == ("shop.job", 2, "images", Priority.LOW)


def test_options_are_read_from_classes_and_the_nearest_one_counts(app):
    class Base(OrchestratedTask):
        max_running = 1
        pool = "images"
        priority = "low"

    class Nearer(Base):
        max_running = 2
        priority = "critical"

    policy = job(app, base=Nearer, pool="mail").orchestration
    assert (policy.max_running, policy.pool, policy.priority) == (2, "mail", Priority.CRITICAL)


def test_an_option_of_a_base_class_is_undone_with_none(app):
    class Base(OrchestratedTask):
        max_running = 1

    task = job(app, base=Base, max_running=None)
    assert task.orchestration.max_running is None


def test_a_job_that_undoes_its_bases_interval_has_celerys_retries_again(app):
    class Base(OrchestratedTask):
        interval_seconds = 60

    task = job(app, base=Base, interval_seconds=None)
    assert not task.orchestration.recurring
    assert (task.autoretry_for, task.retry_backoff, task.max_retries) == ((), False, 3)


def test_an_option_of_a_job_counts_as_written_whatever_its_base_implies(app):
    class Base(OrchestratedTask):
        interval_seconds = 60

    class Middle(Base):
        max_retries = 7

    task = job(app, base=Middle)
    assert task.max_retries == 7
    assert task.orchestration.celery == {"max_retries": 7}


def test_a_class_based_task_is_a_job(app):
    class Job(OrchestratedTask):
        name = "shop.job"
        max_running = 1
        priority = "high"

        def run(self, x: int) -> int:
            return x + 1

    task = app.register_task(Job())
    assert jobs_of(app) == {"shop.job": task.orchestration}
    assert queue_name(task.orchestration.pool, task.orchestration.priority) == "default.high"
    assert task(1) == 2


def test_a_bound_function_gets_its_task(app):
    task = job(app, bind=True, max_running=1, body=lambda self, x: (self.name, x))
    assert task(5) == ("shop.job", 5)
    assert task.apply((6,)).get() == ("shop.job", 6)


def test_a_lazy_task_is_bound_when_the_app_is_finalised(app):
    task = app.task(base=OrchestratedTask, name="shop.job", max_running=1)(nothing)
    assert "shop.job" not in app._tasks
    app.finalize()
    assert task.orchestration.max_running == 1


def test_autodiscovered_tasks_are_jobs(app, monkeypatch):
    def module(name: str) -> ModuleType:
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    package, tasks = module("discovered"), module("discovered.tasks")
    package.__path__ = []
    tasks.job = shared_task(base=OrchestratedTask, name="discovered.job", max_running=1)(nothing)
    app.autodiscover_tasks(["discovered"])
    app.loader.import_default_modules()
    app.finalize()
    assert app.tasks["discovered.job"].orchestration.max_running == 1


def test_the_class_may_be_on_every_task_of_an_app():
    app = Celery("shop", broker="memory://", task_cls=OrchestratedTask, set_as_current=False)
    app.task(name="shop.job", shared=False)(nothing)
    app.finalize()
    assert "shop.job" in jobs_of(app)
    assert not [name for name in jobs_of(app) if name.startswith("celery.")]


@pytest.mark.parametrize("name", ["celery.ping", "celery.mine"])
def test_celerys_own_names_are_never_orchestrated(app, name):
    task = job(app, name=name, max_running=1)
    assert task.orchestration is None
    assert jobs_of(app) == {}
    assert not app.steps["worker"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_runing": 1}, "job 'shop.job': unknown option 'max_runing', did you mean 'max_running'?"),
        ({"max_running": 0}, "job 'shop.job': max_running should be greater than or equal to 1, not 0"),
        ({"priority": "hihg"}, "did you mean 'high'?"),
        ({"timeout_seconds": 5, "time_limit": 5}, "timeout_seconds and time_limit exclude each other"),
    ],
)
def test_a_bad_option_is_reported_with_its_job_where_it_is_used(app, sent, options, message):
    task = job(app, **options)
    for use in (task.delay, lambda: jobs_of(app)):
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert message in str(caught.value)
    assert sent == []
    assert app.steps["worker"], "a worker would start and say nothing"


def test_a_bad_option_on_a_base_class_does_not_break_its_import():
    class Base(OrchestratedTask):
        max_runing = 1

    assert Base.orchestration is None


def test_annotations_of_the_configuration_count(new_app):
    app = new_app(task_annotations={"shop.job": {"max_running": 3, "priority": "high"}})
    task = job(app)
    assert (task.orchestration.max_running, task.orchestration.priority) == (3, Priority.HIGH)
    assert task.priority is None


# -- several apps in one process


def test_every_app_binds_its_own_copy_of_a_shared_task(new_app):
    shared = shared_task(base=OrchestratedTask, name="lib.job", max_running=1, priority="high")(nothing)
    one, two = new_app("one"), new_app("two", task_time_limit=9)
    first, second = one.tasks["lib.job"], two.tasks["lib.job"]
    assert first is not second
    assert (first.app, second.app) == (one, two)
    assert first.orchestration.max_running == second.orchestration.max_running == 1
    assert first.time_limit is None
    assert shared.name == "lib.job"


def test_binding_again_changes_nothing(app):
    class Job(OrchestratedTask):
        name = "shop.job"
        interval_seconds = 60
        priority = "high"

        def run(self) -> None: ...

    task = app.register_task(Job())
    before, routes, entries = visible(task), list(app.amqp.routes), dict(app.conf.beat_schedule)
    policy = task.orchestration
    for _ in range(2):
        app.register_task(task)
    assert visible(task) == before
    assert task.orchestration.document() == policy.document()
    assert task.orchestration.sources == policy.sources
    assert app.amqp.routes == routes
    assert app.conf.beat_schedule == entries
    assert len(app.steps["worker"]) == len(app.steps["consumer"]) == 1


def test_binding_touches_no_other_app(new_app):
    app, other = new_app("shop"), new_app("other")
    job(app, interval_seconds=60, priority="high")
    other.finalize()
    assert jobs_of(other) == {}
    assert not other.steps["worker"]
    assert not other.steps["consumer"]
    assert other.conf.beat_schedule == {}
    assert not other.amqp.routes


@pytest.mark.usefixtures("no_network")
def test_binding_asks_no_server():
    app = Celery("shop", broker="redis://nowhere.invalid:1/0", backend="redis://nowhere.invalid:1/1")
    fetch = app.task(base=OrchestratedTask, name="shop.fetch", interval_seconds=60)(nothing)
    process = app.task(base=OrchestratedTask, name="shop.process", depends_on=[fetch, "no.such.job"])(nothing)
    shared_task(base=OrchestratedTask, name="lib.job", blocks=[process])(nothing)
    app.finalize()
    assert set(jobs_of(app)) == {"shop.fetch", "shop.process", "lib.job"}


def test_settings_of_queues_may_follow_the_first_bound_job(app):
    job(app)
    app.conf.task_default_queue = "mine"
    assert list(app.amqp.queues.consume_from) == ["mine"]


# -- priority: a word is ours, a number is Celery's message priority


@pytest.mark.parametrize("written", ["high", Priority.HIGH])
def test_our_priority_stays_out_of_the_message(app, sent, written):
    # A warning of Celery's about a `priority` attribute would be an error here.
    task = job(app, priority=written)
    assert task.priority is None
    task.delay()
    [message] = sent
    assert message["queue"] == "default.high"
    assert "priority" not in message["properties"]
    assert PRIORITY_HEADER not in message["headers"]


def test_a_class_based_tasks_priority_stays_out_of_the_message(app, sent):
    class Job(OrchestratedTask):
        name = "shop.job"
        priority = "low"

        def run(self) -> None: ...

    app.register_task(Job()).delay()
    [message] = sent
    assert message["queue"] == "default.low"
    assert "priority" not in message["properties"]


def test_a_number_stays_celerys_message_priority(app, sent):
    with pytest.warns(match="'priority' task attribute"):
        task = job(app, priority=7)
    assert (task.orchestration.priority, task.orchestration.routed) == (Priority.NORMAL, False)
    task.delay()
    [message] = sent
    assert message["queue"] == "celery"
    assert message["properties"]["priority"] == 7


def test_the_configured_message_priority_goes_with_our_word(new_app, sent):
    task = job(new_app(task_default_priority=4), priority="high")
    task.delay()
    [message] = sent
    assert (message["queue"], message["properties"]["priority"]) == ("default.high", 4)


@pytest.mark.parametrize("written", ["critical", Priority.CRITICAL])
def test_a_call_with_a_word_moves_one_run(app, sent, written):
    task = job(app, pool="images")
    task.apply_async(priority=written)
    task.delay()
    moved, other = sent
    assert (moved["queue"], moved["headers"][PRIORITY_HEADER]) == ("images.critical", "critical")
    assert "priority" not in moved["properties"]
    assert (other["queue"], PRIORITY_HEADER in other["headers"]) == ("images.normal", False)


def test_a_call_with_a_number_is_celerys(app, sent):
    job(app).apply_async(priority=3)
    [message] = sent
    assert message["queue"] == "celery"
    assert message["properties"]["priority"] == 3
    assert PRIORITY_HEADER not in message["headers"]


def test_a_call_keeps_its_own_headers_and_does_not_change_the_callers(app, sent):
    headers = {"tenant": "a"}
    job(app).apply_async(priority="high", headers=headers)
    assert sent[0]["headers"]["tenant"] == "a"
    assert headers == {"tenant": "a"}


def test_a_signature_carries_the_word(app, sent):
    task = job(app)
    task.s().set(priority="high").apply_async()
    group([task.s().set(priority="low")], app=app).apply_async()
    chain(task.si().set(priority="critical"), task.si(), app=app).apply_async()
    assert [message["queue"] for message in sent] == ["default.high", "default.low", "default.critical"]


@pytest.mark.parametrize("written", ["hihg", True, 1.5])
def test_a_call_with_a_bad_priority_is_refused(app, sent, written):
    with pytest.raises(ValueError, match="low, normal, high, critical"):
        job(app).apply_async(priority=written)
    assert sent == []


# -- the first rule: inheriting changes nothing that was not written


def test_a_job_without_options_behaves_like_a_plain_task(new_app):
    plain = plain_task(new_app())
    ours = job(new_app())
    names = visible(plain).keys()
    assert {name: visible(ours)[name] for name in names} == visible(plain)
    added = visible(ours).keys() - names
    assert added == {"orchestration_priority", "_implied", "_written_by_users", "_resolved", "mistake"}
    assert ours.app.conf.beat_schedule == {}


def test_options_of_the_gate_change_nothing_of_celerys(new_app):
    plain = plain_task(new_app())
    ours = job(new_app(), max_running=1, blocks=["shop.other"], depends_on=["shop.third"], on_crash="fail")
    assert {name: visible(ours)[name] for name in visible(plain)} == visible(plain)


def test_a_message_is_a_plain_tasks_message_with_an_id_of_its_own(new_app, sent):
    plain_task(new_app(), lambda x: x).apply_async((1,), task_id="same")
    job(new_app(), body=lambda x: x, max_running=1).apply_async((1,), task_id="same")
    plain, ours = sent
    for message in sent:
        message["properties"].pop("reply_to")  # an app's own
    assert ours["properties"].pop("message_id")
    assert ours == plain


def test_each_call_sends_a_message_of_its_own_unless_it_says_otherwise(app, sent):
    task = job(app, max_running=1)
    for options in ({}, {}, {"message_id": "mine"}):
        task.apply_async(task_id="same", **options)
    first, second, third = (message["properties"]["message_id"] for message in sent)
    assert first != second
    assert third == "mine"


def test_celerys_options_keep_working(app):
    task = job(app, rate_limit="1/s", acks_late=True, ignore_result=True, max_retries=9, autoretry_for=(KeyError,))
    assert (task.rate_limit, task.acks_late, task.ignore_result, task.max_retries) == ("1/s", True, True, 9)
    assert task.autoretry_for == (KeyError,)
    assert task.orchestration.recurring is False


# -- recurring jobs


def failing(error: type[BaseException]) -> Any:
    """The body of a job that raises, and counts its calls."""

    def body() -> None:
        body.calls += 1
        raise error("as asked")

    body.calls = 0
    return body


@pytest.fixture(params=["function", "bound function", "class"])
def recurring(request: pytest.FixtureRequest, app: Celery) -> Callable[..., Any]:
    """Makes a recurring job whose body raises, in each way in which a job can be written."""

    def make(body: Any, **options: Any) -> Any:
        if request.param == "function":
            return job(app, body=body, interval_seconds=60, **options)
        if request.param == "bound function":
            return job(app, body=lambda self: body(), bind=True, interval_seconds=60, **options)
        attributes = {"name": "shop.job", "interval_seconds": 60, "run": lambda self: body(), **options}
        return app.register_task(type("Job", (OrchestratedTask,), attributes)())

    return make


def test_a_recurring_job_is_retried_three_times_on_any_exception(recurring):
    body = failing(ValueError)
    task = recurring(body)
    assert (task.max_retries, task.retry_backoff, task.retry_jitter) == (3, True, True)
    result = task.apply(throw=False)
    assert isinstance(result.result, ValueError)
    assert body.calls == 4


@pytest.mark.parametrize("error", [Reject, Ignore, SoftTimeLimitExceeded])
def test_exceptions_with_a_meaning_in_celery_are_not_retried(recurring, error):
    body = failing(error)
    recurring(body).apply(throw=False)
    assert body.calls == 1


def test_written_retries_win(recurring):
    body = failing(ValueError)
    task = recurring(body, max_retries=1, autoretry_for=(KeyError,), retry_backoff=False)
    assert (task.max_retries, task.autoretry_for, task.retry_backoff) == (1, (KeyError,), False)
    assert isinstance(task.apply(throw=False).result, ValueError)
    assert body.calls == 1


def test_a_job_that_is_not_recurring_is_not_retried(app):
    body = failing(ValueError)
    job(app, body=body, max_running=1).apply(throw=False)
    assert body.calls == 1


def test_a_recurring_job_has_a_limit_of_a_minute_and_runs_once_at_a_time(recurring):
    task = recurring(failing(ValueError))
    assert (task.soft_time_limit, task.time_limit) == (60, 70)
    assert task.orchestration.max_running == 1


NO_DEFAULTS = {
    "timeout_seconds": None,
    "max_running": None,
    "max_consecutive_failures": None,
    "autoretry_for": (),
    "max_retries": 7,
    "retry_backoff": False,
}


def test_an_app_may_have_other_defaults_for_recurring_jobs(app, recurring):
    app.conf.orchestration_recurring_defaults = NO_DEFAULTS
    body = failing(ValueError)
    task = recurring(body)
    policy = task.orchestration
    assert (policy.timeout_seconds, policy.max_running, policy.max_consecutive_failures) == (None, None, None)
    assert (task.soft_time_limit, task.time_limit, task.max_retries) == (None, None, 7)
    task.apply(throw=False)
    assert body.calls == 1
    app.finalize()
    task.apply(throw=False)
    assert body.calls == 2
    assert jobs_of(app)["shop.job"].timeout_seconds is None


def test_defaults_for_recurring_jobs_may_change_retries(app, recurring):
    app.conf.orchestration_recurring_defaults = {"autoretry_for": [KeyError], "max_retries": 1}
    bodies = failing(ValueError), failing(KeyError)
    recurring(bodies[0]).apply(throw=False)
    assert bodies[0].calls == 1
    app.tasks.unregister("shop.job")
    task = recurring(bodies[1])
    task.apply(throw=False)
    assert bodies[1].calls == 2
    assert (task.soft_time_limit, task.time_limit) == (60, 70)


def test_options_written_on_a_job_win_over_the_apps_defaults(app, recurring):
    app.conf.orchestration_recurring_defaults = NO_DEFAULTS
    body = failing(ValueError)
    task = recurring(body, timeout_seconds=5, max_running=2, autoretry_for=(ValueError,), max_retries=2)
    assert (task.soft_time_limit, task.orchestration.max_running) == (5, 2)
    task.apply(throw=False)
    assert body.calls == 3


def test_defaults_for_recurring_jobs_do_not_apply_to_other_jobs(app):
    app.conf.orchestration_recurring_defaults = {"timeout_seconds": 5, "autoretry_for": (Exception,)}
    body = failing(ValueError)
    task = job(app, body=body, max_running=1)
    task.apply(throw=False)
    assert (body.calls, task.time_limit) == (1, None)


def test_wrong_defaults_are_reported_when_something_starts(app):
    app.conf.orchestration_recurring_defaults = {"timeout_second": 5}
    assert job(app, interval_seconds=60).orchestration.timeout_seconds == 60
    with pytest.raises(ConfigurationError, match="did you mean 'timeout_seconds'"):
        settings_of(app)


# -- time limits


def over_the_soft_limit(task: Any, **request: Any) -> str:
    """The error message of a run that a worker has started."""
    task.push_request(id="run", called_directly=False, properties={FENCE: "1"}, **request)
    try:
        with pytest.raises(SoftTimeLimitExceeded) as caught:
            task()
    finally:
        task.pop_request()
    return str(caught.value)


def test_a_run_ended_by_a_limit_that_nobody_wrote_says_so_and_names_the_option(app):
    task = job(app, body=failing(SoftTimeLimitExceeded), interval_seconds=60)
    expected = "60 s is the default limit of recurring jobs: write timeout_seconds to change it"
    assert expected in over_the_soft_limit(task)
    assert expected in over_the_soft_limit(task, timelimit=[70, 60])
    assert expected == default_limit(task, [None, None])


@pytest.mark.parametrize("options", [{"timeout_seconds": 60}, {"time_limit": 70}, {"soft_time_limit": 60}])
def test_a_run_ended_by_a_written_limit_does_not_mention_a_default(app, options):
    task = job(app, body=failing(SoftTimeLimitExceeded), interval_seconds=60, **options)
    assert "default" not in over_the_soft_limit(task)


def test_a_run_ended_by_a_limit_of_its_call_or_app_does_not_mention_a_default(app):
    task = job(app, body=failing(SoftTimeLimitExceeded), interval_seconds=60)
    assert "default" not in over_the_soft_limit(task, timelimit=[None, 5])
    assert not default_limit(task, [5, 60])
    app.conf.orchestration_recurring_defaults = {"timeout_seconds": 60}
    other = job(app, name="shop.other", body=failing(SoftTimeLimitExceeded), interval_seconds=60)
    assert "default" not in over_the_soft_limit(other)


def test_timeout_seconds_is_the_soft_limit_and_the_hard_one_follows(app):
    task = job(app, timeout_seconds=30)
    assert (task.soft_time_limit, task.time_limit) == (30, 40)


def test_limits_of_the_configuration_count_as_written(new_app):
    hard = job(new_app(task_time_limit=300), interval_seconds=60)
    soft = job(new_app(task_soft_time_limit=200), interval_seconds=60)
    assert (hard.soft_time_limit, hard.time_limit) == (None, 300)
    assert (soft.soft_time_limit, soft.time_limit) == (200, None)


def test_a_written_timeout_wins_over_the_configuration(new_app):
    task = job(new_app(task_time_limit=300), timeout_seconds=30)
    assert (task.soft_time_limit, task.time_limit) == (30, 40)


def test_written_limits_win_over_the_recurring_default(app):
    task = job(app, interval_seconds=60, time_limit=5)
    assert (task.soft_time_limit, task.time_limit) == (None, 5)


def test_a_calls_own_limits_win(app, sent):
    job(app, timeout_seconds=30).apply_async(time_limit=5, soft_time_limit=4)
    assert sent[0]["headers"]["timelimit"] == [5, 4]


# -- schedules, for stock beat


@pytest.mark.parametrize(
    ("written", "expected"),
    [({"interval_seconds": 60}, schedule(60)), ({"schedule": crontab(hour=3)}, crontab(hour=3))],
)
def test_a_recurring_job_has_an_entry_in_the_beat_schedule(app, written, expected):
    job(app, **written)
    assert list(app.conf.beat_schedule) == ["shop.job"]
    entry = app.conf.beat_schedule["shop.job"]
    assert (entry["task"], entry["schedule"]) == ("shop.job", expected)


def test_a_users_entry_of_that_name_stays(new_app):
    mine = {"task": "shop.job", "schedule": 5, "args": (1,)}
    app = new_app(beat_schedule={"shop.job": mine, "other": {"task": "shop.other", "schedule": 1}})
    job(app, interval_seconds=60)
    assert app.conf.beat_schedule["shop.job"] == mine
    assert set(app.conf.beat_schedule) == {"shop.job", "other"}


def test_our_own_scheduler_needs_no_entry(new_app):
    app = new_app(beat_scheduler=SCHEDULER)
    job(app, interval_seconds=60)
    assert app.conf.beat_schedule == {}


# -- without a worker


@pytest.fixture
def eager_app() -> Celery:
    app = Celery("shop", broker="redis://nowhere.invalid:1/0", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    return app


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "call", [lambda task: task(), lambda task: task.apply().get(), lambda task: task.delay().get()]
)
def test_direct_and_eager_calls_never_meet_the_gate(eager_app, call):
    task = job(
        eager_app,
        bind=True,
        max_running=1,
        depends_on=["shop.never"],
        priority="high",
        body=lambda self: ("ran", self.fence),
    )
    assert call(task) == ("ran", None)


@pytest.mark.usefixtures("no_network")
def test_an_eager_call_takes_a_word_as_priority(eager_app):
    assert job(eager_app, body=lambda: "ran").apply_async(priority="high").get() == "ran"


@pytest.mark.usefixtures("no_network")
def test_an_eager_retry_works(eager_app):
    def body(self: Any) -> int:
        if self.request.retries < 2:
            raise self.retry(countdown=0)
        return self.request.retries

    assert job(eager_app, bind=True, body=body, max_running=1).delay().get() == 2


def test_there_is_no_fence_outside_of_a_worker(app):
    assert job(app).fence is None


# -- a key's template and the task's arguments


class ByClass(OrchestratedTask):
    name, key, max_running = "shop.job", "{tenant}", 1

    def run(self, tenant: str) -> None: ...


@pytest.mark.parametrize(
    ("key", "body", "bind"),
    [
        ("{tenant}", lambda tenant: None, False),
        ("{tenant}", lambda self, tenant="x": None, True),
        ("{tenant}", lambda *, tenant: None, False),
        ("{tenant}", lambda **kwargs: None, False),
        ("{0}-{tenant}", lambda number, /, tenant: None, False),
        ("{1}", lambda a, b=2: None, False),
        ("{7}", lambda *args: None, False),
        (lambda *args, **kwargs: "x", lambda tenant: None, False),
    ],
)
def test_a_key_of_arguments_that_the_task_takes_is_good(app, key, body, bind):
    assert job(app, body, key=key, max_running=1, bind=bind).mistake is None


def test_a_key_of_arguments_that_a_class_based_task_takes_is_good(app):
    assert app.register_task(ByClass()).mistake is None


@pytest.mark.parametrize(
    ("key", "body", "options", "message"),
    [
        ("{tennant}", lambda tenant, page: None, {}, "which is no argument of the task, did you mean 'tenant'?"),
        ("{tennant}", lambda self, tenant: None, {"bind": True}, "did you mean 'tenant'?"),
        ("{tennant}", lambda tenant: None, {"autoretry_for": (KeyError,)}, "did you mean 'tenant'?"),
        ("{self}", lambda self, tenant: None, {"bind": True}, "which is no argument of the task; it takes tenant"),
        ("{1}", lambda self, tenant, *, page: None, {"bind": True}, "'1', which is no argument of the task; it takes"),
        ("{x}", lambda: None, {}, "it takes none"),
    ],
)
def test_a_key_of_other_arguments_is_refused(app, key, body, options, message):
    """A worker, a beat, doctor and a caller of the job report it."""
    task = job(app, body, key=key, max_running=1, **options)
    with pytest.raises(ConfigurationError) as caught:
        jobs_of(app)
    assert str(caught.value).startswith(f"job 'shop.job': key '{key}' names ")
    assert message in str(caught.value)
    with pytest.raises(ConfigurationError):
        task.delay()

"""Messages of RabbitMQ, at Celery's default settings: a busy worker holds none that another worker could run."""

from __future__ import annotations

import json
import signal

import pytest

from celery_orchestration.operate import Orchestration
from support.wait import stays, until

APP = "support.apps.fetching"
POOLS = ["prefork", "threads", "gevent", "solo"]
STRICT = {"TEST_CONF": json.dumps({"orchestration_strict_priority": True})}


@pytest.fixture
def stage(stage_on, rabbitmq_broker):
    return stage_on(rabbitmq_broker, APP)


@pytest.fixture
def strict(stage_on, rabbitmq_broker):
    return stage_on(rabbitmq_broker, APP, env=STRICT)


def queued(stage, queue="celery"):
    """Messages that no worker has fetched."""
    with stage.app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def done(stage, results, timeout=30):
    ids = {result.id for result in results}
    until(lambda: ids <= {span.run for span in stage.history.spans() if span.end}, timeout, "all have run")


def reads_ahead(stage, task):
    """Has executed so many short tasks that its worker reads ahead, and acknowledged the last one."""
    done(stage, [stage.send(task) for _ in range(60)])
    inspect = stage.app.control.inspect(timeout=1)
    until(lambda: list((inspect.active() or {}).values()) == [[]], message="the worker is idle")


def order(stage, *kinds):
    """The tasks in the order in which they started."""
    names = {f"{APP}.{kind}": kind for kind in kinds}
    return [names[event.job] for event in stage.history.started() if event.job in names]


@pytest.mark.parametrize("held", ["held", "held_late", "held_job"])
@pytest.mark.parametrize("pool", POOLS)
def test_short_runs_do_not_wait_behind_a_long_one_while_another_worker_is_idle(stage, pool, held):
    stage.worker(pool=pool, concurrency=1)
    long = stage.send(getattr(stage.jobs, held), "long")
    stage.started(long)
    stage.worker(pool=pool, concurrency=1)
    kinds = [stage.jobs.plain, stage.jobs.late, stage.jobs.job]
    short = [stage.send(kinds[n % 3], 0.02) for n in range(10)]
    done(stage, short, timeout=5)
    assert not stage.starts(long)[0].end
    stage.release("long")
    done(stage, [long])


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_busy_worker_leaves_messages_in_their_queue(stage, pool):
    stage.worker(pool=pool, concurrency=2)
    for n in range(2):
        stage.started(stage.send(stage.jobs.held, f"all-{n}"))
    more = [stage.send(stage.jobs.held, f"all-{n}") for n in range(8)]
    stays(lambda: queued(stage) == 8, 1, "nothing is fetched that cannot begin")
    for n in range(8):
        stage.release(f"all-{n}")
    done(stage, more)


@pytest.mark.parametrize("pool", POOLS)
def test_under_strict_priority_critical_runs_start_before_all_low_ones(strict, pool):
    strict.worker(pool=pool, concurrency=1)
    strict.started(strict.send(strict.jobs.held_job, "it"))
    low = [strict.send(strict.jobs.low, 0.01) for _ in range(20)]
    critical = [strict.send(strict.jobs.critical, 0.01) for _ in range(10)]
    strict.release("it")
    done(strict, [*low, *critical])
    assert order(strict, "low", "critical") == ["critical"] * 10 + ["low"] * 20


@pytest.mark.parametrize("pool", POOLS)
def test_under_strict_priority_critical_runs_do_not_wait_in_a_busy_worker(strict, pool):
    strict.worker(pool=pool, concurrency=1)
    strict.started(strict.send(strict.jobs.held_job, "it"))
    strict.worker(pool=pool, concurrency=1)
    critical = [strict.send(strict.jobs.critical, 0.02) for _ in range(8)]
    done(strict, critical, timeout=5)
    strict.release("it")


def test_an_app_that_fetches_as_celery_does_keeps_its_prefetch_count(stage_on, rabbitmq_broker):
    stage = stage_on(rabbitmq_broker, APP, env={"TEST_CONF": json.dumps({"orchestration_fetch": "celery"})})
    stage.worker(concurrency=1)
    stage.started(stage.send(stage.jobs.held, "it"))
    for _ in range(8):
        stage.send(stage.jobs.plain)
    until(lambda: queued(stage) == 4, message="four are prefetched")
    stage.release("it")


def test_short_tasks_are_read_ahead_up_to_celerys_count_and_no_further(stage):
    worker = stage.worker(concurrency=1)
    reads_ahead(stage, stage.jobs.plain)
    worker.signal(signal.SIGSTOP)  # its child continues
    for _ in range(10):
        stage.send(stage.jobs.plain)
    stays(lambda: queued(stage) == 10 - 4, 0.5, "four messages, Celery's prefetch count, are on their way")
    worker.signal(signal.SIGCONT)
    until(lambda: len(stage.history.spans()) == 70)


def test_status_explain_and_cancel_know_a_run_that_a_worker_has_fetched(stage):
    """It has read ahead because its tasks were short, and then a long one begins."""
    worker = stage.worker(concurrency=1)
    reads_ahead(stage, stage.jobs.job)
    worker.signal(signal.SIGSTOP)
    held = stage.send(stage.jobs.held_job, "it")
    first, second, third = (stage.send(stage.jobs.job) for _ in range(3))
    until(lambda: queued(stage) == 0, message="all are on their way to the worker")
    worker.signal(signal.SIGCONT)
    stage.started(held)
    operate = Orchestration(stage.app)
    [shown] = until(lambda: [one for one in operate.status().workers if one.fetched == 3], message="status counts them")
    assert f"was fetched by {shown.name}, and waits for a free slot there" in operate.explain(first.id).root.text
    assert operate.cancel(second.id).state == "fetched"
    stage.release("it")
    done(stage, [first, third])
    assert second.get(timeout=10, propagate=False).__class__.__name__ == "TaskRevokedError"
    assert not stage.starts(second)


def test_a_worker_that_may_not_have_a_queue_of_its_own_prefetches_as_celery_does(stage):
    """It logs that, and works."""
    server, vhost = stage.broker.rabbit, stage.broker.broker_url.rpartition("/")[2]
    server.permit(vhost, configure=r"^(?!.*\.celery\.placeholder$).*")
    worker = stage.worker(concurrency=1)
    done(stage, [stage.send(stage.jobs.job), stage.send(stage.jobs.plain)])
    assert "Messages are prefetched as Celery does it" in worker.log()
    [check] = [one for one in Orchestration(stage.app).doctor().checks if one.name == "prefetch"]
    assert "up to 4 messages for each slot" in check.found


@pytest.mark.parametrize("strict", [False, True])
def test_with_quorum_queues_the_worker_prefetches_as_celery_does(stage_on, rabbitmq_broker, strict):
    """They have no count for a whole channel, and doctor explains the effect."""
    conf = {"task_default_queue_type": "quorum", "orchestration_strict_priority": strict}
    stage = stage_on(rabbitmq_broker, APP, env={"TEST_CONF": json.dumps(conf)})
    worker = stage.worker(concurrency=1)
    done(stage, [stage.send(stage.jobs.job), stage.send(stage.jobs.plain), stage.send(stage.jobs.low)])
    assert "Messages are prefetched as Celery does it: quorum queues" in worker.log()
    [check] = [one for one in Orchestration(stage.app).doctor().checks if one.name == "prefetch"]
    assert ("one message more than they have slots" if strict else "up to 4 messages for each slot") in check.found


def test_a_pool_that_grows_gets_more_messages_and_one_that_has_a_new_queue_serves_it(stage):
    worker = stage.worker(concurrency=1)
    stage.started(stage.send(stage.jobs.held, "it"))
    more = [stage.send(stage.jobs.held, "it") for _ in range(2)]
    elsewhere = stage.send(stage.jobs.plain, queue="elsewhere")
    stays(lambda: not any(map(stage.starts, more)), 0.5)
    stage.app.control.pool_grow(2, destination=[worker.hostname])
    for result in more:
        stage.started(result)
    stage.app.control.add_consumer("elsewhere", destination=[worker.hostname])
    stage.release("it")
    done(stage, [elsewhere, *more])


@pytest.mark.parametrize("task", ["plain", "late", "job"])
def test_messages_that_a_stopping_worker_has_not_begun_go_back_at_once(stage, task):
    first = stage.worker(concurrency=1)
    short = getattr(stage.jobs, task)
    reads_ahead(stage, short)
    first.signal(signal.SIGSTOP)
    held = stage.send(stage.jobs.held_late, "late")
    rest = [stage.send(short) for _ in range(3)]
    until(lambda: queued(stage) == 0, message="all are on their way to the worker")
    first.signal(signal.SIGCONT)
    stage.started(held)
    first.signal(signal.SIGTERM)
    until(lambda: queued(stage) == 3, message="all but the one that runs are back")
    stage.worker(concurrency=1)
    done(stage, rest)
    assert not stage.starts(held)[0].end
    stage.release("late")
    until(lambda: not first.running)
    done(stage, [held])
    stage.ran_once([held, *rest])
    assert queued(stage) == 0


def test_messages_of_a_killed_connection_are_not_lost(stage):
    """The count is also right on the next connection."""
    worker = stage.worker(concurrency=1)
    held = stage.send(stage.jobs.held, "it")
    stage.started(held)
    # The reply comes after the acknowledgement, without which the broker would deliver `held` again.
    assert stage.app.control.ping(destination=[worker.hostname], timeout=10)
    stage.broker.rabbit.close_connections()
    until(lambda: worker.log().count("Connected to amqp") == 2)
    more = [stage.send(stage.jobs.plain) for _ in range(5)]
    stays(lambda: queued(stage) == 5, 1, "nothing is fetched that cannot begin")
    stage.release("it")
    done(stage, more)

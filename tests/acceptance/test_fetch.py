"""Messages of a Redis broker, at Celery's default settings: messages that a worker has fetched are never lost with
it."""

from __future__ import annotations

import json
import signal
from itertools import pairwise

import pytest
from celery import Celery
from kombu.transport import redis as kombu_redis

from celery_orchestration.node.stores import Names, Stores
from celery_orchestration.operate import Orchestration
from support.wait import stays, until

APP = "support.apps.fetching"
NAMES = Names.of("fetching")


@pytest.fixture
def stage(stage_on, redis_broker):
    return stage_on(redis_broker, APP)


def stores_of(stage):
    return Stores(stage.broker.redis.client(0, decode_responses=False), NAMES)


def fetched(stage):
    """Messages in all stores."""
    return sum(count for _, count in stores_of(stage).counts())


def queued(stage, queue="celery"):
    return stage.broker.redis.client(0).llen(queue)


def runs(stage):
    return [span.run for span in stage.history.spans()]


def done(stage, results, timeout=30):
    ids = {result.id for result in results}
    until(lambda: ids <= {span.run for span in stage.history.spans() if span.end}, timeout, "all have run")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_messages_that_a_killed_worker_had_fetched_run_elsewhere_in_order_after_its_lease(stage, pool):
    """24 messages on 4 slots; then a second worker starts."""
    first = stage.worker(pool=pool, concurrency=4, options=["--prefetch-multiplier", "4"])
    blocking = [stage.send(stage.jobs.held_late, f"never-{n}") for n in range(1 if pool == "solo" else 4)]
    for result in blocking:
        stage.started(result)
    rest = [stage.send([stage.jobs.plain, stage.jobs.late, stage.jobs.job][n % 3]) for n in range(20)]
    first.kill()
    stage.worker(concurrency=4)
    for n in range(4):
        stage.release(f"never-{n}")
    done(stage, [*blocking, *rest])
    ran = runs(stage)
    assert [ran.count(result.id) for result in rest] == [1] * 20
    assert [ran.count(result.id) for result in blocking] == [2] * len(blocking)
    until(lambda: fetched(stage) == 0)


@pytest.mark.parametrize("by_name", [False, True], ids=["by its task", "by name"])
def test_a_job_whose_message_comes_back_is_the_same_run(stage, by_name):
    """With acks_late the message is in the dead worker's store, and the ledger has the run: it starts once more.
    Services that only know the job's name send its messages without an id."""
    first = stage.worker(concurrency=1)
    if by_name:
        caller = Celery(broker=stage.app.conf.broker_url, backend=stage.app.conf.result_backend, set_as_current=False)
        result = caller.send_task(stage.jobs.held_late_job.name, ("go",))
        caller.close()
    else:
        result = stage.send(stage.jobs.held_late_job, "go")
    stage.started(result)
    assert fetched(stage) == 1, "it is not acknowledged"
    second = stage.worker(concurrency=4)
    done(stage, [stage.send(stage.jobs.plain) for _ in range(5)])  # it counts its messages by itself
    first.kill()
    until(lambda: runs(stage).count(result.id) == 2, 30, "it runs again")
    until(lambda: f"knows this call of task id {result.id} already" in second.log(), 30)
    stage.release("go")
    done(stage, [result])
    until(lambda: fetched(stage) == 0)
    stays(lambda: runs(stage).count(result.id) == 2, 1)
    history = Orchestration(stage.app).history(stage.jobs.held_late_job.name)
    assert [run.id for run in history] == [result.id]


def test_read_ahead_messages_of_a_killed_worker_go_back_in_order(stage):
    """It has read ahead because its tasks were short, and then a long one begins."""
    worker = stage.worker(concurrency=1, options=["--prefetch-multiplier", "16"])
    done(stage, [stage.send(stage.jobs.plain) for _ in range(60)])
    worker.signal(signal.SIGSTOP)
    rest = [stage.send(stage.jobs.late, 0.1) for _ in range(30)]
    worker.signal(signal.SIGCONT)
    until(lambda: fetched(stage) > 2, message="it reads ahead")
    worker.kill()
    sweeper = stage.worker(concurrency=1, queues=["elsewhere"])
    until(lambda: stores_of(stage).all() and fetched(stage) == 0, 30, "the sweeper has given them back")
    stage.worker(concurrency=1)
    done(stage, rest)
    ran = [run for run in runs(stage) if run in {result.id for result in rest}]
    assert list(dict.fromkeys(ran)) == [result.id for result in rest]
    assert len(ran) <= 31  # the one that was running, again
    assert "had fetched and not begun go back to their queues" in sweeper.log()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_an_idle_worker_gets_a_message_at_once_and_leaves_nothing_behind(stage, pool):
    worker = stage.worker(pool=pool, concurrency=2)
    for task in (stage.jobs.plain, stage.jobs.late, stage.jobs.job, stage.jobs.rejecting):
        done(stage, [stage.send(task)])
        until(lambda: fetched(stage) == 0, message="acknowledged")
    until(lambda: len(stage.history.spans()) == 5, message="the rejected one again")
    until(lambda: fetched(stage) == 0)
    assert "Redis does not report new messages" not in worker.log()
    worker.stop()
    assert stores_of(stage).all() == []
    assert queued(stage) == 0


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_slot_that_comes_free_gets_the_next_message_at_once(stage, pool):
    """Ten tasks of unknown duration, one after the other."""
    stage.worker(pool=pool, concurrency=1)
    done(stage, [stage.send(stage.jobs.plain)])
    results = [stage.send(stage.jobs.late, 0.01) for _ in range(10)]
    done(stage, results)
    spans = [span for span in stage.history.spans() if span.run in {result.id for result in results}]
    waits = sorted(b.start.monotonic - a.end.monotonic for a, b in pairwise(spans))
    assert waits[len(waits) // 2] < 0.5, "no timer had to come first"


def test_a_long_run_is_not_delivered_again_however_short_the_visibility_timeout_is(stage_on, redis_broker):
    conf = {"broker_transport_options": {"visibility_timeout": 1, "unacked_restore_interval": 1}}
    stage = stage_on(redis_broker, APP, env={"TEST_CONF": json.dumps(conf)})
    stage.worker(concurrency=2)
    stage.worker(concurrency=2)
    results = [stage.send(stage.jobs.late, 6), stage.send(stage.jobs.job, 6)]
    done(stage, results)
    assert sorted(runs(stage)) == sorted(result.id for result in results)


def test_short_runs_do_not_wait_behind_a_long_one_while_another_worker_is_idle(stage):
    stage.worker(concurrency=1)
    long = stage.send(stage.jobs.held, "long")
    stage.started(long)
    stage.worker(concurrency=1)
    short = [stage.send(stage.jobs.plain, 0.05) for _ in range(10)]
    done(stage, short)
    assert fetched(stage) == 0
    stage.release("long")


def test_a_busy_worker_leaves_messages_in_their_queue(stage):
    """So that the length of the queue is true."""
    stage.worker(concurrency=2)
    for n in range(2):
        stage.started(stage.send(stage.jobs.held, f"all-{n}"))
    for n in range(8):
        stage.send(stage.jobs.held, f"all-{n}")
    stays(lambda: queued(stage) == 8 and fetched(stage) == 0, 1, "nothing is fetched that cannot begin")
    for n in range(8):
        stage.release(f"all-{n}")


def test_messages_that_a_stopping_worker_has_not_begun_go_back_at_once(stage):
    first = stage.worker(concurrency=1, options=["--prefetch-multiplier", "8"])
    done(stage, [stage.send(stage.jobs.plain) for _ in range(40)])  # short: it reads ahead
    first.signal(signal.SIGSTOP)
    held = stage.send(stage.jobs.held_late, "late")
    rest = [stage.send(stage.jobs.plain) for _ in range(8)]
    first.signal(signal.SIGCONT)
    stage.started(held)
    first.signal(signal.SIGTERM)
    until(lambda: fetched(stage) == 1, message="all but the one that runs are back")
    stage.worker(concurrency=1)
    done(stage, rest)
    stage.release("late")
    until(lambda: not first.running)
    done(stage, [held])
    assert sorted(runs(stage)[40:]) == sorted(result.id for result in [held, *rest])
    until(lambda: fetched(stage) == 0)


def test_a_worker_that_stood_still_past_its_lease_drops_what_it_had_not_begun(stage):
    first = stage.worker(concurrency=1, options=["--prefetch-multiplier", "8"])
    done(stage, [stage.send(stage.jobs.plain) for _ in range(40)])
    first.signal(signal.SIGSTOP)
    held = stage.send(stage.jobs.held, "it")
    rest = [stage.send(stage.jobs.plain, 0.1) for _ in range(6)]
    first.signal(signal.SIGCONT)
    stage.started(held)
    until(lambda: fetched(stage) > 1, message="it has read ahead")
    first.signal(signal.SIGSTOP)  # its child continues
    stage.release("it")
    second = stage.worker(concurrency=1)
    done(stage, rest)
    first.signal(signal.SIGCONT)
    until(lambda: "for longer than its lease" in first.log())
    last = [stage.send(stage.jobs.plain) for _ in range(4)]
    second.stop()
    done(stage, last)
    assert sorted(runs(stage)[40:]) == sorted(result.id for result in [held, *rest, *last])


@pytest.mark.skipif(
    not hasattr(kombu_redis.Channel, "unacked_restore_interval"), reason="kombu restores every 100 s, before 5.7"
)
def test_fleets_of_stock_and_reliable_workers_give_back_each_their_own_way(stage_on, redis_broker):
    conf = json.dumps({"broker_transport_options": {"visibility_timeout": 2, "unacked_restore_interval": 1}})
    stage = stage_on(redis_broker, APP, env={"TEST_CONF": conf})
    stock = stage.worker(concurrency=1, env={"CELERY_ORCHESTRATION_FETCH": "celery"})
    blocked = stage.send(stage.jobs.held, "never")
    stage.started(blocked)
    theirs = [stage.send(stage.jobs.plain) for _ in range(3)]
    until(lambda: queued(stage) == 0, message="prefetched")
    ours = stage.worker(concurrency=1)
    stock.kill()
    done(stage, theirs, 60)  # by kombu's own restoring, which continues
    ours.signal(signal.SIGSTOP)
    until(lambda: stores_of(stage).all())
    mine = [stage.send(stage.jobs.plain) for _ in range(3)]
    ours.signal(signal.SIGCONT)
    ours.kill()
    stage.worker(concurrency=1, env={"CELERY_ORCHESTRATION_FETCH": "celery"})
    done(stage, mine, 60)
    until(lambda: stores_of(stage).all() == [])


def test_redis_that_forgets_the_scripts_or_everything_is_fetched_from_again(stage):
    worker = stage.worker(concurrency=2)
    redis = stage.broker.redis.client(0)
    done(stage, [stage.send(stage.jobs.plain)])
    redis.script_flush()
    done(stage, [stage.send(stage.jobs.plain) for _ in range(5)])
    redis.flushall()
    results = [stage.send(stage.jobs.plain) for _ in range(5)]
    done(stage, results, 60)
    assert worker.running


@pytest.mark.parametrize(
    "bad",
    [
        "hello",
        "{}",
        "null",
        '{"body": "", "properties": []}',
        '{"body": 5, "properties": {"body_encoding": "base64"}}',
        '{"body": "!a", "properties": {"delivery_tag": "1", "body_encoding": "base64"}}',
    ],
)
def test_an_unreadable_entry_of_a_queue_is_dropped_with_its_text_and_stops_nobody(stage, bad):
    """It must not go back: every worker would fetch it again at once."""
    worker = stage.worker(concurrency=1)
    stage.broker.redis.client(0).lpush("celery", bad)
    done(stage, [stage.send(task) for task in (stage.jobs.plain, stage.jobs.job)])
    until(lambda: fetched(stage) == 0)
    assert queued(stage) == 0
    assert "no message" in worker.log()
    assert bad in worker.log()
    assert "lost" not in worker.log(), "it did not have to connect again"


def test_a_message_without_a_delivery_tag_runs_once(stage):
    """kombu gives each message a delivery tag; clients in other languages may not."""
    worker = stage.worker(concurrency=2)
    redis = stage.broker.redis.client(0)
    worker.signal(signal.SIGSTOP)
    tasks = (stage.jobs.plain, stage.jobs.late, stage.jobs.job, stage.jobs.exclusive)
    results = [stage.send(task) for task in tasks]
    for _ in results:
        message = json.loads(redis.rpop("celery"))
        del message["properties"]["delivery_tag"]
        redis.lpush("celery", json.dumps(message))
    worker.signal(signal.SIGCONT)
    done(stage, results)
    stage.ran_once(results)
    until(lambda: fetched(stage) == 0)


def test_release_leaves_no_store(stage):
    worker = stage.worker(concurrency=1)
    stage.started(stage.send(stage.jobs.held_late, "never"))
    worker.kill()
    assert fetched(stage) == 1
    Orchestration(stage.app).release_all()
    assert stores_of(stage).all() == []
    assert queued(stage) == 1

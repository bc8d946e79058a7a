"""Celery's settings and remote control have the same effect with reliable fetch."""

from __future__ import annotations

import json

import pytest
from kombu import Exchange, Queue

from celery_orchestration.node.stores import Names, Stores
from support.wait import stays, until

APP = "support.apps.fetching"


@pytest.fixture
def stage(stage_on, redis_broker):
    return stage_on(redis_broker, APP)


def fetched(stage):
    client = stage.broker.redis.client(0, decode_responses=False)
    return sum(count for _, count in Stores(client, Names.of("fetching")).counts())


def queued(stage, queue="celery"):
    return stage.broker.redis.client(0).llen(queue)


def done(stage, results, timeout=60):
    ids = {result.id for result in results}
    until(lambda: ids <= {span.run for span in stage.history.spans() if span.end}, timeout, "all have run", poll=0.1)


def test_disabled_prefetch(stage_on, redis_broker):
    conf = {"worker_disable_prefetch": True}
    stage = stage_on(redis_broker, APP, env={"TEST_CONF": json.dumps(conf)})
    stage.worker(concurrency=2)
    results = [stage.send(stage.jobs.held_late, f"h{n}") for n in range(5)]
    for result in results[:2]:
        stage.started(result)
    stays(lambda: queued(stage) == 3, 1, "only what runs was fetched")
    for n in range(5):
        stage.release(f"h{n}")
    done(stage, results)


def test_an_autoscaled_worker_grows_by_what_it_fetches(stage):
    stage.worker(concurrency=4, options=["--autoscale", "4,1"])
    for n, result in enumerate([stage.send(stage.jobs.held, f"h{n}") for n in range(4)]):
        stage.started(result, timeout=40)
        assert n < 4
    for n in range(4):
        stage.release(f"h{n}")


def test_consumers_are_added_and_cancelled(stage):
    worker = stage.worker(concurrency=1)
    control = stage.app.control
    assert control.add_consumer("extra", reply=True, destination=[worker.hostname], timeout=10)
    done(stage, [stage.send(stage.jobs.plain, queue="extra")])
    assert control.cancel_consumer("extra", reply=True, destination=[worker.hostname], timeout=10)
    left = stage.send(stage.jobs.plain, queue="extra")
    done(stage, [stage.send(stage.jobs.plain)])
    assert queued(stage, "extra") == 1
    assert stage.starts(left) == []
    assert control.add_consumer("extra", reply=True, destination=[worker.hostname], timeout=10)
    done(stage, [left])


def test_a_worker_that_is_left_with_a_broadcast_queue_alone(stage):
    """Its messages come through Redis's pub/sub: there is no list to fetch from."""
    worker = stage.worker(concurrency=1)
    control, to = stage.app.control, {"reply": True, "destination": [worker.hostname], "timeout": 10}
    everyone = Queue("everyone", Exchange("everyone", type="fanout"), routing_key="everyone")
    done(stage, [stage.send(stage.jobs.plain)])
    redis = stage.broker.redis.client(0)
    patterns = redis.pubsub_numpat()
    assert control.add_consumer("everyone", exchange="everyone", exchange_type="fanout", routing_key="everyone", **to)
    until(lambda: redis.pubsub_numpat() > patterns, message="it has subscribed")
    done(stage, [stage.send(task, queue=everyone) for task in (stage.jobs.plain, stage.jobs.late)])
    for queue in control.inspect([worker.hostname]).active_queues()[worker.hostname]:
        if queue["name"] != "everyone":
            assert control.cancel_consumer(queue["name"], **to)
    left = stage.send(stage.jobs.plain)
    done(stage, [stage.send(stage.jobs.plain, queue=everyone)])
    assert stage.starts(left) == []
    assert control.add_consumer("celery", **to)
    done(stage, [left])
    assert "lost" not in worker.log()


def test_revoked_and_rate_limited_tasks(stage):
    worker = stage.worker(concurrency=1)
    limited = [stage.send(stage.jobs.limited) for _ in range(3)]
    done(stage, limited[:1])
    done(stage, [stage.send(stage.jobs.plain)])  # is not delayed by them
    assert stage.starts(limited[2]) == []
    stage.app.control.revoke(limited[2].id, reply=True, destination=[worker.hostname], timeout=10)
    done(stage, limited[:2])
    until(lambda: limited[2].state == "REVOKED", 20)
    until(lambda: fetched(stage) == 0, message="all are acknowledged")
    assert len(stage.history.spans()) == 3


def test_a_lost_connection_and_a_reduced_prefetch_count(stage):
    """Celery reduces it after a lost connection until the running tasks have ended."""
    stage.worker(concurrency=2, options=["--prefetch-multiplier", "2"])
    held = stage.send(stage.jobs.held, "it")
    stage.started(held)
    for _ in range(3):
        stage.broker.redis.client(0).client_kill_filter(_type="normal", skipme=True)
        done(stage, [stage.send([stage.jobs.plain, stage.jobs.job][n % 2]) for n in range(20)])
    stage.release("it")
    done(stage, [held])
    until(lambda: fetched(stage) == 0)
    spans = [span.run for span in stage.history.spans()]
    assert spans.count(held.id) == 1

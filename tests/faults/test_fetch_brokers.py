"""Reliable fetch on every kind of Redis broker, and while it breaks."""

from __future__ import annotations

import json
import signal
import time

import pytest
import redis

from celery_orchestration.node.stores import Names, Stores
from support.processes import ManagedProcess, free_port
from support.servers import redis_binary
from support.wait import until
from support.workers import Broker, environment

APP = "support.apps.fetching"
#: The load of one test: enough that a kill interrupts something.
LOAD = 120


def stores_of(client, prefix=""):
    return Stores(client, Names.of("fetching", prefix))


def done(stage, results, timeout=60):
    ids = {result.id for result in results}
    until(lambda: ids <= {span.run for span in stage.history.spans() if span.end}, timeout, "all have run", poll=0.1)


def send_some(stage, count=LOAD):
    tasks = (stage.jobs.late, stage.jobs.job)
    return [stage.send(tasks[n % 2], 0.01) for n in range(count)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_workers_are_killed_again_and_again_under_load_and_nothing_is_lost(stage_on, redis_broker, pool):
    stage = stage_on(redis_broker, APP, env={"TEST_CONF": json.dumps({"orchestration_on_crash": "requeue"})})
    survivor = stage.worker(concurrency=1)
    results = []

    def is_in_the_middle():
        return len(stage.history.spans()) > len(results) - 50

    for _ in range(4):
        victim = stage.worker(pool=pool, concurrency=2)
        results += send_some(stage, 60)
        until(is_in_the_middle, 30)
        victim.kill()
    done(stage, results)
    assert survivor.running
    client = redis_broker.redis.client(0, decode_responses=False)
    until(lambda: sum(count for _, count in stores_of(client).counts()) == 0, 20)


def test_a_broker_that_is_killed_and_restarted_under_load_loses_nothing(stage_on, redis_factory):
    server = redis_factory(appendonly=True)
    broker = Broker("redis", server.url(0), server.url(1), server.url(0), server)
    stage = stage_on(broker, APP, env={"TEST_CONF": json.dumps({"orchestration_on_crash": "requeue"})})
    stage.worker(concurrency=2)
    results = send_some(stage)
    until(lambda: len(stage.history.spans()) > 20)
    server.kill()
    time.sleep(4)  # longer than a lease
    server.start()
    done(stage, results)
    until(lambda: sum(n for _, n in stores_of(server.client(0, decode_responses=False)).counts()) == 0, 20)


@pytest.mark.parametrize("away", ["broker", "ledger"])
def test_broker_and_ledger_on_two_servers_either_away_for_longer_than_a_lease(stage_on, redis_factory, away):
    """Nothing is taken from a living worker, and nothing is lost."""
    servers = {name: redis_factory(name=name, appendonly=True) for name in ("broker", "ledger")}
    ledger = servers["ledger"]
    broker = Broker("redis", servers["broker"].url(0), ledger.url(1), ledger.url(0), ledger)
    env = {"CELERY_ORCHESTRATION_REDIS_URL": ledger.url(0)}
    stage = stage_on(broker, APP, env=env)
    workers = [stage.worker(concurrency=1) for _ in range(2)]
    held = stage.send(stage.jobs.held_late, "it")
    stage.started(held)
    servers[away].signal(signal.SIGSTOP)
    time.sleep(5)
    servers[away].signal(signal.SIGCONT)
    rest = send_some(stage, 20)
    done(stage, rest)
    stage.release("it")
    done(stage, [held])
    assert len(stage.starts(held)) == 1
    workers[0].kill()
    done(stage, send_some(stage, 20))


def test_a_ledger_whose_connections_died_without_a_word_takes_nothing_from_under_a_living_worker(
    stage_on, redis_factory, proxy, redis_server
):
    """The broker answers; the ledger's connections are half open for longer than a lease."""
    server = redis_factory(name="broker")
    stage = stage_on(
        Broker("redis", server.url(0), redis_server.url(1), redis_server.url(0), redis_server),
        APP,
        env={"CELERY_ORCHESTRATION_REDIS_URL": redis_server.url(0)},
    )
    cut_off = stage.worker(concurrency=2, env={"CELERY_ORCHESTRATION_REDIS_URL": proxy.url(0)})
    plain, late = stage.send(stage.jobs.held, "plain"), stage.send(stage.jobs.held_late, "late")
    for result in (plain, late):
        stage.started(result)
    stage.worker(concurrency=1)
    proxy.silence()
    results = send_some(stage, 20)
    done(stage, results)
    for name in ("plain", "late"):
        stage.release(name)
    done(stage, [plain, late])
    assert [len(stage.starts(one)) for one in (plain, late)] == [1, 1]
    more = send_some(stage, 20)
    done(stage, more)
    stage.ran_once([*results, *more])
    assert cut_off.running


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_jobs_that_a_worker_had_fetched_when_it_stood_still_past_its_lease_run_elsewhere_once(
    stage_on, redis_broker, pool
):
    """The whole worker stands still. (Plain tasks are already in these execution pools: docs/fetch.md.)"""
    stage = stage_on(redis_broker, APP)
    client = redis_broker.redis.client(0, decode_responses=False)
    first = stage.worker(pool=pool, concurrency=1, options=["--prefetch-multiplier", "8"])
    done(stage, [stage.send(stage.jobs.job) for _ in range(40)])
    first.signal(signal.SIGSTOP)
    held = stage.send(stage.jobs.held_job, "it")
    rest = [stage.send(stage.jobs.job, 0.1) for _ in range(6)]
    first.signal(signal.SIGCONT)
    stage.started(held)
    until(lambda: sum(count for _, count in stores_of(client).counts()) > 1, message="it has read ahead")
    first.signal(signal.SIGSTOP)
    second = stage.worker(concurrency=1)
    done(stage, rest)
    first.signal(signal.SIGCONT)
    stage.release("it")
    until(lambda: "for longer than its lease" in first.log())
    second.stop()
    last = [stage.send(stage.jobs.job) for _ in range(4)]
    done(stage, last)
    stage.ran_once([*rest, *last])


def test_a_global_keyprefix_is_before_every_key(stage_on, redis_broker):
    conf = {"broker_transport_options": {"global_keyprefix": "team-a:"}}
    stage = stage_on(redis_broker, APP, env={"TEST_CONF": json.dumps(conf)})
    first = stage.worker(concurrency=1)
    done(stage, send_some(stage, 10))
    held = stage.send(stage.jobs.held_late, "it")
    stage.started(held)
    client = redis_broker.redis.client(0, decode_responses=False)
    [(store, count)] = [one for one in stores_of(client, "team-a:").counts() if one[1]]
    assert (store.name, count) == (first.hostname, 1)
    assert all(key.startswith(b"team-a:") for key in client.scan_iter())
    first.kill()
    stage.worker(concurrency=1)
    stage.started(held, 2)
    stage.release("it")
    done(stage, [held])


def test_where_redis_refuses_to_track_keys_the_worker_polls_and_says_so(stage_on, redis_server):
    may = {"commands": ["+@all", "-client|tracking"], "keys": ["*"], "channels": ["*"]}
    redis_server.client(0).acl_setuser("worker", enabled=True, passwords=["+secret"], **may)
    url = f"redis://worker:secret@127.0.0.1:{redis_server.port}/0"
    stage = stage_on(Broker("redis", url, redis_server.url(1), redis_server.url(0), redis_server), APP)
    worker = stage.worker(concurrency=1)
    done(stage, send_some(stage, 10))
    assert worker.log().count("it asks ten times a second") == 1


def test_a_connection_that_died_without_a_word_is_noticed(stage_on, redis_server, proxy):
    conf = {"broker_transport_options": {"health_check_interval": 3}}
    broker = Broker("redis", redis_server.url(0), redis_server.url(1), redis_server.url(0), redis_server)
    stage = stage_on(broker, APP, env={"TEST_CONF": json.dumps(conf)})
    env = {"CELERY_ORCHESTRATION_REDIS_URL": redis_server.url(0)}
    # Celery's heartbeats would wait forever on their own connection: socket_timeout prevents that.
    stage.worker(concurrency=1, broker_url=proxy.url(0), env=env, options=["--without-heartbeat"])
    done(stage, send_some(stage, 4))
    proxy.silence()
    done(stage, send_some(stage, 4))


class Sentinels:
    """A master, a replica and three sentinels that monitor them."""

    def __init__(self, redis_factory, directory, reported):
        self.servers = [redis_factory(name=name, appendonly=True) for name in ("one", "two")]
        self.servers[1].client(0).replicaof("127.0.0.1", self.servers[0].port)
        self.processes, self.ports = [], []
        for number in range(3):
            port = free_port()
            config = directory / f"sentinel{number}.conf"
            config.write_text(
                f"port {port}\nbind 127.0.0.1\nsentinel monitor mymaster 127.0.0.1 {self.servers[0].port} 2\n"
                "sentinel down-after-milliseconds mymaster 3000\nsentinel failover-timeout mymaster 5000\n"
            )
            command = [redis_binary(), str(config), "--sentinel"]
            process = ManagedProcess(f"sentinel{number}", command, env=environment(), directory=directory)
            reported(process)
            process.start()
            self.processes.append(process)
            self.ports.append(port)
        until(self._is_ready, 20, "the sentinels know each other and the replica")

    def _is_ready(self):
        for port in self.ports:
            try:
                known = redis.Redis(port=port, decode_responses=True).sentinel_master("mymaster")
            except redis.RedisError:
                return False
            if (known["num-other-sentinels"], known["num-slaves"]) != (2, 1):
                return False
        return True

    def name_as_master(self, server):
        """Whether clients get this server from any sentinel: a sentinel that takes a slow server for dead names
        none."""
        for port in self.ports:
            known = redis.Redis(port=port, decode_responses=True).sentinel_master("mymaster")
            if (known["port"], known["flags"]) != (server.port, "master"):
                return False
        return True

    @property
    def url(self):
        return ";".join(f"sentinel://127.0.0.1:{port}/0" for port in self.ports)


def is_master(server):
    try:
        return server.client(0).info("replication")["role"] == "master"
    except redis.ConnectionError:
        return False  # it closes all connections when it becomes one


@pytest.fixture
def sentinels(redis_factory, tmp_path, reported):
    found = Sentinels(redis_factory, tmp_path, reported)
    yield found
    for process in found.processes:
        process.cleanup()


def test_a_sentinel_failover_under_load_leaves_nothing_stuck(stage_on, sentinels):
    first, second = sentinels.servers
    conf = {"broker_transport_options": {"master_name": "mymaster"}, "orchestration_on_crash": "requeue"}
    broker = Broker("redis", sentinels.url, second.url(1), second.url(0), second)
    stage = stage_on(broker, APP, env={"TEST_CONF": json.dumps({**conf, "task_ignore_result": True})})
    stage.worker(concurrency=2)
    results = send_some(stage)
    until(lambda: len(stage.history.spans()) > 20, 30)
    first.kill()
    until(lambda: is_master(second), 30, "the replica has taken over")
    done(stage, results, 90)
    until(lambda: sentinels.name_as_master(second), 30, "the sentinels name the new master")
    more = send_some(stage, 10)
    done(stage, more)

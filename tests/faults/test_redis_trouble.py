"""Problems of the Redis that holds the ledger: emptied, failed over, full, evicting. Real workers, real servers.

Messages and results are in another Redis, so that only the ledger is affected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from celery_orchestration.errors import UnknownJob
from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.status.redis_problems import FULL
from support.invariants import all_ended, fences_out_of_order, forbidden_overlaps, prefix_of, status_of, waiting
from support.proxy import DroppingProxy
from support.servers import RedisServer
from support.stage import FAULTS, Stage
from support.verbs import asked, make_known
from support.wait import stays, until
from support.workers import Broker, WorkerProcess

NAME = f"{FAULTS}.{{}}".format
URL = "CELERY_ORCHESTRATION_REDIS_URL"
LEASE, SWEEP = 3.0, 0.5  # as in the app
Servers = Callable[..., RedisServer]


@pytest.fixture
def ledger(redis_factory: Servers) -> RedisServer:
    return redis_factory(name="ledger")


@pytest.fixture
def apart(stage_on: Callable[..., Stage], redis_factory: Servers, monkeypatch: pytest.MonkeyPatch):
    """``apart(ledger, url)``: a stage whose ledger is in a Redis of its own, which workers reach at this address."""

    def make(ledger: RedisServer, url: str | None = None, env: dict[str, str] | None = None) -> Stage:
        others = redis_factory(name="broker")
        monkeypatch.setenv(URL, url or ledger.url())
        broker = Broker("redis", others.url(0), others.url(1), ledger.url(), ledger)
        return stage_on(broker, env={URL: url or ledger.url(), **(env or {})})

    return make


def flush(ledger: RedisServer) -> None:
    ledger.client().flushall()


def restart_empty(ledger: RedisServer) -> None:
    ledger.restart(kill=True, empty=True)


def problems(stage: Stage) -> str:
    return "; ".join(status_of(stage.app).problems)


def claimed(stage: Stage, count: int) -> None:
    """Waits until this many workers have claimed their runs."""
    until(lambda: sum("A new epoch begins" in process.log() for process in stage.workers) == count)


def fence_of(stage: Stage, run: str) -> int | None:
    return next((one.fence for one in status_of(stage.app).runs if one.id == run), None)


# -- the ledger is emptied


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "emptied"), [("prefork", flush), ("prefork", restart_empty), ("threads", restart_empty), ("gevent", flush)]
)
def test_an_emptied_ledger_is_noticed_reported_and_healed(apart, ledger: RedisServer, emptied, pool: str):
    stage = apart(ledger)
    workers = [stage.worker(pool) for _ in range(2)]
    running = stage.send(stage.jobs.held, "running")
    fence = stage.started(running).start.fence
    stage.jobs.held.delay("lost")  # waits: no other worker has it
    stage.wait_waiting(1)
    before = time.monotonic()
    emptied(ledger)
    claimed(stage, 2)
    assert all("was emptied" in process.log() for process in workers)
    assert "the ledger was emptied" in problems(stage)
    assert fence_of(stage, running.id) == fence
    # Nothing starts for one lease, not even runs that the gate would let in; after it, those start.
    free, behind = stage.send(stage.jobs.free), stage.send(stage.jobs.held, "behind")
    assert stage.started(free).start.monotonic - before >= LEASE - SWEEP
    stays(lambda: not stage.starts(behind), 1, "what must not run together waits")
    assert "as many runs" in status_of(stage.app).waits[0].reason
    stage.release("running")
    assert running.get(timeout=30) == fence
    assert stage.started(behind).start.fence > fence
    stage.release("behind")
    stage.all_well()
    stage.ran_once(stage.sent)
    assert "was emptied" in problems(stage)


@pytest.mark.slow
def test_a_run_that_ends_before_the_loss_is_noticed_succeeds(apart, ledger: RedisServer):
    """It asks for its lease in an empty ledger. Its outcome is accepted, and runs that wait for it continue."""
    stage = apart(ledger)
    process = stage.worker()
    fetched = stage.send(stage.jobs.fetch, LEASE / 2 + 0.5)
    stage.started(fetched)
    process.pause(whole=False)
    flush(ledger)
    assert fetched.get(timeout=30) == "fetched"
    process.resume()
    assert stage.send(stage.jobs.process).get(timeout=30) == "processed"
    [ended] = Orchestration(stage.app).history(NAME("fetch"))
    assert ended.seconds is not None
    assert ended.seconds >= LEASE / 2 + 0.5, "as long as its code ran, not as long as the ledger knew of it"
    stage.all_well()


@pytest.mark.slow
def test_an_idle_worker_notices_and_works_on(apart, ledger: RedisServer):
    stage = apart(ledger)
    stage.worker()
    stage.send(stage.jobs.free).get(timeout=30)
    flush(ledger)
    claimed(stage, 1)
    stage.send(stage.jobs.free).get(timeout=30)
    stage.all_well()


@pytest.mark.slow
def test_a_lost_reply_to_a_claim_changes_nothing(apart, ledger: RedisServer):
    with DroppingProxy(ledger.port) as proxy:
        stage = apart(ledger, proxy.url())
        stage.worker()
        running = stage.send(stage.jobs.held, "x")
        fence = stage.started(running).start.fence
        flush(ledger)
        make_known(ledger.client(), "claim_runs")
        lost = proxy.lose_reply(asked("claim_runs"), times=3)
        claimed(stage, 1)
        assert len(lost.lost) == 3
        assert fence_of(stage, running.id) == fence
        stage.release("x")
        assert running.get(timeout=30) == fence
        stage.all_well()


# -- a replica takes over that misses the last writes


class Pair:
    """A Redis and its replica, behind one address."""

    def __init__(self, factory: Servers) -> None:
        self.first, self.second = factory(name="first"), factory(name="second")
        self.second.client().replicaof("127.0.0.1", self.first.port)
        until(lambda: self.second.client().info("replication").get("master_link_status") == "up")
        self.proxy = DroppingProxy(self.first.port)

    def part(self, stage: Stage) -> None:
        """The replica misses all later writes; it has the earlier ones."""
        mark = f"{prefix_of(stage.app)}mark"
        self.first.client().set(mark, "1")
        until(lambda: self.second.client().get(mark), poll=0.002)
        for server in (self.first, self.second):
            if server is self.second:
                server.client().replicaof("NO", "ONE")
            server.client().delete(mark)

    def fail_over(self, stage: Stage) -> None:
        self.proxy.upstream_port = self.second.port
        self.proxy.cut()
        stage.ledger = self.second.client()


@pytest.fixture
def pair(redis_factory: Servers) -> Iterator[Pair]:
    pair = Pair(redis_factory)
    with pair.proxy:
        yield pair


@pytest.mark.slow
def test_a_replica_takes_over_that_misses_starts_and_ends(apart, pair: Pair):
    stage = apart(pair.first, pair.proxy.url())
    for _ in range(2):
        stage.worker(concurrency=3)
    ended = stage.send(stage.jobs.held, "ended")
    stage.started(ended)
    waited = stage.send(stage.jobs.held, "waited")
    stage.wait_waiting(1)
    pair.part(stage)
    stage.release("ended")
    free = stage.send(stage.jobs.held_free, "free")
    fences = {result.id: stage.started(result).start.fence for result in (waited, free)}
    behind = stage.jobs.held.delay("behind")
    stage.wait_waiting(1)  # its message is nowhere else: it is lost
    pair.fail_over(stage)
    claimed(stage, 2)
    assert {id: fence_of(stage, id) for id in fences} == fences
    assert "restarted or failed over" in problems(stage)
    last = stage.send(stage.jobs.held, "last")
    stays(lambda: not stage.starts(last), LEASE + 1, "what must not run together waits")
    for name in ("free", "waited", "last", "behind"):
        stage.release(name)
    stage.all_well()
    stage.ran_once(stage.sent)
    assert stage.starts(behind) == []
    assert any("outcomes reported again: 1" in process.log() for process in stage.workers)


@pytest.mark.slow
def test_a_replica_takes_over_under_load(apart, pair: Pair):
    """A second execution is possible; but two never overlap."""
    stage = apart(pair.first, pair.proxy.url())
    for _ in range(2):
        stage.worker()
    for number in range(60):
        stage.send(stage.jobs.exclusive, 0.03, number)
    until(lambda: len(stage.history.started(NAME("exclusive"))) + waiting(stage.app) >= 60)
    pair.part(stage)
    at_parting = len(stage.history.ended(NAME("exclusive")))
    until(lambda: len(stage.history.ended(NAME("exclusive"))) >= at_parting + 5)
    pair.fail_over(stage)
    stage.all_well(timeout=40)
    executions = [span.run for span in stage.history.spans()]
    assert len(set(executions)) == 60 < len(executions)


# -- Redis is full


@pytest.mark.slow
def test_a_full_redis_takes_nothing_in_and_lets_everything_end(apart, ledger: RedisServer):
    stage = apart(ledger)
    process = stage.worker()
    client = ledger.client()
    running = stage.send(stage.jobs.held, "running")
    stage.started(running)
    waits = [stage.send(stage.jobs.held, "waits") for _ in range(3)]
    stage.wait_waiting(3)
    client.config_set("maxmemory", 1)
    late = [stage.send(stage.jobs.free) for _ in range(3)] + [stage.send(stage.jobs.held, "late")]
    until(lambda: "is full" in process.log())
    stage.release("running")
    stage.release("waits")
    all_ended([running, *waits])
    # For longer than a lease: it does not run out.
    stays(lambda: not any(stage.starts(result) for result in late), LEASE + 2, "nothing new is taken in")
    status = status_of(stage.app)
    assert (status.running, status.waiting, [one.state for one in status.workers]) == (0, 0, ["idle"])
    orchestration = Orchestration(stage.app)
    assert FULL in status.problems
    assert not orchestration.health().ok
    assert orchestration.explain(stage.jobs.free.name).root.code == "redis_full"
    with pytest.raises(UnknownJob, match="Redis is full"):
        orchestration.explain(late[0].id)
    assert [check.found for check in orchestration.doctor().checks if check.name == "memory"] == [FULL]
    client.config_set("maxmemory", 0)
    assert FULL not in status_of(stage.app).problems
    assert orchestration.health().ok
    stage.release("late")
    stage.all_well()
    stage.ran_once(stage.sent)
    assert process.log().count("is full") == 1
    assert "lease was lost" not in process.log()


# -- Redis may evict keys


def start(stage: Stage, **options: str) -> WorkerProcess:
    return stage.worker(ready=False, env=options)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_an_evicting_redis_is_refused(apart, redis_factory: Servers, policy: str):
    stage = apart(redis_factory(name="ledger", maxmemory_policy=policy))
    process = start(stage)
    until(lambda: not process.running)
    log = process.log()
    assert "Traceback" not in log
    [line] = [line for line in log.splitlines() if line.startswith("Error: ")]
    for word in (policy, "noeviction", "orchestration_redis_url", "orchestration_allow_eviction"):
        assert word in line
    assert "ready." not in log


def test_an_evicting_redis_is_used_if_that_is_asked_for(apart, redis_factory: Servers):
    stage = apart(redis_factory(name="ledger", maxmemory_policy="allkeys-lru"), env={"TEST_ALLOW_EVICTION": "1"})
    process = stage.worker()
    assert "maxmemory-policy allkeys-lru" in process.log()
    stage.send(stage.jobs.free).get(timeout=30)
    assert "maxmemory-policy is allkeys-lru" in problems(stage)


def test_a_redis_that_evicts_only_what_expires_is_warned_of(apart, redis_factory: Servers):
    stage = apart(redis_factory(name="ledger", maxmemory_policy="volatile-lru"))
    process = stage.worker()
    assert process.log().count("maxmemory-policy volatile-lru") == 1
    assert "maxmemory" not in problems(stage)


def test_a_redis_that_hides_its_eviction_policy_causes_a_warning(apart, ledger: RedisServer):
    stage = apart(ledger)
    everything = {"enabled": True, "nopass": True, "keys": "*", "channels": "*", "categories": ["+@all"]}
    ledger.client().acl_setuser("default", **everything, commands=["-info"])
    process = stage.worker()
    assert "does not show its maxmemory-policy" in process.log()
    stage.send(stage.jobs.free).get(timeout=30)


@pytest.mark.slow
def test_a_worker_that_started_without_redis_looks_when_it_is_there(apart, redis_factory: Servers):
    evicting = redis_factory(name="ledger", maxmemory_policy="allkeys-lfu")
    stage = apart(evicting)
    evicting.stop()
    process = stage.worker()
    evicting.start()
    until(lambda: not process.running, 30)
    assert "maxmemory-policy allkeys-lfu" in process.log()


def test_nothing_is_logged_about_a_healthy_ledger(apart, ledger: RedisServer):
    stage = apart(ledger)
    process = stage.worker()
    stage.send(stage.jobs.free).get(timeout=30)
    assert [word for word in ("maxmemory", "epoch", "full") if word in process.log()] == []
    assert problems(stage) == ""
    assert fences_out_of_order(stage.history) == forbidden_overlaps(stage.app, stage.history) == []

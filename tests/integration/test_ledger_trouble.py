"""Problems of Redis, verb by verb, on every supported Redis: emptied, restarted, failed over; full; taking no
writes; evicting.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis

from celery_orchestration.errors import LedgerUnavailable
from celery_orchestration.ledger import (
    Claim,
    Claimed,
    Decisions,
    NewEpoch,
    NotRegistered,
    Outcome,
    Presence,
    Registered,
)  # fmt: skip
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from celery_orchestration.operate.doctor.health import health
from celery_orchestration.operate.status.redis_problems import FULL
from support.ledger import PREFIX, Shop, arrival
from support.servers import RedisServer, redis_binaries
from support.verbs import has_functions
from support.wait import until

LEASE_MS = 30_000


class Worker:
    """A worker as the ledger sees it: it knows its epoch and its runs."""

    def __init__(self, shop: Shop, name: str, lease_ms: int = LEASE_MS) -> None:
        self.shop, self.name, self.lease_ms = shop, name, lease_ms
        self.epoch = self.fence = ""
        self.runs: dict[str, Claim] = {}
        self.sweeps = 0

    def register(self) -> Registered:
        shop = self.shop
        presence = Presence(
            worker=self.name, name=f"{self.name}@host", host="host", pid=1, slots=8, kind="prefork", queues=("q",),
            release="r1", mode="enforce", lease_ms=self.lease_ms, owner="shop", done_ms=60_000, policies=shop.document,
            jobs=shop.jobs,
        )  # fmt: skip
        found = shop.ledger.register(presence, self.epoch, self.fence)
        if found.live != found.installed:
            merged = releases.merged([shop.document])
            assert shop.ledger.install_policies(found.live, merged.cap, merged.jobs)
        self.epoch = self.epoch or found.epoch
        return found

    def come(self, id: str, job: str, **more: Any) -> str:
        one = arrival(id, job, **more)
        [answer] = self.shop.turn(come=[one], worker=self.name).answers
        if answer.what == "start":
            self.runs[id] = Claim(one, answer.fence)
            self.fence = answer.fence
        return answer.what

    def end(self, id: str, outcome: str = "succeeded") -> str:
        fence = self.runs.pop(id).fence
        self.shop.fences[id] = fence
        return self.shop.turn(ends={id: outcome}, worker=self.name).settled[0]

    def claim(self, epoch: str, taken: Sequence[Outcome] = ()) -> Claimed:
        runs = list(self.runs.values())
        found = self.shop.ledger.claim_runs(self.name, epoch, taken, runs)
        again = self.shop.ledger.claim_runs(self.name, epoch, taken, runs)
        assert again == Claimed(found.answers, 0, 0), "called again it gives the same answer"
        self.epoch = epoch
        return found

    def enter_epoch(self) -> Claimed:
        """Everything that a worker does in a new epoch."""
        return self.claim(self.register().epoch)

    def sweep(self) -> list[str]:
        self.sweeps += 1
        return [grant.id for grant in self.shop.ledger.sweep(self.name, self.sweeps, 5000).grants]


def shop_on(server: RedisServer, jobs: dict[str, dict[str, Any]], **more: Any) -> Shop:
    shop = Shop(server)
    shop.install(jobs, **more)
    shop.ledger.leave("w1")
    return shop


def worker(shop: Shop, name: str = "w", **more: Any) -> Worker:
    one = Worker(shop, name, **more)
    one.register()
    return one


@pytest.fixture(params=sorted(redis_binaries()))
def any_redis(request: pytest.FixtureRequest, redis_factory: Callable[..., RedisServer]) -> RedisServer:
    return redis_factory(binary=redis_binaries()[request.param], appendonly=True)


def restart(shop: Shop) -> None:
    """Nothing is lost in fact, but nobody can know that."""
    shop.server.restart(kill=True)
    shop.ledger.close()


def pass_time(shop: Shop, ms: int) -> None:
    """Advances the ledger clock."""
    shop.redis.hincrby(key_of(PREFIX, "ledger"), "clock", ms)


def document(shop: Shop) -> dict[str, Any]:
    found: dict[str, Any] = shop.ledger.read_status(99, 99)
    return found


def total(shop: Shop) -> int:
    return int(document(shop)["total"])


class TestANewEpoch:
    def test_a_new_ledger_opens_at_once(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {}})
        one = Worker(shop, "w")
        found = one.register()
        assert (found.why, found.closed_ms) == ("", 0)
        assert one.come("a", "x") == "start"
        other = Worker(shop, "v").register()
        assert (other.epoch, other.closed_ms) == (found.epoch, 0)

    def test_begins_with_every_restart_of_redis(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {"max_running": 1}})
        one = worker(shop)
        assert one.come("a", "x") == "start"
        restart(shop)
        with pytest.raises(NewEpoch) as caught:
            one.come("b", "x")
        assert int(caught.value.epoch) > int(one.epoch)
        found = one.register()
        assert (found.epoch, found.why, found.closed_ms) == (caught.value.epoch, "moved", LEASE_MS)
        assert one.register() == found

    def test_is_noticed_by_every_verb_that_could_start_or_void_something(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {}})
        for verb in ("heartbeat", "sweep", "turn"):
            one = worker(shop, verb)
            restart(shop)
            with pytest.raises(NewEpoch):
                {
                    "heartbeat": lambda one=one: shop.ledger.heartbeat(one.name, 1000, [("a", "1")]),
                    "sweep": lambda one=one: one.sweep(),
                    "turn": lambda one=one: one.come("a", "x"),
                }[verb]()
            one.enter_epoch()

    def test_does_not_begin_when_a_replica_comes(self, any_redis: RedisServer, redis_factory):
        """The id of the history of writes changes, but nothing was lost."""
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        before = shop.redis.info("replication")["master_replid"]
        replica = redis_factory(name="replica", binary=any_redis._binary).client()
        replica.replicaof("127.0.0.1", any_redis.port)
        until(lambda: shop.redis.info("replication")["master_replid"] != before)
        one.sweep()
        shop.ledger.close()
        assert one.come("a", "x") == "start"

    def test_begins_on_a_replica_that_took_over(self, any_redis: RedisServer, redis_factory):
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        replica = redis_factory(name="replica", binary=any_redis._binary)
        client = replica.client()
        client.replicaof("127.0.0.1", any_redis.port)
        until(lambda: client.exists(key_of(PREFIX, "ledger")))
        client.replicaof("NO", "ONE")
        shop_there = Shop(replica)
        shop_there.document, shop_there.jobs = shop.document, shop.jobs
        one.shop = shop_there
        with pytest.raises(NewEpoch):
            one.come("a", "x")

    def test_nothing_starts_until_everybody_had_a_lease_to_claim(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {}})
        one, other = worker(shop), worker(shop, "v", lease_ms=50_000)
        restart(shop)
        with pytest.raises(NewEpoch):
            one.come("a", "x")
        one.enter_epoch()
        assert one.come("a", "x") == "wait"
        [waits] = document(shop)["waits"]
        assert waits["reason"] == ["epoch"]
        pass_time(shop, 49_000)
        assert one.sweep() == []
        assert shop.turn(free=4, worker="w").starts == []
        pass_time(shop, 1000)
        assert one.sweep() == ["a"]
        assert other.enter_epoch().answers == []

    def test_an_epoch_opens_at_once_if_no_worker_was_there(self, any_redis: RedisServer):
        """Everything was stopped and started again."""
        shop = shop_on(any_redis, {"x": {}})
        worker(shop, "before")
        shop.ledger.leave("before")
        restart(shop)
        one = Worker(shop, "w")
        found = one.register()
        assert (found.why, found.closed_ms) == ("moved", 0)
        assert one.come("a", "x") == "start"

    def test_an_epoch_opens_after_the_longest_lease(self, any_redis: RedisServer):
        """Of a worker that an empty ledger did not know."""
        shop = shop_on(any_redis, {"x": {}})
        one, other = worker(shop), worker(shop, "v", lease_ms=50_000)
        shop.redis.flushall()
        assert one.register().closed_ms == LEASE_MS
        pass_time(shop, 10_000)
        assert other.register().closed_ms == 40_000
        one.enter_epoch()
        pass_time(shop, 39_000)
        assert one.come("a", "x") == "wait"
        pass_time(shop, 1000)
        assert one.sweep() == ["a"]

    def test_a_worker_that_has_claimed_may_register_again(self, any_redis: RedisServer):
        """A registration may have been under way while its runs were claimed."""
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        one.come("a", "x")
        before = one.epoch
        restart(shop)
        one.enter_epoch()
        one.epoch = before
        one.register()
        assert one.end("a") == "ok"

    def test_a_new_epoch_is_recorded_in_the_audit(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        restart(shop)
        one.enter_epoch()
        [entry] = [json.loads(text) for text in shop.ledger.read_audit(9)]
        assert (entry["who"], entry["what"], entry["why"]) == ("ledger", "epoch", "moved")
        epoch = document(shop)["epoch"]
        assert (epoch["name"], epoch["why"], epoch["left"]) == (one.epoch, "moved", LEASE_MS)


class TestAnEmptiedLedger:
    def test_is_noticed_by_the_first_worker_that_was_there_before(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {"max_running": 1}})
        one = worker(shop)
        one.come("a", "x")
        shop.redis.flushall()
        with pytest.raises(NotRegistered):
            one.come("b", "x")
        found = one.register()
        assert (found.why, found.closed_ms) == ("emptied", LEASE_MS)
        assert int(found.epoch) > int(one.epoch)
        with pytest.raises(NewEpoch):
            one.come("b", "x")
        with pytest.raises(NewEpoch):
            shop.ledger.heartbeat("w", 1000, [("a", one.fence)])
        assert one.claim(found.epoch).answers == ["ok"]
        assert shop.ledger.heartbeat("w", 1000, [("a", one.fence)]) == []
        assert one.come("b", "x") == "wait"
        assert one.end("a") == "ok"

    def test_an_emptied_ledger_is_noticed_though_a_new_worker_came_first(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {"max_running": 1}})
        one = worker(shop)
        one.come("a", "x")
        shop.redis.flushall()
        other = Worker(shop, "v")
        assert other.register().closed_ms == 0
        assert one.register().why == "emptied"
        with pytest.raises(NewEpoch):
            other.come("b", "x")
        other.enter_epoch()
        one.enter_epoch()
        assert other.come("b", "x") == "wait"

    def test_fences_do_not_go_back(self, any_redis: RedisServer):
        """Not even on a Redis whose clock is behind."""
        shop = shop_on(any_redis, {"x": {}})
        one, other = worker(shop), worker(shop, "v")
        ahead = 3 * 10**15
        shop.redis.hset(key_of(PREFIX, "ledger"), "tick", ahead)
        one.come("a", "x")
        shop.redis.flushall()
        other.register()
        one.enter_epoch()
        other.enter_epoch()
        pass_time(shop, LEASE_MS)
        other.come("b", "x")
        assert int(other.fence) > int(one.fence) > ahead

    def test_a_seen_fence_counts_though_its_run_is_over(self, any_redis: RedisServer):
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        shop.redis.hset(key_of(PREFIX, "ledger"), "tick", 3 * 10**15)
        one.come("a", "x")
        one.end("a")
        seen = one.fence
        shop.redis.flushall()
        one.enter_epoch()
        pass_time(shop, LEASE_MS)
        one.come("b", "x")
        assert int(one.fence) > int(seen)

    def test_room_is_taken_beyond_caps_and_blocks_others(self, any_redis: RedisServer):
        jobs = {"x": {"max_running": 1, "keyed": True}, "y": {"blocks": ["x"]}, "z": {"depends_on": [{"job": "x"}]}}
        shop = shop_on(any_redis, jobs)
        one, other = worker(shop), worker(shop, "v")
        one.come("a", "x", key="k")
        shop.redis.flushall()
        one.enter_epoch()
        other.runs["b"] = Claim(arrival("b", "x", key="k"), "77")
        assert other.enter_epoch().answers == ["ok"]
        pass_time(shop, LEASE_MS)
        assert [one.come(id, job) for id, job in [("c", "y"), ("d", "z")]] == ["wait", "wait"]
        assert one.come("e", "x", key="k") == "wait"
        assert total(shop) == 2
        assert other.end("b") == "ok"
        assert one.come("f", "x", key="k") == "wait"
        assert one.end("a") == "ok"
        assert {run["id"] for run in document(shop)["running"]} == {"c", "d"}

    def test_a_run_asks_whether_it_is_current_before_it_was_claimed(self, any_redis: RedisServer):
        """It is current: no other start can have happened since."""
        shop = shop_on(any_redis, {"x": {}})
        one = worker(shop)
        one.come("a", "x")
        shop.redis.flushall()
        assert shop.ledger.holds_lease("a", one.fence)
        found = one.register()
        assert shop.ledger.holds_lease("a", one.fence)
        one.claim(found.epoch)
        assert shop.ledger.holds_lease("a", one.fence)
        assert not shop.ledger.holds_lease("a", str(int(one.fence) - 1))
        pass_time(shop, LEASE_MS)
        assert not shop.ledger.holds_lease("never claimed", one.fence)


class TestALedgerThatForgotItsLastWrites:
    """A replica took over, or a file was loaded: the latest writes are missing."""

    @pytest.fixture
    def shop(self, any_redis: RedisServer) -> Shop:
        jobs = {
            "x": {"max_running": 1},
            "k": {"max_running": 1, "keyed": True},
            "y": {"blocks": ["x"]},
            "z": {"depends_on": [{"job": "x"}]},
        }
        return shop_on(any_redis, {"free": {}, **jobs})

    def keep(self, shop: Shop) -> dict[str, bytes]:
        raw = shop.server.client(decode_responses=False)
        return {key: raw.dump(key) for key in raw.keys("*")}

    def go_back(self, shop: Shop, kept: dict[str, bytes]) -> None:
        raw = shop.server.client(decode_responses=False)
        raw.flushall()
        for key, value in kept.items():
            raw.restore(key, 0, value)
        raw.hset(key_of(PREFIX, "ledger"), "server", "another one")
        shop.ledger.close()

    @pytest.mark.parametrize("state", ["unknown", "waiting", "granted", "queued", "running before"])
    def test_a_start_is_claimed(self, shop: Shop, state: str):
        one, other = worker(shop), worker(shop, "v")
        taken = []
        kept = self.keep(shop)
        if state == "unknown":
            one.come("a", "x")
        else:
            other.come("first", "x")
            assert one.come("a", "x") == "wait"
            kept = self.keep(shop)
            [grant] = shop.turn(ends={"first": "succeeded"}, worker="v").grants
            taken = [Outcome("first", shop.fences["first"], "succeeded")]
            if state != "waiting":
                kept = self.keep(shop)
            if state in ("queued", "running before"):
                shop.ledger.confirm_published([grant])
                kept = self.keep(shop)
            if state == "running before":
                other.come("a", "x", grant=grant.number)
                kept = self.keep(shop)
                shop.turn(ends={"a": "returned"}, worker="v")
                one.runs["a"] = Claim(arrival("a", "x"), str(int(other.fence) + 10**6))
            else:
                assert one.come("a", "x", grant=grant.number) == "start"
        self.go_back(shop, kept)
        other.runs.clear()
        assert one.enter_epoch().answers == ["ok"]
        other.claim(other.register().epoch, taken)
        assert total(shop) == 1
        pass_time(shop, LEASE_MS)
        assert other.come("b", "x") == "wait"
        assert one.end("a") == "ok"
        assert total(shop) == 1
        busy = [job for job in document(shop)["jobs"] if job["busy"]]
        assert busy == []

    def test_an_outcome_is_reported_again(self, shop: Shop):
        one = worker(shop)
        one.come("a", "x")
        kept = self.keep(shop)
        outcome = Outcome("a", one.fence, "succeeded")
        assert one.end("a") == "ok"
        self.go_back(shop, kept)
        found = one.claim(one.register().epoch, (outcome,))
        assert (found.told_again, found.returned, total(shop)) == (1, 0, 0)
        assert one.come("a", "x") == "drop"

    def test_a_run_whose_end_is_forgotten_runs_again(self, shop: Shop):
        one = worker(shop)
        one.come("a", "k", key="1")
        kept = self.keep(shop)
        one.end("a")
        self.go_back(shop, kept)
        found = one.enter_epoch()
        assert (found.answers, found.returned) == ([], 1)
        [waits] = document(shop)["waits"]
        assert (waits["id"], waits["state"]) == ("a", "waiting")
        pass_time(shop, LEASE_MS)
        assert one.sweep() == ["a"]

    def test_a_grant_that_arrives_waits_until_everybody_had_a_lease(self, shop: Shop):
        """Another worker may have started it."""
        one, other = worker(shop), worker(shop, "v")
        one.come("first", "x")
        assert one.come("a", "x") == "wait"
        [grant] = shop.turn(ends={"first": "succeeded"}, worker="w").grants
        one.runs.clear()
        kept = self.keep(shop)
        assert one.come("a", "x", grant=grant.number) == "start"
        self.go_back(shop, kept)
        with pytest.raises(NewEpoch):
            other.come("a", "x", grant=grant.number)
        other.enter_epoch()
        assert other.come("a", "x", grant=grant.number) == "wait"
        assert one.enter_epoch().answers == ["ok"]
        assert one.end("a") == "ok"
        assert total(shop) == 0

    def test_a_claim_that_the_ledger_knows_to_be_outdated_is_void(self, shop: Shop):
        one, other = worker(shop), worker(shop, "v")
        one.come("ended", "free")
        one.come("elsewhere", "free")
        one.come("retried", "free")
        stale = dict(one.runs)
        one.end("ended")
        [grant] = shop.turn(ends={"elsewhere": "returned"}, worker="w").grants
        assert other.come("elsewhere", "free", grant=grant.number) == "start"
        one.end("retried", "retry")
        assert other.come("retried", "free", attempt=1) == "start"
        one.runs = stale
        restart(shop)
        assert one.enter_epoch().answers == ["void", "void", "void"]
        assert other.enter_epoch().answers == ["ok", "ok"]
        assert total(shop) == 2

    def test_a_higher_attempt_that_waited_behind_stays_behind(self, shop: Shop):
        one = worker(shop)
        kept = self.keep(shop)
        one.come("a", "x")
        assert one.come("a", "x", attempt=1) == "wait"
        behind = {
            key: value
            for key, value in self.keep(shop).items()
            if key.endswith((b":next_attempt:a", b":run:a", b":waiting"))
        }
        self.go_back(shop, {**kept, **behind})
        shop.redis.delete(key_of(PREFIX, "worker_runs", "w"))
        # The ledger has the record, but not the worker's list: as if it ran elsewhere under a lower fence.
        one.runs["a"] = Claim(arrival("a", "x"), str(int(one.fence) + 1))
        self.count_room(shop)
        one.register()
        one.enter_epoch()
        assert one.end("a", "retry") == "ok"
        pass_time(shop, LEASE_MS)
        assert one.sweep() == ["a"]

    def test_a_higher_attempt_that_waited_behind_has_started(self, shop: Shop):
        one = worker(shop)
        one.come("a", "x")
        assert one.come("a", "x", attempt=1) == "wait"
        kept = self.keep(shop)
        [start] = shop.turn(ends={"a": "retry"}, free=1, worker="w").starts
        one.runs["a"] = Claim(arrival("a", "x", attempt=1), start.fence)
        self.go_back(shop, kept)
        assert one.enter_epoch().answers == ["ok"]
        found = document(shop)
        assert (found["total"], found["waiting"]) == (1, 0)
        assert one.end("a") == "ok"
        assert total(shop) == 0
        assert [
            *shop.redis.keys(key_of(PREFIX, "run", "*")),
            *shop.redis.keys(key_of(PREFIX, "next_attempt", "*")),
        ] == []

    def count_room(self, shop: Shop) -> None:
        """Restores the counts that belong to the record that was put back."""
        script = """
        local v = redis.call('HGET', KEYS[1], 'state')
        local s = v and cmsgpack.unpack(v) or { waiting = 0, waiting_checked = 0, parked = 0 }
        s.running, s.busy = 1, 1
        redis.call('HSET', KEYS[1], 'state', cmsgpack.pack(s))
        redis.call('HSET', KEYS[2], 'total', 1)
        """
        shop.redis.eval(script, 2, key_of(PREFIX, "job", "x"), key_of(PREFIX, "ledger"))

    def test_a_worker_that_knows_a_later_epoch_shows_that_the_ledger_went_back(self, shop: Shop):
        one = worker(shop)
        kept = self.keep(shop)
        restart(shop)
        one.enter_epoch()
        later = one.epoch
        self.go_back(shop, kept)
        server = shop.redis.hget(key_of(PREFIX, "ledger"), "server")
        assert server == "another one"
        found = one.register()
        assert found.why == "moved"
        assert int(found.epoch) > int(later)

    def test_a_call_that_the_ledger_remembers_keeps_its_reply(self, shop: Shop):
        """The runs that the call started are not taken away before the worker knows of them."""
        one = worker(shop)
        [lost] = shop.ledger.turn("w", 7, "enforce", 0, [], [arrival("a", "x")]).answers
        restart(shop)
        [again] = shop.ledger.turn("w", 7, "enforce", 0, [], [arrival("a", "x")]).answers
        assert again == lost
        one.runs["a"] = Claim(arrival("a", "x"), again.fence)
        assert one.enter_epoch().answers == ["ok"]

    def test_a_claim_of_another_epoch_is_refused(self, shop: Shop):
        one = worker(shop)
        with pytest.raises(NewEpoch):
            shop.ledger.claim_runs("w", "1", [], [])
        with pytest.raises(NotRegistered):
            shop.ledger.claim_runs("nobody", one.epoch, [], [])


class TestWhatPeopleDecided:
    """Nodes remember it, and restore it in a ledger that was emptied."""

    @pytest.fixture
    def shop(self, any_redis: RedisServer) -> Shop:
        return shop_on(any_redis, {"x": {}, "y": {"cool_down_seconds": 1}})

    def known(self, shop: Shop) -> Decisions:
        return shop.ledger.read_decisions(10, 10)

    def restore(self, shop: Shop, one: Worker, known: Decisions) -> int:
        count = shop.ledger.restore_decisions(one.name, one.register().epoch, known)
        assert shop.ledger.restore_decisions(one.name, one.register().epoch, known) == 0, (
            "called again it changes nothing"
        )
        return count

    def disabled(self, shop: Shop) -> dict[str, str]:
        return {job["name"]: json.loads(job["disabled"])["by"] for job in document(shop)["jobs"] if job.get("disabled")}

    def entries(self, shop: Shop) -> dict[str, bool]:
        return {found["name"]: "paused" in found for _, found in shop.ledger.read_entries(0, 10)}

    def test_is_restored_whole_before_the_gate_opens(self, shop: Shop):
        one = worker(shop)
        shop.ledger.pause_or_resume(True, "ann", "stocktaking")
        shop.ledger.enable_or_disable("x", False, "bob", "broken")
        for name in ("added", "resting"):
            assert shop.ledger.change_schedule("cyd", "add", name, "", ["x", "x", "1 s", "{}"]) == "ok"
        assert shop.ledger.change_schedule("cyd", "pause", "resting", "") == "ok"
        known, before = self.known(shop), document(shop)
        shop.redis.flushall()
        assert self.restore(shop, one, known) == 4
        after = document(shop)
        assert after["paused"]
        assert [after[field] for field in ("paused", "pause")] == [before[field] for field in ("paused", "pause")]
        assert self.disabled(shop) == {"x": "bob"}
        assert self.entries(shop) == {"added": False, "resting": True}
        restored = after["restored"]
        assert (restored["pause"], restored["jobs"], sorted(restored["entries"])) == (True, ["x"], ["added", "resting"])
        assert [one["who"] for one in map(json.loads, shop.ledger.read_audit(9)) if one["what"] == "restore"] == ["w"]
        assert self.known(shop).number > known.number, "all refresh their copies"
        assert [entry for entry, there, _ in shop.ledger.read_changes(0).entries if there], (
            "who leads hears of the entries"
        )

    def test_of_several_members_the_one_that_knew_the_latest_decision_counts(self, shop: Shop):
        one, other = worker(shop), worker(shop, "v")
        shop.ledger.pause_or_resume(True, "ann", "")
        shop.ledger.enable_or_disable("x", False, "ann", "")
        shop.ledger.change_schedule("ann", "add", "added", "", ["x", "x", "1 s", "{}"])
        before = self.known(shop)
        shop.ledger.pause_or_resume(False, "ann", "")
        shop.ledger.enable_or_disable("x", True, "ann", "")
        shop.ledger.enable_or_disable("y", False, "ann", "")
        shop.ledger.change_schedule("ann", "remove", "added", "")
        after = self.known(shop)
        for first, second in ((before, after), (after, before)):
            shop.redis.flushall()
            self.restore(shop, one, first)
            self.restore(shop, other, second)
            assert not document(shop)["paused"]
            assert self.disabled(shop) == {"y": "ann"}
            assert self.entries(shop) == {}

    def test_decisions_made_meanwhile_come_first(self, shop: Shop):
        one = worker(shop)
        shop.ledger.pause_or_resume(True, "ann", "")
        shop.ledger.enable_or_disable("x", False, "ann", "")
        known = self.known(shop)
        shop.redis.flushall()
        shop.ledger.pause_or_resume(False, "bob", "")  # before any node has noticed
        one.register()
        shop.ledger.enable_or_disable("x", True, "bob", "")
        assert self.restore(shop, one, known) == 0
        assert not document(shop)["paused"]
        assert self.disabled(shop) == {}

    def test_is_not_restored_once_the_gate_is_open(self, shop: Shop):
        one = worker(shop)
        shop.ledger.pause_or_resume(True, "ann", "")
        known = self.known(shop)
        shop.redis.flushall()
        one.register()
        pass_time(shop, 2 * LEASE_MS)
        assert self.restore(shop, one, known) == 0

    def test_a_job_that_failures_disabled_cools_down_again(self, shop: Shop):
        one = worker(shop)
        shop.ledger.enable_or_disable("y", False, "failures", "3 in a row")
        known = self.known(shop)
        shop.redis.flushall()
        assert self.restore(shop, one, known) == 1
        assert self.disabled(shop) == {"y": "failures"}
        assert shop.redis.zscore(key_of(PREFIX, "timers"), "cool_down:y")

    def test_decisions_that_do_not_fit_are_counted(self, shop: Shop):
        one = worker(shop)
        for job in ("x", "y"):
            shop.ledger.enable_or_disable(job, False, "ann", "")
        known = shop.ledger.read_decisions(1, 1)
        shop.redis.flushall()
        assert self.restore(shop, one, known) == 1
        assert document(shop)["restored"]["left_out"] == 1


class TestAFullRedis:
    @pytest.fixture
    def shop(self, any_redis: RedisServer) -> Shop:
        return shop_on(any_redis, {"x": {"max_running": 1}, "free": {}})

    def fill(self, shop: Shop, full: bool = True) -> None:
        shop.redis.config_set("maxmemory", 1 if full else 0)

    def test_a_full_redis_takes_nothing_in_but_lets_runs_end(self, shop: Shop):
        one = worker(shop)
        assert [one.come("a", "x"), one.come("b", "x"), one.come("c", "x")] == ["start", "wait", "wait"]
        before = shop.redis.dbsize()
        self.fill(shop)
        assert one.come("d", "x") == one.come("e", "free") == "full"
        assert shop.redis.dbsize() == before
        [grant] = shop.turn(ends={"a": "succeeded"}, come=[arrival("f", "free")], worker="w").grants
        assert shop.ledger.confirm_published([grant]) == 1
        assert one.come("b", "x", grant=grant.number) == "start"
        assert one.end("b") == "ok"
        one.sweep()
        assert shop.ledger.heartbeat("w", 1000, []) == []
        self.fill(shop, False)
        assert one.come("e", "free") == "start"

    def test_status_and_health_report_a_full_redis(self, shop: Shop):
        def told() -> set[bool]:
            explained = shop.ledger.explain("job", "x") or {}
            return {document(shop)["full"], explained["full"], shop.ledger.read_health("shop")["full"]}

        worker(shop)
        assert told() == {False}
        shop.redis.config_set("maxmemory", shop.redis.info("memory")["used_memory"] + (1 << 20))
        assert told() == {False}, "nearly"
        self.fill(shop)
        assert told() == {True}
        assert health(shop.ledger.read_health("shop"), "", "", None, scheduler=False).problem == FULL
        assert health(shop.ledger.read_health("shop", "w"), "", "", None, scheduler=True).problem != FULL

    def test_a_full_turn_gives_the_same_answer_again(self, shop: Shop):
        worker(shop)
        self.fill(shop)
        shop.number += 1
        first = shop.ledger.turn("w", shop.number, "enforce", 0, [], [arrival("a", "x")])
        self.fill(shop, False)
        assert shop.ledger.turn("w", shop.number, "enforce", 0, [], [arrival("a", "x")]) == first

    def test_lets_every_other_verb_through(self, shop: Shop):
        one, other = worker(shop), worker(shop, "v")
        assert [one.come("a", "x"), one.come("b", "x"), other.come("c", "free")] == ["start", "wait", "start"]
        self.fill(shop)
        assert Worker(shop, "new", lease_ms=10 * LEASE_MS).register().closed_ms == 0
        assert (
            shop.ledger.enable_or_disable("x", False, "me", "")
            == shop.ledger.enable_or_disable("x", True, "me", "")
            == []
        )
        assert shop.ledger.pause_or_resume(True, "me", "") == shop.ledger.pause_or_resume(False, "me", "") == []
        [ending], _ = shop.ledger.cancel("w", 1, "revoked", ["b"])
        assert shop.ledger.confirm_end([(ending.id, 0)]) == []
        self.fill(shop, False)
        pass_time(shop, 2 * LEASE_MS)
        self.fill(shop)
        shop.ledger.heartbeat("w", LEASE_MS, [])
        one.sweep()  # takes the runs of v, which is dead
        assert len(shop.ledger.leave("w")) == 1
        self.fill(shop, False)
        found = document(shop)
        assert (found["total"], found["waiting"]) == (2, 0)
        assert sorted(run["state"] for run in found["running"]) == ["granted", "granted"]

    def test_a_new_epoch_begins_and_runs_are_claimed(self, shop: Shop):
        one = worker(shop)
        one.come("a", "x")
        shop.redis.flushall()
        self.fill(shop)
        assert one.enter_epoch().answers == ["ok"]
        assert one.end("a") == "ok"
        assert total(shop) == 0


def test_the_eviction_policy_is_known(any_redis: RedisServer):
    shop = shop_on(any_redis, {"x": {}})
    assert shop.ledger.eviction() == document(shop)["eviction"] == "noeviction"
    shop.redis.config_set("maxmemory-policy", "allkeys-lru")
    assert shop.ledger.eviction() == document(shop)["eviction"] == "allkeys-lru"


def test_a_redis_that_may_not_be_asked_works_all_the_same(any_redis: RedisServer):
    """ACLs often forbid INFO: then restarts cannot be noticed, but an emptied ledger can."""
    shop = shop_on(any_redis, {"x": {"max_running": 1}})
    shop.redis.acl_setuser("default", enabled=True, nopass=True, keys="*", categories=["+@all"], commands=["-info"])
    assert shop.ledger.eviction() == ""
    one = worker(shop)
    assert one.come("a", "x") == "start"
    assert document(shop).get("eviction") is None
    shop.redis.flushall()
    assert one.register().why == "emptied"


NO_WRITES = ["cannot save", "too few replicas", "replica"]


class TestARedisThatTakesNoWrites:
    """People and probes still get answers, from every supported Redis."""

    @pytest.fixture
    def shop(self, any_redis: RedisServer) -> Shop:
        return shop_on(any_redis, {"x": {"max_running": 1}})

    @pytest.fixture(params=NO_WRITES)
    def shut(
        self, request: pytest.FixtureRequest, shop: Shop, redis_factory: Callable[..., RedisServer]
    ) -> Callable[[], None]:
        def cannot_save() -> None:
            shutil.rmtree(shop.server.data)
            shop.redis.config_set("save", "1 1")
            with suppress(redis.ResponseError):
                shop.redis.bgsave()
            until(lambda: shop.redis.info("persistence")["rdb_last_bgsave_status"] == "err")

        def replica() -> None:
            away = redis_factory(name="away")
            away.stop()
            shop.redis.replicaof("127.0.0.1", away.port)

        def shut() -> None:
            {
                "cannot save": cannot_save,
                "too few replicas": lambda: shop.redis.config_set("min-replicas-to-write", 1),
                "replica": replica,
            }[request.param]()
            with pytest.raises(redis.ResponseError):
                shop.redis.set("x", "y")

        return shut

    def test_answers_people_and_probes(self, shop: Shop, shut: Callable[[], None]):
        one = worker(shop)
        assert [one.come("a", "x"), one.come("b", "x")] == ["start", "wait"]
        one.sweep()
        shut()
        assert [job["running"] for job in document(shop)["jobs"]] == [1]
        assert (shop.ledger.explain("job", "x") or {})["jobs"]["x"]["running"] == 1
        assert shop.ledger.read_history("x", 5) == []
        assert shop.ledger.holds_lease("a", one.fence)
        probed = health(shop.ledger.read_health("shop", "w@host"), "", "", "w@host", scheduler=False)
        assert probed.ok, "to restart the worker would not help"

    def test_is_unavailable_to_everything_that_writes(self, shop: Shop, shut: Callable[[], None]):
        one = worker(shop)
        assert one.come("a", "x") == "start"
        before = set(shop.redis.keys())
        shut()
        writes: list[Callable[[], Any]] = [
            lambda: one.come("b", "x"), one.sweep, one.register, lambda: shop.ledger.pause_or_resume(True, "me", ""),
            lambda: shop.ledger.heartbeat("w", LEASE_MS, []), lambda: shop.ledger.lead("s", "s@host", 1000, ""),
        ]  # fmt: skip
        for write in writes:
            with pytest.raises(LedgerUnavailable):
                write()
        assert set(shop.redis.keys()) == before

    def test_says_of_no_worker_that_it_is_gone(self, shop: Shop, shut: Callable[[], None]):
        """A replica that is behind may not have heard of it, and its messages would be given to others."""
        worker(shop)
        shut()
        with pytest.raises(LedgerUnavailable):
            shop.ledger.find_gone_workers(LEASE_MS, ["w", "unknown"])

    def test_gets_functions_again_once_it_takes_writes(self, shop: Shop):
        worker(shop)
        shop.redis.config_set("min-replicas-to-write", 1)
        assert document(shop)["workers"]
        shop.redis.config_set("min-replicas-to-write", 0)
        shop.redis.config_resetstat()
        assert document(shop)["workers"]
        calls = shop.redis.info("commandstats")
        assert ("cmdstat_fcall" in calls) == has_functions(shop.redis)

"""Decisions of the ledger that need a test of their own, verb by verb, on a real Redis.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_orchestration.errors import LedgerRefused, LedgerUnavailable
from celery_orchestration.ledger import (
    Adoption,
    Arrival,
    Claim,
    Dispatched,
    Fire,
    NewEpoch,
    NotRegistered,
    Stray,
    TimedOut,
    Turn,
    Waiting,
    keys,
)
from celery_orchestration.ledger.records import HistoryLine, key_of
from celery_orchestration.ledger.scripts import script, verbs
from celery_orchestration.node import releases
from support.hostile import TEXTS
from support.ledger import PREFIX, Shop, arrival
from support.servers import RedisServer
from support.verbs import make_unknown


def called_verbs(shop: Shop) -> set[str]:
    """Collects the names of all verbs that are called from now on."""
    called: set[str] = set()
    call = shop.ledger._call

    def noting(verb: str, args: Any) -> Any:
        called.add(verb)
        return call(verb, args)

    shop.ledger._call = noting  # type: ignore[method-assign]
    return called


def test_every_verb_runs_on_every_redis(any_redis: RedisServer):  # noqa: PLR0915  (there are many)
    shop = Shop(any_redis)
    called = called_verbs(shop)
    shop.install({"one": {"max_running": 1}})
    assert shop.come("a", "one") == "start"
    assert shop.come("b", "one") == "wait"
    assert shop.ledger.heartbeat("w1", 1000, [("a", shop.fences["a"]), ("b", "1")]) == ["b"]
    assert shop.ledger.holds_lease("a", shop.fences["a"])
    assert shop.ledger.record_progress([("a", shop.fences["a"], "{}"), ("b", "1", "{}")]) == 1
    assert shop.ledger.time_out(TimedOut("a", shop.fences["a"], "late", failed=True))
    grant = shop.turn(ends={"a": "succeeded"}).grants[0]
    assert shop.ledger.read_granted(grant) == ("q", b"b")
    assert shop.ledger.confirm_published([grant]) == 1
    assert shop.ledger.sweep("w1", 1, 5000).grants == []
    endings, _ = shop.ledger.cancel("w1", 1, "revoked", ["b"])
    assert shop.ledger.pending_end("b") == ("revoked", 0, b"b")
    assert [ending.id for ending in endings] == ["b"]
    assert shop.ledger.confirm_end([("b", 0)]) == []
    assert shop.ledger.read_status(10, 10)["total"] == 0
    assert shop.ledger.explain("run", "a") is None
    assert shop.ledger.explain("job", "one")["chain"] == [{"job": "one"}]
    assert shop.ledger.find_ids("b", False, 4, 10, 10) == []
    assert [job["name"] for job in shop.ledger.read_graph()["jobs"]] == ["one"]
    assert [job["name"] for job in shop.ledger.read_jobs(["one", "none"])] == ["one"]
    assert shop.ledger.list_entries(0, 10) == []
    assert shop.ledger.read_statistics("all", ["one"])["jobs"][0]["sums"][0]["started"] == 1
    assert shop.ledger.read_releases("r1") == [shop.document]
    assert shop.ledger.read_health("shop", "w1@host")["workers"] == 1
    assert [(member.name, member.release) for member in shop.ledger.list_nodes().nodes] == [("w1@host", "r1")]
    assert (
        shop.ledger.enable_or_disable("one", False, "me", "")
        == shop.ledger.enable_or_disable("one", True, "me", "")
        == []
    )
    assert shop.ledger.pause_or_resume(True, "me", "") == shop.ledger.pause_or_resume(False, "me", "") == []
    assert len(shop.ledger.read_audit(10)) == 4
    known = shop.ledger.read_decisions(10, 10)
    assert shop.ledger.restore_decisions("w1", known.epoch, known) == 0
    assert shop.ledger.read_retry("b") is None
    assert shop.come("c", "one") == "start"
    shop.end("c", "failed")
    assert [HistoryLine.read(one).outcome for one in shop.ledger.read_history("one", 10) or ()] == [
        "failed",
        "revoked",
        "succeeded",
    ]
    assert [revoked for _, revoked in shop.ledger.list_dead_letters(None, 0, 10)] == [False]
    assert (shop.ledger.read_dead_letter("c") or ())[2] == b"c"
    assert shop.ledger.requeue("me", "c", "c", 0, b"c")[0] == "ok"
    assert shop.ledger.purge_dead_letters("me", ["c"]) == 0
    assert shop.ledger.release_waiting("me", 10)[1] == []
    assert shop.ledger.confirm_released(["c"]) == 0
    shop.ledger.record_audit("me", "trigger", "one", "")
    call_other_verbs(shop)
    epoch = shop.register("w1").epoch
    assert shop.ledger.claim_runs("w1", epoch, [], [Claim(arrival("d", "one"), "7")]).answers == ["ok"]
    shop.ledger.close()
    assert shop.turn().answers == []  # on a new connection: check_epoch
    assert shop.ledger.drain("w1") == shop.ledger.drain("w1", 1000) == []
    assert (shop.ledger.leave("w1"), shop.ledger.find_gone_workers(30_000, ["w9"])) == ([], set())
    assert set(verbs()) == called


def call_verbs_of_pools(shop: Shop) -> None:
    about = {"tables": {"images": {"min": 1, "max": 1}}}
    assert shop.ledger.renew_places("s1", "first", True, 30_000, 5000, "", about).found == []
    assert shop.ledger.scale_pool("s1", "images", None, 1, 0, 0, "", {})
    place = shop.ledger.claim_place("s1", "first", "t", "images", 30_000).place
    assert place is not None
    assert shop.ledger.holds_place("images", place.number, place.fence)
    assert shop.ledger.read_pools({"images": ["q"]})["pools"]["images"]["places"][0]["fence"] == place.fence
    assert shop.ledger.leave_place("s1", place)


def call_other_verbs(shop: Shop) -> None:
    call_verbs_of_pools(shop)
    stray = shop.ledger.accept_strays("w1", [Stray("s", 0, "unknown", 1, "", None, "q", "", b"s")])
    assert (stray, shop.ledger.list_unstarted("unknown", "waiting", 0, 10)[1]) == ((["nobody"], []), [])
    assert shop.ledger.inspect("w1", "waiting", 10, 100, 10) == []
    term = shop.ledger.lead("s1", "s1@host", 10_000, "").term
    assert shop.ledger.change_schedule("me", "add", "two", "", ("one", "one", "every 5 s", "{}")) == "ok"
    adoption = Adoption("two", "two", "one", "one", "every 5 s", "people", None)
    [adopted] = shop.ledger.adopt_entries(term, 1, [adoption]) or []
    due = adopted.last_ms + 1
    fire = Fire("two", adopted.generation, due, due + 1, 0, "one", "e", 60_000, message=b"e")
    assert shop.ledger.record_next_due(term, [("two", fire.due_ms)])
    assert shop.ledger.dispatch(term, [fire]).answers == [("fired",)]
    assert shop.ledger.confirm_sent([fire]) == 0
    assert shop.ledger.continue_entries(term, ["two"]) == Dispatched("ok", [("stale",)], [])
    assert shop.ledger.retire_entries(term)
    assert shop.ledger.read_changes(0).entries == [("two", True, "{}")]
    [(entry, fields)] = shop.ledger.read_entries(0, 10)
    assert (entry, fields["run"]) == ("two", "e")
    assert shop.ledger.resign("s1", term)


def test_every_verb_has_a_contract():
    for verb in verbs():
        text = script(verb).text.rpartition("-- uses:")[2]
        assert "-- Returns" in text or "-- ARGV" in text, verb
        assert f"-- {verb}: " in text, verb


class TestDrain:
    def slots(self, shop: Shop) -> dict[str, str]:
        return shop.redis.hgetall(key_of(PREFIX, "slots"))

    def state(self, shop: Shop, worker: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = shop.ledger.read_status(10, 10)["workers"]
        return next(one for one in found if one["id"] == worker)

    def test_a_draining_worker_is_handed_nothing(self, shop: Shop):
        """However often it reports that, and whatever happens to it then."""
        shop.install({"one": {"max_running": 1}})
        shop.register("w2", slots=2)
        assert self.slots(shop) == {"q": "10"}
        for _ in range(2):
            shop.ledger.drain("w2")
            assert self.slots(shop) == {"q": "8"}
        assert [self.state(shop, worker)["draining"] for worker in ("w1", "w2")] == [False, True]
        shop.register("w2", slots=2)
        assert self.slots(shop) == {"q": "10"}
        shop.ledger.drain("w2")
        shop.ledger.leave("w2")
        assert self.slots(shop) == {"q": "8"}

    def test_grants_avoid_a_queue_that_only_a_draining_worker_serves(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        shop.register("w2", slots=1, queues=("granted",))
        shop.come("a", "one")
        shop.turn(come=[replace(arrival("b", "one"), granted_queue="granted")])
        shop.ledger.drain("w2")
        [grant] = shop.turn(ends={"a": "succeeded"}).grants
        assert shop.ledger.read_granted(grant) == ("q", b"b")

    def test_a_worker_lost_while_it_drains_is_no_crash_of_its_runs(self, shop: Shop):
        shop.install({"one": {"max_recoveries": 0}})
        shop.register("w2")
        shop.turn(come=[arrival("a", "one")], worker="w2")
        shop.ledger.drain("w2")
        shop.redis.zadd(key_of(PREFIX, "leases"), {"w2": 0})
        shop.redis.hset(key_of(PREFIX, "ledger"), "clock", 1)
        swept = shop.ledger.sweep("w1", 1, 5000)
        assert (swept.recovered, swept.endings, swept.dead_workers) == (1, [], ["w2@host"])
        assert [grant.id for grant in swept.grants] == ["a"]

    def test_a_run_that_must_not_run_twice_fails_if_its_worker_is_lost_while_it_drains(self, shop: Shop):
        shop.install({"one": {"on_crash": "fail"}})
        shop.register("w2")
        shop.turn(come=[arrival("a", "one")], worker="w2")
        shop.ledger.drain("w2")
        shop.redis.zadd(key_of(PREFIX, "leases"), {"w2": 0})
        shop.redis.hset(key_of(PREFIX, "ledger"), "clock", 1)
        swept = shop.ledger.sweep("w1", 1, 5000)
        assert ([(one.id, one.why) for one in swept.endings], swept.grants) == ([("a", "crashed")], [])
        shop.ledger.confirm_end([("a", 0)])
        assert shop.turn(come=[arrival("a", "one")]).answers[0].what == "drop"
        assert [json.loads(info)["id"] for info, _ in shop.ledger.list_dead_letters("one", 0, 10)] == ["a"]

    @pytest.mark.parametrize(("outcome", "answer"), [("interrupted", "dead"), ("returned", "waits")])
    def test_only_a_run_that_had_begun_fails_when_its_worker_stops(self, shop: Shop, outcome: str, answer: str):
        shop.install({"one": {"on_crash": "fail"}})
        shop.come("a", "one")
        assert shop.turn(ends={"a": outcome}).settled == [answer]

    def test_the_lease_of_one_that_departs_ends_then_and_not_before(self, shop: Shop):
        """However long ago the last sweep was; a late heartbeat does not renew it."""
        shop.install({"one": {}})
        shop.register("w2")
        shop.turn(come=[arrival("a", "one")], worker="w2")
        shop.ledger.sweep("w1", 1, 5000)
        shop.redis.hincrby(key_of(PREFIX, "ledger"), "swept", -4000)
        shop.ledger.drain("w2", 1000)
        shop.ledger.heartbeat("w2", 30_000, [])
        shop.ledger.drain("w2")
        assert shop.ledger.sweep("w1", 2, 5000).dead_workers == []
        shop.redis.hincrby(key_of(PREFIX, "ledger"), "swept", -1100)
        swept = shop.ledger.sweep("w1", 3, 5000)
        assert (swept.recovered, swept.dead_workers) == (1, ["w2@host"])

    def test_all_runs_of_many_dead_workers_are_recovered_without_waiting_for_the_next_sweep(self, shop: Shop):
        shop.install({"one": {}})
        dead = [f"dead{n}" for n in range(70)]
        for worker in dead:
            shop.register(worker)
            shop.turn(come=[arrival(f"{worker}-{m}", "one") for m in range(3)], worker=worker)
        # One has more runs than a sweep takes in one call.
        for n in range(10):
            shop.turn(come=[arrival(f"many{n}-{m}", "one") for m in range(10)], worker=dead[0])
        shop.redis.zadd(key_of(PREFIX, "leases"), dict.fromkeys(dead, 0))
        shop.redis.hset(key_of(PREFIX, "ledger"), "clock", 1)
        names, recovered, calls, more = set(), 0, 0, True
        while more:
            calls += 1
            assert calls < 100
            swept = shop.ledger.sweep("w1", calls, 5000)
            assert swept.recovered <= 64
            names |= {*swept.dead_workers}
            recovered += swept.recovered
            more = swept.more and len(names) < len(dead)
        assert names == {f"{worker}@host" for worker in dead}
        assert recovered == 310
        assert shop.ledger.read_health("shop")["workers"] == 1

    def test_a_worker_that_leaves_with_many_runs_hands_back_all_of_them(self, shop: Shop):
        shop.install({"one": {}})
        shop.register("w2")
        for n in range(50):
            shop.turn(come=[arrival(f"r{n}-{m}", "one") for m in range(10)], worker="w2")
        shop.ledger.leave("w2")
        assert shop.redis.zcard(key_of(PREFIX, "waiting")) + shop.redis.zcard(key_of(PREFIX, "deadlines")) == 500
        assert shop.redis.exists(key_of(PREFIX, "worker", "w2"), key_of(PREFIX, "worker_runs", "w2")) == 0

    def test_very_many_policies_come_into_force_in_parts(self, shop: Shop, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("celery_orchestration.ledger.client.worker.INSTALLED_AT_ONCE", 2)
        names = [f"j{n}" for n in range(9)]
        shop.install({name: {} for name in names})
        assert shop.come("r0", "j0") == "start"
        assert shop.come("r8", "j8") == "start"
        # Each job blocks the next one: the parts separate some pairs, in both directions.
        ring = {name: {"blocks": [names[(n + 1) % 9]]} for n, name in enumerate(names)}
        shop.install(ring, release="r2")
        assert [shop.come(f"s{n}", f"j{n}") for n in (1, 4, 7)] == ["wait", "start", "wait"]
        shop.install({name: {} for name in names[:7]}, release="r3")
        assert shop.turn(free=2).starts[0].id == "s1"
        shop.end("r0")
        shop.end("r8")
        shop.end("s4")
        shop.install({name: {} for name in names[:3]}, release="r4")
        left = {name for name in names if shop.redis.exists(key_of(PREFIX, "job", name))}
        assert left == {"j0", "j1", "j2", "j7"}, "one that nobody defines stays while it has a run"

    def test_releases_of_live_workers_are_known_though_a_record_vanished(self, shop: Shop):
        shop.install({"one": {}})
        shop.register("w2", release="r2")
        assert shop.ledger.sweep("w1", 1, 5000).live_releases == "r1 r2"
        shop.redis.delete(key_of(PREFIX, "worker", "w2"))
        shop.redis.hincrby(key_of(PREFIX, "ledger"), "counted", -61_000)
        assert shop.ledger.sweep("w1", 2, 5000).live_releases == "r1"

    def test_a_worker_that_is_not_known_has_to_register(self, shop: Shop):
        shop.install({"one": {}})
        with pytest.raises(NotRegistered):
            shop.ledger.drain("w2")


class TestDependents:
    """When D ends, runs that wait for D are looked at before a later run of D."""

    def test_a_dependent_goes_before_the_next_run_of_what_it_waits_for(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "d"}]}})
        shop.come("d1", "d")
        assert shop.come("j1", "j") == "wait"
        assert shop.come("d2", "d") == "wait"
        assert shop.end("d1", free=1) == ["j1"]

    @pytest.mark.parametrize("on", ["success", "idle"])
    def test_a_dependent_waits_for_every_run_that_came_before_it(self, shop: Shop, on: str):
        """Whoever asked for it: a waiting run of D counts as busy."""
        shop.install({"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "on": on}]}})
        shop.come("d1", "d")
        for id in ("d2", "d3"):
            assert shop.come(id, "d") == "wait"
        assert shop.come("j1", "j") == "wait"
        assert shop.come("d4", "d") == "wait"
        assert shop.end("d1", free=2) == ["d2"]
        shop.ledger.cancel("w1", 1, "revoked", ["d3"])
        assert shop.end("d2", free=1) == ["j1"]

    def test_a_dependent_goes_before_the_next_run_of_a_job_that_it_blocks(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "d"}], "blocks": ["d"]}})
        shop.come("d1", "d")
        assert shop.come("j1", "j", priority=0) == "wait"
        assert shop.come("d2", "d", priority=3) == "wait"
        assert shop.end("d1", free=2) == ["j1"]
        assert shop.end("j1", free=2) == ["d2"]

    def test_those_that_pass_it_go_in_rank_order(self, shop: Shop):
        deps = [{"job": "d"}]
        shop.install(
            {"d": {"max_running": 1}, "i": {"depends_on": deps}, "j": {"depends_on": deps}, "k": {"depends_on": deps}},
            cap=1,
        )
        shop.come("d1", "d")
        for job, priority in (("i", 0), ("j", 2), ("k", 1)):
            assert shop.come(f"{job}1", job, priority=priority) == "wait"
        assert shop.come("d2", "d", priority=3) == "wait"
        assert shop.end("d1", free=4) == ["j1"]

    def test_a_dependent_passes_only_the_job_it_waits_for(self, shop: Shop):
        shop.install(
            {"d": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "d"}]}, "other": {}}, cap=1
        )
        shop.come("d1", "d")
        assert shop.come("o1", "other") == "wait"
        assert shop.come("d2", "d") == "wait"
        assert shop.come("j1", "j") == "wait"
        assert shop.end("d1", free=4) == ["o1"]
        assert shop.end("o1", free=4) == ["d2"]

    def test_a_dependency_is_judged_once(self, shop: Shop):
        """Not again for a retry: D may run meanwhile."""
        shop.install({"d": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "d"}]}})
        shop.come("d1", "d")
        shop.end("d1")
        assert shop.come("j1", "j") == "start"
        shop.end("j1", "retry", free=0)
        assert shop.come("d2", "d") == "start"
        assert shop.come("j2", "j") == "wait"
        assert shop.come("j1", "j", attempt=1) == "start"

    @pytest.mark.parametrize(("on", "outcome", "starts"), [
        ("success", "succeeded", True), ("success", "failed", False),
        ("finish", "failed", True), ("idle", "failed", True),
    ])  # fmt: skip
    def test_a_dependency_is_satisfied_by_the_outcomes_that_it_names(
        self, shop: Shop, on: str, outcome: str, starts: bool
    ):
        shop.install({"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "on": on}]}})
        shop.come("d1", "d")
        assert shop.come("j1", "j") == "wait"
        assert shop.end("d1", outcome) == (["j1"] if starts else [])

    def test_idle_needs_no_run(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "on": "idle"}]}})
        assert shop.come("j1", "j") == "start"

    def test_a_fresh_dependency_has_to_be_met_anew_for_every_run(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "fresh": True}]}})
        shop.come("d1", "d")
        shop.end("d1")
        assert shop.come("j1", "j") == "start"
        assert shop.come("j2", "j") == "wait"
        shop.come("d2", "d")
        assert shop.end("d2") == ["j2"]

    def test_a_dependency_can_grow_too_old(self, shop: Shop):
        shop.install(
            {
                "d": {"max_running": 1},
                "j": {"depends_on": [{"job": "d", "max_age_seconds": 60}]},
                "k": {"depends_on": [{"job": "d", "max_age_seconds": -1}]},
            }
        )
        shop.come("d1", "d")
        shop.end("d1")
        assert shop.come("j1", "j") == "start"
        assert shop.come("k1", "k") == "wait"

    def test_a_job_that_retries_is_not_idle(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "on": "idle"}]}})
        shop.come("d1", "d")
        shop.end("d1", "retry")
        assert shop.come("j1", "j") == "wait"
        assert shop.come("d1", "d", attempt=1) == "start"
        assert shop.end("d1") == ["j1"]


class TestBarging:
    def test_a_waiting_run_is_not_starved_by_two_that_alternate(self, shop: Shop):
        shop.install({"k": {"blocks": ["x", "y"]}, "x": {}, "y": {}})
        assert shop.come("x1", "x") == "start"
        assert shop.come("k1", "k") == "wait"
        assert shop.come("y1", "y") == "wait"
        assert shop.end("x1", free=2) == ["k1"]
        assert shop.end("k1", free=2) == ["y1"]

    def test_a_run_that_waits_for_a_dependency_bars_nobody(self, shop: Shop):
        shop.install({"d": {"max_running": 1}, "k": {"blocks": ["x"], "depends_on": [{"job": "d"}]}, "x": {}})
        assert shop.come("k1", "k", priority=3) == "wait"
        assert shop.come("x1", "x", priority=0) == "start"

    def test_another_key_is_not_barred(self, shop: Shop):
        shop.install({"t": {"max_running": 1, "keyed": True}})
        assert shop.come("a1", "t", key="a") == "start"
        assert shop.come("a2", "t", key="a") == "wait"
        assert shop.come("b1", "t", key="b") == "start"

    def test_a_job_at_its_cap_does_not_bar_the_global_room(self, shop: Shop):
        shop.install({"one": {"max_running": 1}, "other": {}}, cap=3)
        assert shop.come("a", "one") == "start"
        assert shop.come("b", "one") == "wait"
        assert shop.come("c", "other") == "start"

    def test_waiting_runs_start_in_rank_order(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        shop.come("first", "one")
        for priority, id in [(0, "low"), (1, "normal"), (3, "critical"), (2, "high"), (3, "critical2")]:
            assert shop.come(id, "one", priority=priority) == "wait"
        order, running = [], "first"
        while started := shop.end(running):
            order += started
            running = started[0]
        assert order == ["critical", "critical2", "high", "normal", "low"]


class TestGroups:
    @pytest.mark.parametrize("how", ["exclusive", "blocks"])
    def test_jobs_of_one_group_run_one_at_a_time_in_rank_order(self, shop: Shop, how: str):
        names = ["a", "b", "c", "d"]
        shop.install({n: {"exclusive": ["g"]} if how == "exclusive" else {"blocks": [*{*names} - {n}]} for n in names})
        assert shop.redis.hvals(key_of(shop.ledger.prefix, "groups")) == ["4"]
        assert shop.come("a1", "a") == "start"
        for id, job, priority in [("b1", "b", 1), ("c1", "c", 0), ("d1", "d", 2), ("b2", "b", 1)]:
            assert shop.come(id, job, priority=priority) == "wait"
        assert shop.end("a1", free=4) == ["d1"]
        assert shop.come("a2", "a", priority=3) == "wait", "another job of the group runs"
        assert shop.end("d1", free=4) == ["a2"]
        assert shop.end("a2", free=4) == ["b1", "b2"], "runs of one job do not block each other"
        assert shop.end("b1", free=4) == []
        assert shop.end("b2", free=4) == ["c1"]
        assert shop.end("c1", free=4) == []

    def test_a_job_that_leaves_its_group_while_it_runs_blocks_nobody(self, shop: Shop):
        shop.install({"a": {"exclusive": ["g"]}, "b": {"exclusive": ["g"]}})
        assert shop.come("a1", "a") == "start"
        assert shop.come("b1", "b") == "wait"
        shop.install({"a": {}, "b": {"exclusive": ["g"]}}, release="r2")
        assert shop.turn(free=1).starts[0].id == "b1"

    def test_jobs_that_come_into_a_group_while_they_run_block_each_other(self, shop: Shop):
        shop.install({"a": {}, "b": {}})
        assert shop.come("a1", "a") == "start"
        assert shop.come("b1", "b") == "start"
        shop.install({"a": {"exclusive": ["g"]}, "b": {"exclusive": ["g"]}}, release="r2")
        assert shop.come("a2", "a") == "wait"
        assert shop.end("a1", free=1) == []
        assert shop.end("b1", free=1) == ["a2"]


class TestHandingOver:
    def test_no_more_is_granted_than_live_slots_can_take(self, shop: Shop):
        shop.install({"wide": {"blocks": ["x"]}, "x": {}})
        shop.register("w1", slots=3)
        shop.come("x1", "x")
        for n in range(10):
            assert shop.come(f"w{n}", "wide") == "wait"
        assert len(shop.turn(ends={"x1": "succeeded"}).grants) == 3
        assert shop.turn(free=0).grants == []

    def test_a_run_whose_queue_nobody_serves_waits_and_holds_no_room(self, shop: Shop):
        shop.install({"x": {"max_running": 1}})
        shop.come("x1", "x")
        elsewhere = Arrival("x2", 0, "x", "", 1, "", None, "nobody", "", b"m")
        assert shop.turn(come=[elsewhere]).answers[0].what == "wait"
        turn = shop.turn(ends={"x1": "succeeded"}, free=1)
        assert (turn.grants, turn.starts) == ([], [])
        shop.register("w2", queues=("nobody",))
        assert [grant.id for grant in shop.ledger.sweep("w1", 1, 5000).grants] == ["x2"]

    def test_runs_of_a_release_without_the_job_are_not_started_there(self, shop: Shop):
        shop.install({"x": {"max_running": 1}})
        shop.come("x1", "x")
        shop.come("x2", "x")
        shop.jobs = ()
        shop.document = json.dumps({"max_running": None, "jobs": {}})
        shop.register("old", release="r0")
        shop.number += 1
        turn = shop.ledger.turn("old", shop.number, "enforce", 4, [], [])
        assert turn.starts == []

    def test_runs_that_may_start_together_are_granted_in_portions(self, shop: Shop):
        shop.install({"x": {"blocks": ["wide"]}, "wide": {}})
        shop.register("w1", slots=100)
        shop.come("x1", "x")
        for n in range(40):
            shop.come(f"w{n:02}", "wide")
        turn = shop.turn(ends={"x1": "succeeded"})
        assert [grant.id for grant in turn.grants] == [f"w{n:02}" for n in range(16)]
        assert turn.more
        assert [grant.id for grant in shop.turn(free=1).grants] == [f"w{n:02}" for n in range(17, 32)]


class TestTheLedgerIsNotForEverybody:
    def test_another_apps_ledger_is_refused(self, shop: Shop):
        shop.install({"x": {}})
        with pytest.raises(LedgerRefused, match=r"belongs to the app 'shop'.*orchestration_namespace"):
            shop.ledger.check("other")

    @pytest.mark.parametrize("schema", [0, keys.SCHEMA + 2])
    def test_a_layout_from_another_time_is_refused(self, shop: Shop, schema: int):
        shop.install({"x": {}})
        shop.redis.hset(key_of(PREFIX, "ledger"), "schema", schema)
        with pytest.raises(LedgerRefused, match="data layout"):
            shop.ledger.check("shop")
        with pytest.raises(LedgerRefused, match="data layout"):
            shop.register("w9")

    def test_the_next_layout_works_beside_ours(self, shop: Shop):
        shop.install({"x": {}})
        shop.redis.hset(key_of(PREFIX, "ledger"), "schema", keys.SCHEMA + 1)
        shop.ledger.check("shop")
        shop.register("w9")
        assert shop.redis.hget(key_of(PREFIX, "ledger"), "schema") == str(keys.SCHEMA + 1)

    def test_a_worker_that_is_not_registered_gets_that_answer(self, shop: Shop):
        shop.install({"x": {}})
        with pytest.raises(NotRegistered):
            shop.ledger.turn("nobody", 1, "enforce", 0, [], [])
        with pytest.raises(NotRegistered):
            shop.ledger.heartbeat("nobody", 1000, [])

    def test_a_job_without_policy_is_unknown(self, shop: Shop):
        shop.install({"x": {}})
        assert shop.come("a", "never-heard-of") == "unknown"


class TestTrouble:
    def test_verbs_that_redis_forgot_are_loaded_again(self, shop: Shop):
        shop.install({"x": {}})
        make_unknown(shop.redis)
        assert shop.come("a", "x") == "start"

    def test_a_redis_that_is_down_is_unavailable_and_comes_back(self, redis_factory: Callable[..., RedisServer]):
        shop = Shop(redis_factory(appendonly=True))
        shop.install({"x": {"max_running": 1}})
        assert shop.come("a", "x") == "start"
        shop.server.kill()
        with pytest.raises(LedgerUnavailable):
            shop.come("b", "x")
        shop.server.start()
        with pytest.raises(NewEpoch):
            shop.come("b", "x")


class TestPoliciesChange:
    def test_a_job_loses_its_keys_while_runs_wait_and_run(self, shop: Shop):
        shop.install({"t": {"max_running": 1, "keyed": True}})
        for id, key in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")]:
            shop.come(id, "t", key=key)
        shop.install({"t": {"max_running": 1, "keyed": False}}, release="r1")
        assert shop.end("a1", free=4) == []  # b1 still runs, and now they count together
        assert shop.end("b1", free=4) == ["a2"]
        assert shop.end("a2", free=4) == ["b2"]
        assert shop.end("b2", free=4) == []
        assert shop.redis.keys(key_of(PREFIX, "room", "*")) == []

    def test_a_job_gets_keys_while_runs_wait_and_run(self, shop: Shop):
        shop.install({"t": {"max_running": 1}})
        shop.come("x1", "t")
        shop.come("x2", "t")
        shop.install({"t": {"max_running": 1, "keyed": True}})
        assert shop.come("a1", "t", key="a") == "start"
        assert shop.end("x1") == ["x2"]
        shop.end("x2")
        shop.end("a1")
        assert shop.redis.keys(key_of(PREFIX, "room", "*")) == []

    def test_a_larger_cap_lets_waiting_runs_go(self, shop: Shop):
        shop.install({"t": {"max_running": 1}})
        for id in ("a", "b", "c"):
            shop.come(id, "t")
        shop.install({"t": {"max_running": 3}})
        assert {grant.id for grant in shop.ledger.sweep("w1", 1, 5000).grants} == {"b", "c"}

    def test_jobs_that_nobody_defines_go_away_when_their_runs_are_over(self, shop: Shop):
        shop.install({"old": {}, "older": {}, "new": {}})
        shop.come("a", "old")
        shop.install({"new": {}}, release="r1")
        assert shop.redis.smembers(key_of(PREFIX, "jobs")) == {"old", "new"}
        shop.end("a")
        shop.install({"new": {}}, release="r1")
        assert shop.redis.smembers(key_of(PREFIX, "jobs")) == {"new"}
        assert shop.redis.keys(key_of(PREFIX, "job", "*")) == [key_of(PREFIX, "job", "new")]

    def test_an_install_for_other_releases_than_live_ones_changes_nothing(self, shop: Shop):
        shop.install({"t": {"max_running": 1}})
        assert not shop.ledger.install_policies("r7", 5, {})
        assert shop.redis.smembers(key_of(PREFIX, "jobs")) == {"t"}


def test_the_ledger_clock_does_not_count_time_that_redis_was_away(shop: Shop):
    """Leases use a clock that advances with the sweeps, by at most two intervals each."""
    shop.install({"x": {}})
    shop.register("w2")
    shop.ledger.sweep("w1", 1, 5000)
    before = int(shop.redis.hget(key_of(PREFIX, "ledger"), "clock"))
    shop.redis.hincrby(key_of(PREFIX, "ledger"), "swept", -3_600_000)
    shop.ledger.sweep("w1", 2, 5000)
    assert int(shop.redis.hget(key_of(PREFIX, "ledger"), "clock")) - before == 10_000
    shop.redis.hincrby(key_of(PREFIX, "ledger"), "swept", 7_200_000)
    shop.ledger.sweep("w1", 3, 5000)
    assert int(shop.redis.hget(key_of(PREFIX, "ledger"), "clock")) - before == 10_000
    assert shop.redis.zcard(key_of(PREFIX, "leases")) == 2


class TestAttemptsThatCameEarly:
    """A higher attempt of a running run has arrived, and waits for its end."""

    def install_other(self, shop: Shop, change: Any) -> None:
        document = json.loads(shop.document)
        change(document["jobs"])
        shop.document = json.dumps(document)
        shop.register("w1", release="r2")
        merged = releases.merged([shop.document])
        assert shop.ledger.install_policies("r2", merged.cap, merged.jobs)

    def test_a_replacement_whose_job_is_gone_becomes_a_dead_letter(self, shop: Shop):
        shop.install({"a": {"max_running": 1}, "b": {}})
        assert shop.come("r", "a") == "start"
        assert shop.come("r", "b", attempt=1 << 20) == "wait"
        self.install_other(shop, lambda jobs: jobs.pop("b"))
        shop.end("r", "ignored", free=0)
        assert shop.come("r2", "a") == "start"
        assert shop.ledger.pending_end("r")[0] == "unregistered"
        shop.ledger.confirm_end([("r", 1 << 20)])
        assert [json.loads(info)["id"] for info, _ in shop.ledger.list_dead_letters("b", 0, 10)] == ["r"]

    def test_a_retry_of_a_job_that_lost_its_keys_is_not_lost_with_them(self, shop: Shop):
        shop.install({"a": {"max_running": 1, "keyed": True}})
        assert shop.come("r", "a", key="t1") == "start"
        assert shop.come("r", "a", key="t1", attempt=1) == "wait"
        self.install_other(shop, lambda jobs: jobs["a"].update(keyed=False))
        [start] = shop.turn(ends={"r": "retry"}, free=1).starts
        assert start.id == "r"

    def test_an_attempt_that_is_over_before_the_last_one_ends_the_run(self, shop: Shop):
        shop.install({"a": {}, "j": {"depends_on": [{"job": "a", "on": "idle"}]}})
        assert shop.come("r", "a") == "start"
        shop.ledger.confirm_end([("r", 1)])
        shop.end("r", "retry", free=0)
        assert shop.come("j1", "j") == "start"
        assert shop.redis.keys(key_of(PREFIX, "run", "r")) == []


class TestFailures:
    def fail(self, shop: Shop, id: str, outcome: str = "failed") -> Turn:
        assert shop.come(id, "j") == "start"
        return shop.turn(ends={id: outcome})

    def test_a_job_is_disabled_by_so_many_failures_in_a_row(self, shop: Shop):
        shop.install({"j": {"max_consecutive_failures": 3}})
        assert [self.fail(shop, f"r{n}").disabled for n in range(2)] == [[], []]
        [disabled] = self.fail(shop, "r2").disabled
        assert disabled.job == "j"
        assert disabled.why.startswith("3 failures in a row")
        assert shop.come("r3", "j") == "wait"

    @pytest.mark.parametrize("outcome", ["succeeded", "ignored", "rejected", "revoked", "returned", "retry"])
    def test_only_success_begins_anew(self, shop: Shop, outcome: str):
        shop.install({"j": {"max_consecutive_failures": 2}})
        self.fail(shop, "r1")
        assert self.fail(shop, "r2", outcome).disabled == []
        assert bool(self.fail(shop, "r3").disabled) == (outcome != "succeeded")

    def test_runs_of_a_job_that_is_disabled_go_on_and_may_fail_too(self, shop: Shop):
        shop.install({"j": {"max_consecutive_failures": 1}})
        for id in ("r1", "r2"):
            assert shop.come(id, "j") == "start"
        assert len(shop.turn(ends={"r1": "failed"}).disabled) == 1
        assert shop.turn(ends={"r2": "failed"}).disabled == [], "once is enough"

    def test_enabling_a_job_starts_its_waiting_runs_in_rank_order(self, shop: Shop):
        shop.install({"j": {"max_running": 1, "max_consecutive_failures": 1}})
        self.fail(shop, "r0")
        assert shop.come("low", "j", priority=0) == "wait"
        assert shop.come("high", "j", priority=2) == "wait"
        grants = shop.ledger.enable_or_disable("j", True, "me", "")
        assert [grant.id for grant in grants] == ["high"]

    def test_enabling_forgets_the_failures(self, shop: Shop):
        shop.install({"j": {"max_consecutive_failures": 2}})
        self.fail(shop, "r1")
        shop.ledger.enable_or_disable("j", True, "me", "")
        assert self.fail(shop, "r2").disabled == []

    def test_a_job_that_a_person_disabled_waits_and_bars_nobody(self, shop: Shop):
        shop.install({"j": {}, "k": {"blocks": ["j"]}})
        assert shop.ledger.enable_or_disable("j", False, "me", "a look at it") == []
        assert shop.come("j1", "j") == "wait"
        assert shop.come("k1", "k") == "start"

    def test_an_unregistered_job_cannot_be_enabled_or_disabled(self, shop: Shop):
        shop.install({"j": {}})
        assert shop.ledger.enable_or_disable("k", False, "me", "") is None

    def test_nothing_starts_while_everything_is_paused(self, shop: Shop):
        shop.install({"j": {}})
        shop.ledger.pause_or_resume(True, "me", "")
        assert [shop.come(id, "j") for id in ("r1", "r2")] == ["wait", "wait"]
        assert sorted(grant.id for grant in shop.ledger.pause_or_resume(False, "me", "")) == ["r1", "r2"]

    def test_every_change_by_hand_is_written_down(self, shop: Shop):
        shop.install({"j": {"max_consecutive_failures": 1}})
        self.fail(shop, "r1")
        shop.ledger.enable_or_disable("j", True, "me", "fixed")
        shop.ledger.pause_or_resume(True, "me", "night")
        shop.ledger.pause_or_resume(True, "you", "too")
        shop.come("r2", "j")
        shop.ledger.cancel_by_hand("me", "r2")
        entries = [json.loads(one) for one in shop.ledger.read_audit(10)]
        assert [(one["who"], one["what"], one["about"]) for one in entries] == [
            ("me", "cancel", "r2"),
            ("you", "pause", ""),
            ("me", "pause", ""),
            ("me", "enable", "j"),
            ("failures", "disable", "j"),
        ]


def test_no_two_pairs_of_job_and_room_key_are_confused(shop: Shop):
    """Whatever characters either contains: a separator of keys is part of neither."""
    pairs = [(keys.encode_job(job), key) for job in TEXTS.values() for key in TEXTS.values()]
    policy = {"max_running": 1, "keyed": True}
    shop.install(dict.fromkeys(TEXTS.values(), policy))
    for job, key in pairs:
        assert shop.come(f"{job} {key} 1", job, key=key) == "start"
    for job, key in pairs:
        assert shop.come(f"{job} {key} 2", job, key=key) == "wait"
    for job, key in pairs:
        assert shop.end(f"{job} {key} 1") == [f"{job} {key} 2"]
        shop.end(f"{job} {key} 2")
    left = {key.removeprefix(PREFIX).partition(":")[0] for key in shop.redis.keys("*")}
    kept = {"done", "ledger", "history", "job", "jobs", "live", "releases", "release_order", "release_jobs", "slots"}
    kept |= {"release_slots", "worker", "worker_names", "leases", "installed", "ordered_names", "services"}
    statistics = {"totals", "minutes", "hours"}  # if a minute or an hour has ended meanwhile
    assert left - statistics == kept


class TestDeadLetters:
    def dead_letter(self, shop: Shop, *ids: str) -> None:
        for id in ids:
            assert shop.come(id, "one") == "start"
            shop.end(id, "failed")

    def test_a_requeued_dead_letter_becomes_one_run(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        self.dead_letter(shop, "a")
        assert shop.come("a", "one") == "drop", "a copy of its message does not revive it"
        first = shop.ledger.requeue("me", "a", "a", 0, b"again")
        assert (first[0], shop.ledger.requeue("me", "a", "a", 0, b"again")) == ("ok", ("none", []))
        assert shop.ledger.read_granted(first[1][0]) == ("q", b"again")

    def test_one_whose_task_id_is_published_again_stays_and_can_be_requeued(self, shop: Shop):
        """Even when the done-marker is gone."""
        shop.install({"one": {"max_running": 1}})
        self.dead_letter(shop, "a", "b")
        shop.redis.delete(key_of(PREFIX, "done", "a"))
        assert shop.turn(come=[arrival("a", "one", publication="2")]).answers[0].run == "a~2"
        assert shop.ledger.requeue("me", "a", "a", 0, b"a") == ("ok", [])
        assert len(shop.ledger.list_dead_letters("one", 0, 10)) == 1

    def test_a_dead_letter_whose_id_has_a_run_stays(self, shop: Shop):
        """In a new epoch a worker may claim a run that the ledger knows only as a dead letter."""
        shop.install({"one": {"max_running": 1}})
        self.dead_letter(shop, "a")
        shop.redis.delete(key_of(PREFIX, "done", "a"))
        epoch = shop.register("w1").epoch
        assert shop.ledger.claim_runs("w1", epoch, [], [Claim(arrival("a", "one"), "7")]).answers == ["ok"]
        assert shop.ledger.requeue("me", "a", "a", 0, b"a") == ("exists", [])

    def test_dead_letters_are_bounded_in_number_and_age(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        shop.redis.hset(key_of(PREFIX, "ledger"), mapping={"dead_letters": 3})
        self.dead_letter(shop, *"abcde")
        assert [json.loads(info)["id"] for info, _ in shop.ledger.list_dead_letters("one", 0, 10)] == ["e", "d", "c"]
        shop.redis.hset(key_of(PREFIX, "ledger"), mapping={"dead_letter_ms": 0})
        shop.ledger.sweep("w1", 77, 5000)
        assert shop.ledger.list_dead_letters(None, 0, 10) == []
        assert not list(shop.redis.scan_iter(key_of(PREFIX, "dead_letter", "*")))
        assert not shop.redis.exists(key_of(PREFIX, "job_dead_letters", "one"))

    def test_history_is_bounded(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        shop.redis.hset(key_of(PREFIX, "ledger"), mapping={"history": 5})
        for number in range(20):
            assert shop.come(f"run{number}", "one") == "start"
            shop.end(f"run{number}")
        found = [HistoryLine.read(one).id for one in shop.ledger.read_history("one", 100) or ()]
        assert found == [f"run{number}" for number in range(19, 14, -1)]
        assert shop.redis.llen(key_of(PREFIX, "history", "one")) <= 6
        assert shop.ledger.read_history("two", 10) is None


class TestRelease:
    def test_released_runs_that_were_not_published_are_given_out_again(self, shop: Shop):
        shop.install({"one": {"max_running": 1}})
        shop.come("a", "one")
        for id in ("b", "c"):
            assert shop.come(id, "one") == "wait"
        which, part = shop.ledger.release_waiting("me", 1)
        assert part == shop.ledger.release_waiting("me", 1, which)[1] == [("b", "q", b"b")]
        assert (shop.ledger.confirm_released(["b"]), shop.ledger.confirm_released(["b"])) == (1, 0)
        assert shop.ledger.release_waiting("me", 1, which)[1] == [("c", "q", b"c")]
        assert shop.come("c", "one") == "wait", "a gate that is still there decides again"
        assert shop.ledger.release_waiting("me", 1, which)[1] == [], "it came later"
        assert shop.ledger.confirm_released(["c"]) == 0, "it is the gate's again"
        assert shop.end("a") == ["c"]


class TestNotes:
    """Progress, and the end of a run's time: they are about the current start, or are refused."""

    def noted(self, shop: Shop, id: str = "a") -> dict[str, Any]:
        return next(run for run in shop.ledger.read_status(10, 10)["running"] if run["id"] == id)

    def start(self, shop: Shop) -> str:
        shop.install({"one": {"max_running": 1}})
        assert shop.come("a", "one") == "start"
        return shop.fences["a"]

    def again(self, shop: Shop, outcome: str = "crashed") -> str:
        assert [start.id for start in shop.turn(ends={"a": outcome}, free=1).starts] == ["a"]
        return shop.fences["a"]

    def test_notes_belong_to_the_current_start_only(self, shop: Shop):
        old = self.start(shop)
        assert shop.ledger.record_progress([("a", old, '{"done":1}')]) == 1
        assert shop.ledger.time_out(TimedOut("a", old, "late", failed=False))
        assert self.noted(shop)["progress"]["what"] == '{"done":1}'
        assert self.noted(shop)["over"]["what"] == "late"
        new = self.again(shop)
        assert not {"progress", "over"} & self.noted(shop).keys()
        assert shop.ledger.record_progress([("a", old, "{}")]) == 0
        assert not shop.ledger.time_out(TimedOut("a", old, "late", failed=True))
        assert not {"progress", "over"} & self.noted(shop).keys()
        assert shop.ledger.record_progress([("a", new, "{}"), ("gone", new, "{}"), ("a", "x", "{}")]) == 1

    def test_notes_have_a_bounded_size(self, shop: Shop):
        fence = self.start(shop)
        assert shop.ledger.record_progress([("a", fence, "x" * keys.LONGEST_PROGRESS)]) == 1
        assert shop.ledger.record_progress([("a", fence, "x" * (keys.LONGEST_PROGRESS + 1))]) == 0

    def test_notes_are_deleted_with_their_run(self, shop: Shop):
        fence = self.start(shop)
        shop.ledger.record_progress([("a", fence, "{}")])
        shop.ledger.time_out(TimedOut("a", fence, "late", failed=True))
        shop.end("a", "failed")
        assert shop.redis.keys(key_of(PREFIX, "run", "*")) == []
        assert shop.ledger.record_progress([("a", fence, "{}")]) == 0
        assert not shop.ledger.time_out(TimedOut("a", fence, "late", failed=True))

    def test_a_run_that_celery_knows_failed_is_not_recovered(self, shop: Shop):
        """Its worker died while its code continued. It fails once, and the next run has its room."""
        fence = self.start(shop)
        shop.ledger.time_out(TimedOut("a", fence, "too late", failed=True))
        assert shop.come("b", "one") == "wait"
        shop.register("w2")
        shop.redis.zadd(key_of(PREFIX, "leases"), {"w1": -1})
        sweep = shop.ledger.sweep("w2", 1, 5000)
        assert (sweep.dead_workers, sweep.recovered, sweep.endings) == (["w1@host"], 0, [])
        assert [grant.id for grant in sweep.grants] == ["b"]
        [job] = shop.ledger.read_status(10, 10)["jobs"]
        assert (job["failures"], job["last_error"], job["succeeded"], job["busy"]) == (1, "too late", False, 0)
        shop.register("w1")
        assert shop.come("a", "one") == "drop"

    def test_a_run_whose_message_was_to_go_back_is_recovered(self, shop: Shop):
        fence = self.start(shop)
        shop.ledger.time_out(TimedOut("a", fence, "too late", failed=False))
        self.again(shop)


class TestInspect:
    """Waiting runs for Celery's remote control: bounded, and each reported by one worker."""

    @pytest.fixture
    def shop(self, shop: Shop) -> Shop:
        shop.install({"one": {"max_running": 1}})
        assert shop.come("running", "one") == "start"
        return shop

    def told(
        self, shop: Shop, *workers: str, which: str = "waiting", ids: tuple[str, ...] = ()
    ) -> dict[str, list[str]]:
        """The report of each worker."""
        return {w: [run.id for run in shop.ledger.inspect(w, which, 100, 1000, 1000, ids)] for w in workers}

    def wait(self, shop: Shop, id: str, queue: str = "q") -> None:
        assert shop.turn(come=[replace(arrival(id, "one"), queue=queue)]).answers[0].what == "wait"

    def test_a_run_is_reported_by_the_first_worker_by_name_that_serves_its_queue(self, shop: Shop) -> None:
        shop.register("w2", queues=("images", "q"))
        shop.register("w0", queues=("other",))
        self.wait(shop, "a")
        self.wait(shop, "b", "images")
        self.wait(shop, "c", "nobody's")
        assert self.told(shop, "w0", "w1", "w2") == {"w0": ["c"], "w1": ["a"], "w2": ["b"]}
        assert self.told(shop, "w0", "w1", "w2", which="ids", ids=("a", "none", "running", "c")) == {
            "w0": ["c"], "w1": ["a"], "w2": []
        }  # fmt: skip

    def test_workers_that_stop_or_are_silent_report_nothing_while_there_are_others(self, shop: Shop) -> None:
        self.wait(shop, "a")
        shop.register("w2")
        shop.ledger.drain("w1")
        assert self.told(shop, "w1", "w2") == {"w1": [], "w2": ["a"]}
        shop.redis.hset(key_of(PREFIX, "worker", "w2"), "heartbeat", 1)
        assert self.told(shop, "w1", "w2") == {"w1": ["a"], "w2": []}, "the last that lives, though it stops"
        shop.ledger.leave("w1")
        shop.register("w2")
        assert self.told(shop, "w1", "w2") == {"w1": [], "w2": ["a"]}

    def test_runs_that_are_not_due_yet_are_distinguished(self, shop: Shop) -> None:
        at = int(time.time() * 1000) + 60_000
        shop.turn(come=[replace(arrival("later", "one"), eta_ms=at)])
        self.wait(shop, "now")
        assert shop.ledger.inspect("w1", "later", 100, 1000, 1000) == [Waiting("later", "one", "later", at, b"later")]
        assert shop.ledger.inspect("w1", "waiting", 100, 1000, 1000) == [Waiting("now", "one", "waiting", None, b"now")]
        assert self.told(shop, "w1", which="ids", ids=("later", "now")) == {"w1": ["later", "now"]}

    def test_the_answer_is_bounded(self, shop: Shop) -> None:
        for n in range(5):
            self.wait(shop, f"run{n}")
        found = shop.ledger.inspect("w1", "waiting", 3, 1000, 2)
        assert [(run.id, run.message) for run in found] == [("run0", b"ru"), ("run1", b"ru"), ("run2", b"ru")]
        assert len(shop.ledger.inspect("w1", "ids", 3, 1000, 2, [f"run{n}" for n in range(5)])) == 3
        assert {run.message for run in shop.ledger.inspect("w1", "waiting", 5, 3, 2)} == {b""}, (
            "larger than may be read"
        )

"""Cases in which runs once got stuck, were lost, or passed the gate: verb by verb."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from celery_orchestration.ledger import Arrival, Outcome, Turn
from celery_orchestration.operate import reading
from support.servers import RedisServer
from tests.integration.test_ledger import PREFIX, Shop, arrival


class Case(Shop):
    sweeps = 1000

    def sweep(self, worker: str = "w1") -> Any:
        self.sweeps += 1
        return self.ledger.sweep(worker, self.sweeps, 5000)

    def dies(self, worker: str, found_by: str = "w1") -> Any:
        self.redis.zadd(f"{PREFIX}ws", {worker: -1})
        self.redis.hincrby(f"{PREFIX}g", "clk", 1)
        return self.sweep(found_by)

    def status(self) -> Any:
        return self.ledger.status(100, 100)

    def observe(self, come: list[Arrival], free: int = 0) -> Turn:
        self.number += 1
        return self.ledger.turn("w1", self.number, "observe", free, [], come)

    def takes_workers_down(self, id: str = "bad", job: str = "bad") -> None:
        """A run that was there when three workers died: it has to be tried alone."""
        grant = ""
        for number in range(3):
            doomed = f"doomed{number}"
            self.register(doomed)
            if number:
                self.ledger.leave("next")
            assert self.turn(worker=doomed, come=[arrival(id, job, grant=grant)]).answers[0].what == "start"
            if number < 2:
                self.register("next")
            grants = self.dies(doomed).grants
            grant = grants[0].number if grants else ""
        assert self.redis.hgetall(f"{PREFIX}alone") == {id: ""}


@pytest.fixture
def case(redis_server: RedisServer) -> Iterator[Case]:
    case = Case(redis_server)
    yield case
    case.ledger.close()


class TestAlone:
    def test_what_is_granted_to_a_worker_that_is_kept_free_does_not_go_round_and_round(self, case: Case):
        case.install({"bad": {}, "fine": {}})
        assert case.come("long", "fine") == "start"
        case.takes_workers_down()
        assert case.turn().starts == []  # now w1 is kept free
        turn = case.turn(come=[arrival("other", "fine")])
        assert (turn.answers[0].what, turn.grants) == ("wait", [])
        (grant,) = case.sweep().grants
        turn = case.turn(come=[arrival("other", "fine", grant=grant.number)])
        assert (turn.answers[0].what, turn.grants) == ("kept", [])
        assert case.turn(ends={"long": "succeeded"}, free=1).starts[0].id == "bad"
        case.turn(ends={"bad": "succeeded"})
        assert case.come("other", "fine", grant=grant.number) == "start"

    def test_it_does_not_wait_for_a_worker_that_has_forgotten_it(self, case: Case):
        case.install({"bad": {}, "fine": {}})
        case.register("w1", queues=("elsewhere",))
        case.register("w2")
        case.turn(worker="w2", come=[arrival("long", "fine")])
        case.takes_workers_down()
        case.turn(worker="w2")  # w2 is kept free
        case.dies("w2")
        case.register("w2")
        started = [start.id for _ in range(3) for start in case.turn(worker="w2", free=8).starts]
        assert "bad" in started

    def test_it_does_not_wait_for_a_worker_that_stops(self, case: Case):
        case.install({"bad": {}, "fine": {}})
        case.register("w1", queues=("elsewhere",))
        case.register("w2")
        case.turn(worker="w2", come=[arrival("long", "fine")])
        case.takes_workers_down()
        case.turn(worker="w2")
        case.ledger.drain("w2")
        case.register("w3")
        assert [start.id for start in case.turn(worker="w3", free=8).starts] == ["bad"]
        case.turn(worker="w2", ends={"long": "succeeded"})
        assert not case.redis.hexists(f"{PREFIX}w:w2", "alone")


def test_in_a_pause_only_forced_runs_start_whoever_depends_on_what(case: Case):
    case.install({"first": {"cap": 1}, "second": {"deps": [{"job": "first"}], "cap": 1}})
    assert case.come("a", "first") == "start"
    assert case.come("b", "second") == "wait"
    case.ledger.pause(True, "me", "")
    assert case.come("forced", "first", priority=4) == "wait"
    assert [start.id for start in case.turn(ends={"a": "succeeded"}, free=4).starts] == ["forced"]


class TestRelease:
    def test_what_nobody_published_is_the_gates_again(self, case: Case):
        case.install({"one": {"cap": 1}})
        case.come("a", "one")
        case.come("b", "one")
        assert [id for id, _, _ in case.ledger.release("me", 10)[1]] == ["b"]
        case.end("a")
        case.redis.eval(  # it was let out more than a minute ago
            "local t = {cmsgpack.unpack(redis.call('HGET', KEYS[1], 's'))}; t[18] = t[18] - 61000;"
            "redis.call('HSET', KEYS[1], 's', cmsgpack.pack(unpack(t, 1, 23)))",
            1,
            f"{PREFIX}r:b",
        )
        assert [grant.id for grant in case.sweep().grants] == ["b"]
        assert not case.redis.exists(f"{PREFIX}released")

    def test_a_run_with_a_time_that_nobody_published_waits_for_its_time(self, case: Case):
        case.install({"one": {}})
        case.turn(come=[arrival("a", "one", eta_ms=10**14)])
        assert [id for id, _, _ in case.ledger.release("me", 10)[1]] == ["a"]
        case.redis.eval(
            "local t = {cmsgpack.unpack(redis.call('HGET', KEYS[1], 's'))}; t[18] = t[18] - 61000;"
            "redis.call('HSET', KEYS[1], 's', cmsgpack.pack(unpack(t, 1, 23)))",
            1,
            f"{PREFIX}r:a",
        )
        assert case.sweep().grants == []
        assert case.redis.zcard(f"{PREFIX}later") == 1
        assert case.turn(free=1).starts == []

    def test_what_is_over_meanwhile_keeps_nobody_in(self, case: Case):
        case.install({"one": {"cap": 1}})
        for id in "abc":
            case.come(id, "one")
        which, part = case.ledger.release("me", 1)
        assert [id for id, _, _ in part] == ["b"]
        case.ledger.finish([("b", 0)])  # its message arrived, and was revoked
        assert [id for id, _, _ in case.ledger.release("me", 1, which)[1]] == ["c"]


class TestReleases:
    """Of the code."""

    def other_release(self, case: Case, jobs: dict[str, Any]) -> None:
        case.ledger.leave("w1")
        case.install(jobs, release="r2")

    def test_a_dead_letter_whose_job_is_gone_stays_one(self, case: Case):
        case.install({"old": {}, "kept": {}})
        case.come("x", "old")
        case.end("x", "failed")
        self.other_release(case, {"kept": {}})
        assert case.ledger.requeue("me", "x", "x", 0, b"x") == ("unknown", [])
        assert len(case.ledger.letters(None, 0, 10)) == 1

    def test_a_job_that_was_disabled_is_so_when_it_comes_back(self, case: Case):
        case.install({"one": {}})
        case.ledger.switch("one", False, "me", "bad data")
        self.other_release(case, {"other": {}})
        case.ledger.leave("w1")
        case.install({"one": {}}, release="r3")
        assert case.come("a", "one") == "wait"

    def test_a_run_that_crashed_for_good_ends_although_its_job_is_gone(self, case: Case):
        case.install({"old": {"on_crash": "fail"}, "kept": {}})
        case.register("w2")
        case.turn(worker="w2", come=[arrival("x", "old")])
        assert [ending.id for ending in case.dies("w2").endings] == ["x"]
        self.other_release(case, {"kept": {}})
        assert case.ledger.finish([("x", 0)]) == []
        assert [json.loads(info)["id"] for info, _ in case.ledger.letters("old", 0, 10)] == ["x"]

    def test_a_job_that_failures_have_disabled_gets_the_probe_that_a_new_release_brings(self, case: Case):
        case.install({"one": {"cap": 1, "max_failures": 1}})
        case.come("a", "one")
        case.end("a", "failed")
        self.other_release(case, {"one": {"cap": 1, "max_failures": 1, "cool_down_ms": 1}})
        assert case.redis.zscore(f"{PREFIX}cool", "one") is not None

    def test_both_reasons_are_kept_where_a_person_disables_what_failures_had(self, case: Case):
        case.install({"one": {"cap": 1, "max_failures": 1}})
        case.come("a", "one")
        case.end("a", "failed")
        case.ledger.switch("one", False, "me", "a look at it")
        (job,) = case.status()["jobs"]
        off = json.loads(job["off"])
        assert (off["by"], off["why"]) == ("me", "a look at it")
        assert off["failures"].startswith("1 failures in a row")


def test_the_retry_of_a_run_that_began_before_its_job_was_disabled_is_not_dropped(case: Case):
    case.install({"one": {"cap": 2, "drop": True}})
    case.come("a", "one")
    case.end("a", "retry")
    case.ledger.switch("one", False, "me", "")
    assert case.turn(come=[arrival("a", "one", attempt=1)]).endings == []
    assert [ending.id for ending in case.turn(come=[arrival("b", "one")]).endings] == ["b"]


def test_a_dead_letter_knows_that_it_was_revoked_while_it_ran(case: Case):
    case.install({"one": {"cap": 1}})
    case.come("a", "one")
    case.ledger.cancel("w1", 1, "revoked", ["a"])
    case.end("a", "failed")
    assert [revoked for _, revoked in case.ledger.letters("one", 0, 10)] == [True]


class TestObserve:
    def test_runs_that_nobody_can_take_keep_no_other_from_going(self, case: Case):
        case.install({"one": {"cap": 1}, "two": {"cap": 1}})
        case.register("w2", queues=("unserved",))
        case.come("a", "one")
        for number in range(17):
            case.turn(worker="w2", come=[replace(arrival(f"n{number}", "one"), queue="unserved")])
        case.come("b", "two")
        assert case.come("c", "two") == "wait"
        case.ledger.leave("w2")
        assert [start.id for start in case.observe([], free=4).starts] == ["c"]

    def test_what_is_recorded_does_not_grow_with_keys_and_reasons(self, case: Case):
        case.install({"one": {"cap": 1, "keyed": True}})
        for number in range(20):
            key = f"tenant{number}"
            case.observe([arrival(f"a{number}", "one", key=key), arrival(f"b{number}", "one", key=key)])
            case.ledger.switch("one", False, "me", f"reason {number}")
            case.observe([arrival(f"c{number}", "one", key=f"{key}c")])
            case.ledger.switch("one", True, "me", "")
        assert case.redis.hlen(f"{PREFIX}ob:one") == 2


def test_a_retry_that_goes_on_elsewhere_is_no_run_that_ended_here(case: Case):
    case.install({"one": {"cap": 1}})
    case.come("a", "one")
    case.end("a", "retry")
    case.come("a", "one", attempt=1)
    case.end("a", "failed")
    (worker,) = case.status()["workers"]
    assert (worker["done"], worker["failed"]) == (1, 1)


def test_a_retried_run_keeps_the_reason_that_it_first_waited_for(case: Case):
    case.install({"other": {"blocks": ["job"]}, "job": {"cap": 1}})
    assert case.come("first", "other") == "start"
    assert case.come("run", "job") == "wait"
    assert [start.id for start in case.turn(ends={"first": "succeeded"}, free=1).starts] == ["run"]
    case.turn(ends={"run": "retry"})
    # Its next attempt does not wait, or for something else.
    assert case.come("second", "job") == "start"
    assert case.turn(come=[arrival("run", "job", attempt=1)]).answers[0].what == "wait"
    assert [start.id for start in case.turn(ends={"second": "succeeded"}, free=1).starts] == ["run"]
    case.turn(ends={"run": "succeeded"})
    ended = reading.ended("job", (case.ledger.history("job", 10) or [])[0])
    assert (ended.id, ended.waited_for) == ("run", "other")


def test_how_long_a_run_took_is_how_long_its_code_ran_whenever_the_ledger_hears_of_it(case: Case):
    case.install({"job": {}})
    assert case.come("run", "job") == "start"
    told = Outcome("run", case.fences["run"], "succeeded", ran_ms=5000, ended=time.monotonic() - 60)
    case.number += 1
    case.ledger.turn("w1", case.number, "enforce", 0, [told], [])
    [found] = case.ledger.history("job", 10) or []
    ended = reading.ended("job", found)
    assert (ended.seconds, ended.waited_seconds) == (5, 0)
    [job] = case.status()["jobs"]
    assert job["took"] == 5000
    silence = (case.status()["now"] / 1000) - ended.ended.timestamp()
    assert 60 <= silence < 90


class TestAJobOnWhichAThousandDepend:
    """When it begins or ends, all of them are looked at: in parts, so that Redis has time for others."""

    NUMBER = 1000

    @pytest.fixture
    def hub(self, case: Case) -> Case:
        """It runs, its dependents wait, and its next run does, too."""
        needs = {"job": "hub", "on": "finish"}
        dependents = {f"d{number}": {"cap": 1, "deps": [needs]} for number in range(self.NUMBER)}
        case.install({"hub": {"cap": 1}, "other": {"cap": 1}, **dependents})
        assert case.come("hub1", "hub") == "start"
        for number in range(self.NUMBER):
            assert case.come(f"run{number}", f"d{number}") == "wait"
        assert case.come("hub2", "hub") == "wait"
        return case

    def commands(self, case: Case) -> int:
        """How many commands Redis has executed, those of scripts included."""
        return sum(one["calls"] for one in case.redis.info("commandstats").values())

    def test_no_turn_does_all_the_work_at_once(self, hub: Case):
        """Counted in commands, because times say little on a busy machine; ``make bench`` part j measures them."""
        counts = [self.commands(hub)]
        turn = hub.turn(ends={"hub1": "succeeded"}, free=4)
        assert turn.more
        while turn.more:
            counts.append(self.commands(hub))
            turn = hub.turn()
        counts.append(self.commands(hub))
        assert max(after - before for before, after in pairwise(counts)) < 6 * self.NUMBER
        assert not hub.redis.exists(f"{PREFIX}unseen", f"{PREFIX}after")

    def test_all_of_them_run_before_its_next_run(self, hub: Case):
        started: list[str] = []
        turn = hub.turn(ends={"hub1": "succeeded"}, free=self.NUMBER)
        while turn.starts or turn.more:
            started += [start.id for start in turn.starts]
            ends = dict.fromkeys([start.id for start in turn.starts], "succeeded")
            turn = hub.turn(ends=ends, free=self.NUMBER)
        assert sorted(started[:-1]) == sorted(f"run{number}" for number in range(self.NUMBER))
        assert started[-1] == "hub2"

    def test_what_nobody_has_looked_at_yet_does_not_start_after_its_next_run_began(self, hub: Case):
        hub.turn(ends={"hub1": "succeeded"})
        hub.ledger.cancel("w1", 1, "revoked", ["hub2"])
        assert hub.come("hub3", "hub") == "start"
        turn = hub.turn(free=8)
        while turn.more:
            assert not turn.starts
            turn = hub.turn(free=8)
        assert not turn.starts

    def test_others_go_on_meanwhile(self, hub: Case):
        assert hub.come("other1", "other") == "start"
        assert hub.come("other2", "other", priority=3) == "wait"
        hub.turn(ends={"hub1": "succeeded"})
        assert "other2" in hub.end("other1", free=8)

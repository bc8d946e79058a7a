"""Cases in which runs once got stuck, were lost, or passed the gate: verb by verb."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from celery_orchestration.ledger import Outcome
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate.history.records import read_ended
from celery_orchestration.operate.models import WorkerStatus
from support.ledger import PREFIX, Case, arrival


class TestAlone:
    def test_a_grant_to_a_worker_that_is_kept_free_does_not_circulate(self, case: Case):
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

    def test_a_run_that_came_to_a_worker_that_is_kept_free_waited_for_a_slot(self, case: Case):
        """It is not the run that is tried alone."""
        case.install({"bad": {}, "fine": {}})
        assert case.come("long", "fine") == "start"
        case.takes_workers_down()
        case.turn()  # now w1 is kept free
        assert case.come("other", "fine") == "wait"
        case.turn(ends={"long": "succeeded"}, free=1)
        started = case.turn(ends={"bad": "succeeded"}, free=1).starts
        assert [start.id for start in started] == ["other"]
        case.turn(ends={"other": "succeeded"})
        ended = read_ended("fine", (case.ledger.read_history("fine", 1) or [])[0])
        assert (ended.id, ended.waited_for) == ("other", "a free slot")

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
        assert not case.redis.hexists(key_of(PREFIX, "worker", "w2"), "alone")


def test_in_a_pause_only_forced_runs_start_whatever_the_dependencies(case: Case):
    case.install({"first": {"max_running": 1}, "second": {"depends_on": [{"job": "first"}], "max_running": 1}})
    assert case.come("a", "first") == "start"
    assert case.come("b", "second") == "wait"
    case.ledger.pause_or_resume(True, "me", "")
    assert case.come("forced", "first", priority=4) == "wait"
    assert [start.id for start in case.turn(ends={"a": "succeeded"}, free=4).starts] == ["forced"]


class TestRelease:
    def test_released_runs_that_nobody_published_return_to_the_gate(self, case: Case):
        case.install({"one": {"max_running": 1}})
        case.come("a", "one")
        case.come("b", "one")
        assert [id for id, _, _ in case.ledger.release_waiting("me", 10)[1]] == ["b"]
        case.end("a")
        case.redis.eval(  # it was released more than a minute ago
            "local r = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'record')); r.since = r.since - 61000;"
            "redis.call('HSET', KEYS[1], 'record', cmsgpack.pack(r))",
            1,
            key_of(PREFIX, "run", "b"),
        )
        assert [grant.id for grant in case.sweep().grants] == ["b"]
        assert not case.redis.exists(key_of(PREFIX, "released"))

    def test_a_run_with_a_time_that_nobody_published_waits_for_its_time(self, case: Case):
        case.install({"one": {}})
        case.turn(come=[arrival("a", "one", eta_ms=10**14)])
        assert [id for id, _, _ in case.ledger.release_waiting("me", 10)[1]] == ["a"]
        case.redis.eval(
            "local r = cmsgpack.unpack(redis.call('HGET', KEYS[1], 'record')); r.since = r.since - 61000;"
            "redis.call('HSET', KEYS[1], 'record', cmsgpack.pack(r))",
            1,
            key_of(PREFIX, "run", "a"),
        )
        assert case.sweep().grants == []
        assert case.redis.zcard(key_of(PREFIX, "later")) == 1
        assert case.turn(free=1).starts == []

    def test_a_released_run_that_ended_meanwhile_holds_nobody_back(self, case: Case):
        case.install({"one": {"max_running": 1}})
        for id in "abc":
            case.come(id, "one")
        which, part = case.ledger.release_waiting("me", 1)
        assert [id for id, _, _ in part] == ["b"]
        case.ledger.confirm_end([("b", 0)])  # its message arrived, and was revoked
        assert [id for id, _, _ in case.ledger.release_waiting("me", 1, which)[1]] == ["c"]


class TestReleases:
    """Releases of the code."""

    def other_release(self, case: Case, jobs: dict[str, Any]) -> None:
        case.ledger.leave("w1")
        case.install(jobs, release="r2")

    def test_a_dead_letter_whose_job_is_gone_stays_one(self, case: Case):
        case.install({"old": {}, "kept": {}})
        case.come("x", "old")
        case.end("x", "failed")
        self.other_release(case, {"kept": {}})
        assert case.ledger.requeue("me", "x", "x", 0, b"x") == ("unknown", [])
        assert len(case.ledger.list_dead_letters(None, 0, 10)) == 1

    def test_a_job_that_was_disabled_is_so_when_it_comes_back(self, case: Case):
        case.install({"one": {}})
        case.ledger.enable_or_disable("one", False, "me", "bad data")
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
        assert case.ledger.confirm_end([("x", 0)]) == []
        assert [json.loads(info)["id"] for info, _ in case.ledger.list_dead_letters("old", 0, 10)] == ["x"]

    def test_a_job_that_failures_have_disabled_gets_the_probe_that_a_new_release_brings(self, case: Case):
        case.install({"one": {"max_running": 1, "max_consecutive_failures": 1}})
        case.come("a", "one")
        case.end("a", "failed")
        self.other_release(case, {"one": {"max_running": 1, "max_consecutive_failures": 1, "cool_down_seconds": 0.001}})
        assert case.redis.zscore(key_of(PREFIX, "timers"), "cool_down:one") is not None

    def test_both_reasons_are_kept_where_a_person_disables_what_failures_had(self, case: Case):
        case.install({"one": {"max_running": 1, "max_consecutive_failures": 1}})
        case.come("a", "one")
        case.end("a", "failed")
        case.ledger.enable_or_disable("one", False, "me", "a look at it")
        (job,) = case.status()["jobs"]
        off = json.loads(job["disabled"])
        assert (off["by"], off["why"]) == ("me", "a look at it")
        assert off["failures"].startswith("1 failures in a row")


def test_the_retry_of_a_run_that_began_before_its_job_was_disabled_is_not_dropped(case: Case):
    case.install({"one": {"max_running": 2, "when_disabled": "drop"}})
    case.come("a", "one")
    case.end("a", "retry")
    case.ledger.enable_or_disable("one", False, "me", "")
    assert case.turn(come=[arrival("a", "one", attempt=1)]).endings == []
    assert [ending.id for ending in case.turn(come=[arrival("b", "one")]).endings] == ["b"]


def test_a_dead_letter_knows_that_it_was_revoked_while_it_ran(case: Case):
    case.install({"one": {"max_running": 1}})
    case.come("a", "one")
    case.ledger.cancel("w1", 1, "revoked", ["a"])
    case.end("a", "failed")
    assert [revoked for _, revoked in case.ledger.list_dead_letters("one", 0, 10)] == [True]


class TestObserve:
    def test_runs_that_nobody_can_take_keep_no_other_from_going(self, case: Case):
        case.install({"one": {"max_running": 1}, "two": {"max_running": 1}})
        case.register("w2", queues=("unserved",))
        case.come("a", "one")
        for number in range(17):
            case.turn(worker="w2", come=[replace(arrival(f"n{number}", "one"), queue="unserved")])
        case.come("b", "two")
        assert case.come("c", "two") == "wait"
        case.ledger.leave("w2")
        assert [start.id for start in case.observe([], free=4).starts] == ["c"]

    def test_the_record_of_observed_waits_does_not_grow_with_keys_and_reasons(self, case: Case):
        case.install({"one": {"max_running": 1, "keyed": True}})
        for number in range(20):
            key = f"tenant{number}"
            case.observe([arrival(f"a{number}", "one", key=key), arrival(f"b{number}", "one", key=key)])
            case.ledger.enable_or_disable("one", False, "me", f"reason {number}")
            case.observe([arrival(f"c{number}", "one", key=f"{key}c")])
            case.ledger.enable_or_disable("one", True, "me", "")
        assert case.redis.hlen(key_of(PREFIX, "observed", "one")) == 2


def test_a_retry_that_goes_on_elsewhere_is_no_run_that_ended_here(case: Case):
    case.install({"one": {"max_running": 1}})
    case.come("a", "one")
    case.end("a", "retry")
    case.come("a", "one", attempt=1)
    case.end("a", "failed")
    (worker,) = case.status()["workers"]
    assert (worker["done"], worker["failed"]) == (1, 1)


def test_a_retried_run_keeps_the_reason_that_it_first_waited_for(case: Case):
    case.install({"other": {"blocks": ["job"]}, "job": {"max_running": 1}})
    assert case.come("first", "other") == "start"
    assert case.come("run", "job") == "wait"
    assert [start.id for start in case.turn(ends={"first": "succeeded"}, free=1).starts] == ["run"]
    case.turn(ends={"run": "retry"})
    # Its next attempt does not wait, or for another reason.
    assert case.come("second", "job") == "start"
    assert case.turn(come=[arrival("run", "job", attempt=1)]).answers[0].what == "wait"
    assert [start.id for start in case.turn(ends={"second": "succeeded"}, free=1).starts] == ["run"]
    case.turn(ends={"run": "succeeded"})
    ended = read_ended("job", (case.ledger.read_history("job", 10) or [])[0])
    assert (ended.id, ended.waited_for) == ("run", "other")


def test_how_long_a_run_took_is_how_long_its_code_ran_whenever_the_ledger_hears_of_it(case: Case):
    case.install({"job": {}})
    assert case.come("run", "job") == "start"
    told = Outcome("run", case.fences["run"], "succeeded", ran_ms=5000, ended=time.monotonic() - 60)
    case.number += 1
    case.ledger.turn("w1", case.number, "enforce", 0, [told], [])
    [found] = case.ledger.read_history("job", 10) or []
    ended = read_ended("job", found)
    assert (ended.seconds, ended.waited_seconds) == (5, 0)
    [job] = case.status()["jobs"]
    assert job["took"] == 5000
    silence = (case.status()["now"] / 1000) - ended.ended.timestamp()
    assert 60 <= silence < 90


class TestAJobOnWhichAThousandDepend:
    """When it begins or ends, all of them are looked at: in parts, so that Redis also serves others."""

    NUMBER = 1000

    @pytest.fixture
    def hub(self, case: Case) -> Case:
        """It runs, its dependents wait, and its next run does, too."""
        needs = {"job": "hub", "on": "finish"}
        dependents = {f"d{number}": {"max_running": 1, "depends_on": [needs]} for number in range(self.NUMBER)}
        case.install({"hub": {"max_running": 1}, "other": {"max_running": 1}, **dependents})
        assert case.come("hub1", "hub") == "start"
        for number in range(self.NUMBER):
            assert case.come(f"run{number}", f"d{number}") == "wait"
        assert case.come("hub2", "hub") == "wait"
        return case

    def commands(self, case: Case) -> int:
        """The number of commands that Redis has executed, including those of scripts."""
        return sum(one["calls"] for one in case.redis.info("commandstats").values())

    def test_no_turn_does_all_the_work_at_once(self, hub: Case):
        """Counts commands, because times mean little on a busy machine; ``make bench`` part j measures times."""
        counts = [self.commands(hub)]
        turn = hub.turn(ends={"hub1": "succeeded"}, free=4)
        assert turn.more
        while turn.more:
            counts.append(self.commands(hub))
            turn = hub.turn()
        counts.append(self.commands(hub))
        assert max(after - before for before, after in pairwise(counts)) < 6 * self.NUMBER
        assert not hub.redis.exists(key_of(PREFIX, "unseen_jobs"), key_of(PREFIX, "jobs_with_unseen_dependents"))

    def test_all_of_them_run_before_its_next_run(self, hub: Case):
        started: list[str] = []
        turn = hub.turn(ends={"hub1": "succeeded"}, free=self.NUMBER)
        while turn.starts or turn.more:
            started += [start.id for start in turn.starts]
            ends = dict.fromkeys([start.id for start in turn.starts], "succeeded")
            turn = hub.turn(ends=ends, free=self.NUMBER)
        assert sorted(started[:-1]) == sorted(f"run{number}" for number in range(self.NUMBER))
        assert started[-1] == "hub2"

    def test_a_dependent_that_was_not_checked_yet_does_not_start_after_the_next_run_began(self, hub: Case):
        hub.turn(ends={"hub1": "succeeded"})
        hub.ledger.cancel("w1", 1, "revoked", ["hub2"])
        assert hub.come("hub3", "hub") == "start"
        turn = hub.turn(free=8)
        while turn.more:
            assert not turn.starts
            turn = hub.turn(free=8)
        assert not turn.starts

    def test_other_jobs_go_on_while_a_thousand_dependents_are_checked(self, hub: Case):
        assert hub.come("other1", "other") == "start"
        assert hub.come("other2", "other", priority=3) == "wait"
        hub.turn(ends={"hub1": "succeeded"})
        assert "other2" in hub.end("other1", free=8)


def test_a_status_has_every_field_of_a_worker_that_is_shown(case: Case):
    """Fields with a default would otherwise show the default, and nobody would notice."""
    case.install({"one": {}})
    made_by_the_reader = {"state", "execution_pool", "last_beat", "fetched"}
    (worker,) = case.status()["workers"]
    assert {*WorkerStatus.model_fields} - {*worker} <= made_by_the_reader

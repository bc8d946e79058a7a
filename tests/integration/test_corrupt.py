"""Records that other programs overwrote or deleted: that job is reported, and all others continue."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from celery_orchestration.errors import LedgerError
from celery_orchestration.ledger import NotRegistered, Outcome
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from celery_orchestration.operate.status import redis_problems
from support.ledger import PREFIX, Case, arrival
from support.servers import RedisServer


@pytest.fixture
def case(redis_server: RedisServer) -> Case:
    case = Case(redis_server)
    case.install(
        {
            "bad": {"max_running": 1},
            "fine": {"max_running": 1},
            "beside": {"blocks": ["bad"], "depends_on": [{"job": "fine"}]},
        }
    )
    return case


def of_another_type(case: Case) -> None:
    case.redis.delete(key_of(PREFIX, "job", "bad"))
    case.redis.set(key_of(PREFIX, "job", "bad"), "x")


def garbled_policy(case: Case) -> None:
    case.redis.hset(key_of(PREFIX, "job", "bad"), "policy", "garbage")


def garbled_state(case: Case) -> None:
    case.redis.hset(key_of(PREFIX, "job", "bad"), "state", b"\xc1 no such thing")


def overwritten_state(case: Case) -> None:
    case.redis.hset(key_of(PREFIX, "job", "bad"), "state", "garbage")


@pytest.mark.parametrize("corrupt", [of_another_type, garbled_policy, garbled_state, overwritten_state])
def test_a_job_whose_record_cannot_be_read_is_reported_and_restored_and_others_go_on(
    case: Case, corrupt: Callable[[Case], None]
) -> None:
    assert [case.come("b1", "bad"), case.come("b2", "bad"), case.come("f1", "fine")] == ["start", "wait", "start"]
    corrupt(case)
    assert case.come("b3", "bad") == "wait"
    case.end("f1")
    assert case.come("f2", "fine") == "start"

    status = case.status()
    (bad,) = (job for job in status["jobs"] if job["name"] == "bad")
    assert (bad["running"], bad["busy"], bad["waiting"]) == (1, 1, 2)
    assert json.loads(bad["disabled"])["by"] == "ledger"
    assert [problem for problem in redis_problems.problems(status) if "job:bad could not be read" in problem]

    # Each node that sweeps sees that the policies are not installed any more.
    swept = case.sweep()
    assert swept.installed_releases == "" != swept.live_releases
    merged = releases.merged([case.document])
    assert case.ledger.install_policies("r1", merged.cap, merged.jobs)
    assert case.come("b4", "bad") == "wait"
    assert case.come("s1", "beside") == "wait"  # blocked by the run that was there before
    assert case.end("b1") == ["b2"]
    assert case.end("b2") == ["b3"]


def test_a_run_whose_record_cannot_be_read_keeps_nobody_waiting(case: Case) -> None:
    for id in ("b1", "b2", "b3", "b4"):
        case.come(id, "bad")
    case.redis.delete(key_of(PREFIX, "run", "b2"))
    case.redis.hset(key_of(PREFIX, "run", "b3"), "record", "garbage")
    assert case.end("b1") == ["b4"]
    told = [json.loads(one) for one in case.ledger.read_audit(10)]
    assert {one["about"] for one in told if one["what"] == "lost"} == {"b2", "b3"}
    case.end("b4")
    assert case.redis.zcard(key_of(PREFIX, "waiting")) == 0
    assert not case.redis.sismember(key_of(PREFIX, "waiting_jobs"), "bad")


def test_a_running_run_whose_record_cannot_be_read_is_void_and_its_worker_goes_on(case: Case) -> None:
    assert [case.come("f1", "fine"), case.come("b1", "bad")] == ["start", "start"]
    case.redis.delete(key_of(PREFIX, "run", "b1"))
    case.redis.lpush(key_of(PREFIX, "run", "b1"), "x")
    assert case.ledger.heartbeat("w1", 30_000, [(id, case.fences[id]) for id in ("f1", "b1")]) == ["b1"]
    case.number += 1
    turn = case.ledger.turn("w1", case.number, "enforce", 0, [Outcome("b1", case.fences["b1"], "succeeded")], [])
    assert turn.settled == ["refused"]
    assert case.turn(come=[arrival("f2", "fine")]).answers[0].what == "wait"
    assert case.end("f1") == ["f2"]


def test_a_job_whose_record_was_deleted_waits_until_a_worker_brings_it(case: Case) -> None:
    case.come("f1", "fine")
    case.redis.delete(key_of(PREFIX, "job", "bad"))
    assert case.come("b1", "bad") == "wait"
    assert case.come("s1", "beside") == "wait"
    assert case.status()["jobs"]
    case.end("f1")
    merged = releases.merged([case.document])
    assert case.ledger.install_policies("r1", merged.cap, merged.jobs)
    assert case.end("s1") == ["b1"]


def test_runs_of_a_job_whose_record_was_deleted_end_and_others_go_on(case: Case) -> None:
    assert [case.come("b1", "bad"), case.come("f1", "fine"), case.come("b2", "bad")] == ["start", "start", "wait"]
    case.redis.delete(key_of(PREFIX, "job", "bad"))
    assert case.turn(ends={"b1": "succeeded", "f1": "succeeded"}).settled == ["ok", "ok"]
    case.redis.zadd(key_of(PREFIX, "expiring"), {"b2": 1})
    case.redis.hset(key_of(PREFIX, "ledger"), "next", 1)
    turn = case.turn(come=[arrival("f2", "fine")])
    assert (turn.answers[0].what, [ending.id for ending in turn.endings]) == ("start", ["b2"])
    assert case.sweep().installed_releases == ""


def test_a_job_that_somebody_had_disabled_stays_so_when_its_record_was_deleted(case: Case) -> None:
    case.ledger.enable_or_disable("bad", False, "me", "")
    case.redis.delete(key_of(PREFIX, "job", "bad"))
    merged = releases.merged([case.document])
    assert case.ledger.install_policies("r1", merged.cap, merged.jobs)
    assert case.come("b1", "bad") == "wait"
    case.ledger.enable_or_disable("bad", True, "me", "")
    assert case.turn(free=1).starts or case.redis.hget(key_of(PREFIX, "under_way"), "q") == "1"


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "retry", "crashed"])
def test_a_run_ends_though_the_attempt_that_waits_for_it_was_deleted(case: Case, outcome: str) -> None:
    assert case.come("b1", "bad") == "start"
    for attempt in (1, 2):
        assert case.come("b1", "bad", attempt=attempt) == "wait"
        case.redis.delete(key_of(PREFIX, "next_attempt", "b1"))
    (answer,) = case.turn(ends={"b1": outcome}).settled
    assert answer == ("waits" if outcome == "crashed" else "ok")
    assert case.redis.zrange(key_of(PREFIX, "waiting"), 0, -1) == []


def test_a_job_loses_its_keys_though_a_waiting_run_was_deleted(redis_server: RedisServer) -> None:
    case = Case(redis_server)
    case.install({"t": {"max_running": 1, "keyed": True}})
    for id in ("a1", "a2", "a3"):
        case.come(id, "t", key="a")
    case.redis.delete(key_of(PREFIX, "run", "a2"))
    case.install({"t": {"max_running": 1, "keyed": False}})
    assert case.end("a1") == ["a3"]


def test_a_dependent_that_was_deleted_does_not_keep_its_dependency_from_ending(redis_server: RedisServer) -> None:
    case = Case(redis_server)
    case.install({"d": {"max_running": 1}, "e": {"blocks": ["d"], "depends_on": [{"job": "d"}]}})
    assert [case.come("d1", "d"), case.come("e1", "e"), case.come("d2", "d", priority=3)] == ["start", "wait", "wait"]
    case.redis.delete(key_of(PREFIX, "run", "e1"))
    assert case.end("d1") == ["d2"]


def test_runs_are_recovered_though_the_set_of_them_was_deleted(case: Case) -> None:
    case.register("w2")
    assert case.turn(worker="w2", come=[arrival("b1", "bad")]).answers[0].what == "start"
    case.redis.delete(key_of(PREFIX, "worker_runs", "w2"))
    assert case.ledger.heartbeat("w2", 30_000, [("b1", case.fences["b1"])]) == []
    assert case.dies("w2").recovered == 1


def overwrite(case: Case, *name: str) -> None:
    case.redis.delete(key_of(PREFIX, *name))
    case.redis.set(key_of(PREFIX, *name), "x")


def busy(case: Case) -> dict[str, tuple[int, int]]:
    """How much room of each job is taken, and by how many runs that started."""
    return {job["name"]: (job["running"], job["busy"]) for job in case.status()["jobs"]}


def reported(case: Case, name: str) -> bool:
    return any(f"the record {name} could not be read" in one for one in redis_problems.problems(case.status()))


class TestAKeyOfAnotherType:
    """Redis takes nothing back: an error in the midst of a turn would leave a run ended, and its room taken forever."""

    @pytest.fixture
    def case(self, any_redis: RedisServer) -> Case:
        case = Case(any_redis)
        case.install(
            {
                "bad": {"max_running": 1},
                "fine": {"max_running": 1},
                "blocking": {"max_running": 1, "blocks": ["bad"]},
                "after": {"depends_on": [{"job": "bad"}]},
                "keyed": {"max_running": 1, "keyed": True},
            }
        )
        return case

    def test_a_turn_whose_second_outcome_meets_a_corrupt_history_records_both(self, case: Case):
        assert [case.come("f1", "fine"), case.come("b1", "bad")] == ["start", "start"]
        overwrite(case, "history", "bad")
        assert case.turn(ends={"f1": "succeeded", "b1": "succeeded"}).settled == ["ok", "ok"]
        assert set(busy(case).values()) == {(0, 0)}
        assert reported(case, "history:bad")
        assert [case.come("f2", "fine"), case.come("b2", "bad")] == ["start", "start"]

    @pytest.mark.parametrize("name", [("lane", "bad", ""), ("unstarted", "bad")], ids=lambda name: name[0])
    def test_a_turn_that_hands_over_to_a_job_with_a_corrupt_key_does_all_its_work(
        self, case: Case, name: tuple[str, ...]
    ):
        assert case.come("k1", "blocking") == "start"
        assert [case.come("b1", "bad"), case.come("b2", "bad")] == ["wait", "wait"]
        overwrite(case, *name)
        assert case.end("k1") == ["b1"]
        assert busy(case) == {**dict.fromkeys(case.jobs, (0, 0)), "bad": (1, 1)}
        assert reported(case, ":".join(name))
        assert case.end("b1") == ["b2"], "no run that waited is lost"
        assert case.come("k2", "blocking") == "wait"
        assert case.end("b2") == ["k2"]

    @pytest.mark.parametrize("checked", [False, True])
    def test_runs_of_a_keyed_job_go_on_in_their_order_though_a_lane_is_corrupt(self, case: Case, checked: bool):
        for id in ("a1", "a2", "a3"):
            case.come(id, "keyed", key="a")
        assert case.come("b1", "keyed", key="b") == "start"
        if checked:  # runs whose dependencies were checked wait in a lane of their own
            case.ledger.pause_or_resume(True, "me", "")
            assert case.turn(ends={"a1": "returned"}).settled == ["waits"]
        overwrite(case, "lane_checked" if checked else "lane", "keyed", "a")
        if checked:
            [grant] = case.ledger.pause_or_resume(False, "me", "")
            assert case.come("a1", "keyed", key="a", grant=grant.number) == "start"
        assert case.end("a1") == ["a2"]
        assert case.end("a2") == ["a3"]

    def test_a_turn_of_a_worker_with_a_corrupt_record_has_it_register_again_and_slots_are_counted_once(
        self, case: Case
    ):
        case.register("w2")
        overwrite(case, "worker", "w1")
        with pytest.raises(NotRegistered):
            case.come("f1", "fine")
        case.register("w1")
        assert case.redis.hgetall(key_of(PREFIX, "slots")) == {"q": "16"}
        assert case.come("f1", "fine") == "start"

    def test_a_corrupt_key_about_all_jobs_stays_as_it_is_and_the_error_shows(self, case: Case):
        overwrite(case, "waiting")
        with pytest.raises(LedgerError, match="WRONGTYPE"):
            case.come("f1", "fine")
        assert case.redis.get(key_of(PREFIX, "waiting")) == "x"


@pytest.mark.parametrize(
    ("name", "corrupt"), [("worker", "w2"), ("worker_runs", "w2"), ("worker", "w1"), ("worker_runs", "w1")]
)
def test_a_worker_whose_record_is_of_another_type_registers_again_or_dies_and_others_go_on(
    case: Case, name: str, corrupt: str
) -> None:
    case.register("w2")
    for worker, id in (("w1", "f1"), ("w2", "b1")):
        job = {"f": "fine", "b": "bad"}[id[0]]
        assert case.turn(worker=worker, come=[arrival(id, job)]).answers[0].what == "start"
    case.redis.delete(key_of(PREFIX, name, corrupt))
    case.redis.set(key_of(PREFIX, name, corrupt), "x")

    status = case.status()
    assert len(status["workers"]) == (1 if name == "worker" else 2)
    assert any(f"{name}:{corrupt} could not be read" in problem for problem in redis_problems.problems(case.status()))
    assert case.ledger.explain("job", "fine")["chain"]
    assert len(case.ledger.list_nodes().nodes) >= 1
    case.ledger.read_health("shop", "")

    other = "w2" if corrupt == "w1" else "w1"
    if name == "worker":
        with pytest.raises(NotRegistered):
            case.ledger.heartbeat(corrupt, 1000, [])
        case.register(corrupt)
        assert case.redis.hgetall(key_of(PREFIX, "slots")) == {"q": "16"}
    case.ledger.heartbeat(corrupt, 1000, [])
    assert case.dies(corrupt, found_by=other).live_releases
    assert case.redis.hgetall(key_of(PREFIX, "slots")) == {"q": "8"}

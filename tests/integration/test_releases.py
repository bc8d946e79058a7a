"""A run is handed only to workers whose release has its job. It is never revoked and never lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from celery_orchestration.ledger import Stray
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from support.ledger import PREFIX, Desk, arrival
from support.servers import RedisServer


class Rollout(Desk):
    """Release r1, of worker w1, has the first jobs; r2, of worker w2, the second ones; both serve one queue."""

    def roll_out(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        self.install(first)
        other = Rollout(self.server)
        other.install(second, release="r2")
        self.register("w1")
        other.register("w2", release="r2")
        merged = releases.merged([self.document, other.document])
        assert self.ledger.install_policies("r1 r2", merged.cap, merged.jobs)

    def stray(self, id: str, job: str, worker: str = "w2", **more: Any) -> str:
        message = {"attempt": 0, "priority": 1, "grant": "", "expires_ms": None, "queue": "q", "granted_queue": ""}
        answers, _ = self.ledger.accept_strays(
            worker, [Stray(id=id, job=job, message=id.encode(), **{**message, **more})]
        )
        return answers[0]

    def letters(self) -> list[tuple[str, str]]:
        return [
            (info["id"], info["job"])
            for info in (json.loads(one) for one, _ in self.ledger.list_dead_letters(None, 0, 10))
        ]

    def reasons(self) -> list[list[str]]:
        return [one["reason"] for one in self.status()["waits"] or ()]


@pytest.fixture
def rollout(redis_server: RedisServer) -> Rollout:
    return Rollout(redis_server)


def test_a_run_starts_only_where_its_job_is_and_keeps_nobody_waiting(rollout: Rollout):
    rollout.roll_out({"new": {"max_running": 1}, "both": {"max_running": 1}}, {"both": {"max_running": 1}})
    rollout.come("new 1", "new")
    rollout.come("both 1", "both")
    rollout.come("new 2", "new")
    rollout.come("both 2", "both")
    ended = rollout.turn(ends={"new 1": "succeeded", "both 1": "succeeded"}, worker="w1")
    assert [grant.id for grant in ended.grants] == ["both 2"]
    assert rollout.turn(worker="w2", free=2).starts == []
    assert rollout.sweep("w1").due == 0, "a worker that has the job is to offer its slots"
    assert [start.id for start in rollout.turn(worker="w1", free=2).starts] == ["new 2"]


def test_a_run_of_a_job_that_nobody_has_any_more_waits_and_says_so(rollout: Rollout):
    rollout.install({"old": {"max_running": 1}, "kept": {"max_running": 1}})
    for id in ("first", "second"):
        rollout.come(id, "old")
    rollout.ledger.leave("w1")
    rollout.install({"kept": {"max_running": 1}}, release="r2")
    assert rollout.sweep().grants == []
    assert rollout.turn(free=4).starts == []
    assert rollout.reasons() == [["nobody", "old", "r1"]] * 2
    cause = rollout.root("old")
    assert (cause.code, cause.job, cause.wrong) == ("no_release", "old", True)
    assert "last seen in release r1" in cause.text
    assert "cancel --job old" in str(cause.fix)
    assert rollout.come("other", "kept") == "start"
    assert rollout.why("second", "run") == ("no_release", "old")
    rollout.end("other")
    rollout.ledger.leave("w1")
    rollout.install({"old": {"max_running": 1}, "kept": {"max_running": 1}}, release="r1")
    assert [start.id for start in rollout.turn(free=4).starts] == ["first"]


def test_a_message_that_came_to_a_worker_without_its_job_goes_to_one_that_has_it(rollout: Rollout):
    rollout.roll_out({"new": {"max_running": 1, "keyed": True}}, {"both": {}})
    assert rollout.stray("a", "new") == "wait"
    assert rollout.stray("a", "new") == "drop", "its reply may have got lost"
    assert rollout.reasons() == [["astray"]]
    assert rollout.why("a", "run") == ("astray", "new")
    assert rollout.sweep("w2").strays == []
    assert rollout.sweep("w1").strays == [b"a"]
    assert rollout.sweep("w1").strays == [], "it was given out a moment ago"
    assert rollout.come("a", "new", key="tenant") == "start"
    assert rollout.redis.zcard(key_of(PREFIX, "astray")) == 0
    assert rollout.come("b", "new", key="tenant") == "wait"
    assert rollout.come("a", "new", key="tenant") == "drop"
    assert rollout.end("a") == ["b"]


def test_a_stray_message_is_given_out_again_if_it_was_not_taken_in(rollout: Rollout):
    rollout.roll_out({"new": {}}, {"both": {}})
    rollout.stray("a", "new")
    assert rollout.sweep("w1").strays == [b"a"]
    rollout.redis.hincrby(key_of(PREFIX, "ledger"), "clock", 31_000)
    for worker in ("w1", "w2"):
        rollout.ledger.heartbeat(worker, 60_000, [])
    assert rollout.sweep("w1").strays == [b"a"]


def test_very_many_that_nobody_can_take_do_not_keep_others_from_being_given_out(rollout: Rollout):
    rollout.roll_out({"mine": {}}, {"theirs": {}})
    for number in range(700):
        rollout.stray(f"theirs {number}", "theirs", worker="w1")
    rollout.redis.hincrby(key_of(PREFIX, "ledger"), "clock", 1)
    rollout.stray("mine", "mine")
    assert b"mine" in [*rollout.sweep("w1").strays, *rollout.sweep("w1").strays]


def test_a_stray_message_can_be_cancelled_and_expires(rollout: Rollout):
    rollout.roll_out({"new": {}}, {"both": {}})
    rollout.stray("a", "new")
    rollout.stray("b", "new", expires_ms=1)
    assert [(one.id, one.why) for one in rollout.sweep("w2").endings] == [("b", "expired")]
    assert rollout.ledger.cancel_by_hand("me", "a")[0] == "waiting"
    assert rollout.redis.zcard(key_of(PREFIX, "astray")) == 0


def test_a_run_that_was_handed_over_to_the_wrong_worker_waits_again(rollout: Rollout):
    rollout.install({"new": {"max_running": 1}, "both": {}})
    rollout.come("a", "new")
    rollout.come("b", "new")
    [grant] = rollout.turn(ends={"a": "succeeded"}).grants
    rollout.roll_out({"new": {"max_running": 1}, "both": {}}, {"both": {}})
    assert rollout.stray("b", "new", grant=grant.number) == "wait"
    assert rollout.sweep("w2").grants == []
    assert [start.id for start in rollout.turn(free=1).starts] == ["b"]


def test_a_retry_that_came_to_the_wrong_worker_is_tried_again_where_its_job_is(rollout: Rollout):
    rollout.roll_out({"new": {"max_running": 1}}, {"both": {}})
    rollout.come("a", "new")
    assert rollout.stray("a", "new", attempt=1) == "later", "the attempt before it has not ended"
    rollout.turn(ends={"a": "retry"})
    assert rollout.stray("a", "new", attempt=1) == "wait"
    assert rollout.sweep("w1").strays == [b"a"]
    assert rollout.turn(come=[arrival("a", "new", attempt=1)]).answers[0].what == "start"
    rollout.end("a")
    assert rollout.come("b", "new") == "start"


def test_a_message_of_a_job_that_nobody_knows_becomes_a_dead_letter(rollout: Rollout):
    rollout.install({"one": {}})
    assert rollout.stray("a", "misspelt", worker="w1") == "nobody"
    assert rollout.stray("a", "misspelt", worker="w1") == "nobody"
    assert rollout.letters() == [("a", "misspelt")]
    assert rollout.ledger.read_dead_letter("a") is not None
    assert rollout.ledger.purge_dead_letters("me", ["a"]) == 1
    assert rollout.redis.zcard(key_of(PREFIX, "unknown_dead_letters")) == 0


def test_runs_of_a_removed_job_become_runs_of_another_one(rollout: Rollout):
    rollout.install({"old": {"max_running": 1}, "new": {"max_running": 1, "keyed": True}})
    rollout.come("failed", "old")
    rollout.end("failed", "failed")
    for id in ("runs", "waits"):
        rollout.come(id, "old")
    rollout.end("runs")
    rollout.ledger.leave("w1")
    rollout.install({"new": {"max_running": 1, "keyed": True}}, release="r2")
    other = ("new", "q", "")
    assert rollout.ledger.requeue("me", "failed", "failed", 0, b"failed") == ("unknown", [])
    for id in ("failed", "waits"):
        assert rollout.ledger.requeue("me", id, id, 0, id.encode(), other) == ("ok", [])
        assert rollout.ledger.requeue("me", id, id, 0, id.encode(), other) == ("none", [])
    assert rollout.ledger.requeue("me", "runs", "runs", 0, b"runs", other) == ("none", [])
    assert rollout.letters() == []
    assert rollout.sweep().strays == [b"failed", b"waits"]
    assert rollout.come("failed", "new", key="a") == rollout.come("waits", "new", key="b") == "start"
    assert [(change["what"], change["about"]) for change in map(json.loads, rollout.ledger.read_audit(2))] == [
        ("requeue", "waits"), ("requeue", "failed"),
    ]  # fmt: skip


def test_a_dead_letter_that_nobody_knew_runs_when_a_release_has_its_job(rollout: Rollout):
    rollout.install({"one": {}})
    assert rollout.stray("a", "new", worker="w1") == "nobody"
    rollout.ledger.leave("w1")
    rollout.install({"one": {}, "new": {"max_running": 1, "keyed": True}}, release="r2")
    assert rollout.ledger.requeue("me", "a", "a", 0, b"a") == ("ok", [])
    assert rollout.sweep().strays == [b"a"]
    assert rollout.come("a", "new", key="tenant") == "start"


def test_all_runs_of_a_job_that_have_not_started_can_be_cancelled(rollout: Rollout):
    rollout.install({"one": {"max_running": 1}, "two": {"max_running": 1}})
    for number in range(250):
        rollout.come(f"one {number}", "one")
        rollout.come(f"two {number}", "two")
    looked, first = rollout.ledger.list_unstarted("one", "waiting", 0, 100)
    assert (looked, len(first)) == (100, 50)
    count, _ = rollout.ledger.cancel_all_by_hand("me", first)
    assert count == 50
    assert rollout.ledger.cancel_all_by_hand("me", [*first, "one 0"])[0] == 0, "that one runs"
    assert rollout.status()["waiting"] == 448
    assert [json.loads(one)["about"] for one in rollout.ledger.read_audit(1)] == ["50 runs"]

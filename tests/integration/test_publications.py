"""One call is one run: a task id that is published again is another run, and a copy of a message is not."""

from __future__ import annotations

import json

import pytest

from celery_orchestration.ledger import Answer, Arrival, Claim, Discarded
from celery_orchestration.ledger.records import HistoryLine, key_of
from support.ledger import PREFIX, Shop, arrival
from support.servers import RedisServer


@pytest.fixture
def shop(redis_server: RedisServer) -> Shop:
    shop = Shop(redis_server)
    shop.install({"one": {"max_running": 1}, "free": {}})
    return shop


def answer(shop: Shop, one: Arrival) -> Answer:
    [found] = shop.turn(come=[one]).answers
    return found


def call(publication: str, job: str = "one", id: str = "a", **more: object) -> Arrival:
    return arrival(id, job, publication=publication, **more)


def starts(shop: Shop, one: Arrival) -> str:
    """The id of the run that it starts."""
    found = answer(shop, one)
    assert found.what == "start", found
    return found.run


def copies(shop: Shop, job: str = "one") -> int:
    """How many copies were dropped."""
    [found] = shop.ledger.read_jobs([job])
    return found["dropped_copies"]


def history(shop: Shop, job: str = "one") -> list[tuple[str, str]]:
    """Run and outcome of each, the latest first."""
    return [(one.id, one.outcome) for one in map(HistoryLine.read, shop.ledger.read_history(job, 100) or ())]


def left_over(shop: Shop) -> set[str]:
    kinds = {key.removeprefix(PREFIX).partition(":")[0] for key in shop.redis.keys("*")}
    return kinds & {"r", "x", "p", "wait", "gr", "later", "due", "n"}


class TestPublishedAgain:
    def test_after_the_first_has_ended_it_runs(self, shop: Shop):
        shop.end(starts(shop, call("1")))
        shop.end(starts(shop, call("2")), "failed")
        shop.end(starts(shop, call("3")))
        assert history(shop) == [("a~3", "succeeded"), ("a~2", "failed"), ("a", "succeeded")]
        assert [json.loads(info)["id"] for info, _ in shop.ledger.list_dead_letters("one", 0, 10)] == ["a~2"]
        assert copies(shop) == 0

    def test_while_the_first_runs_it_runs_beside_it(self, shop: Shop):
        first, second = starts(shop, call("1", "free")), starts(shop, call("2", "free"))
        assert (first, second) == ("a", "a~2")
        assert shop.ledger.heartbeat("w1", 30_000, [(id, shop.fences[id]) for id in (first, second)]) == []
        assert shop.turn(ends={second: "succeeded", first: "failed"}).settled == ["ok", "ok"]
        assert history(shop, "free") == [("a", "failed"), ("a~2", "succeeded")]

    def test_while_the_first_waits_it_waits_too(self, shop: Shop):
        assert starts(shop, call("0", id="other")) == "other"
        assert [answer(shop, call(number)).what for number in "12"] == ["wait", "wait"]
        assert shop.end("other") == ["a"]
        assert shop.end("a") == ["a~2"]
        assert shop.end("a~2") == []
        assert not left_over(shop)

    def test_as_soon_as_the_first_is_forgotten_it_has_the_id(self, shop: Shop):
        shop.end(starts(shop, call("1")))
        assert answer(shop, call("2")).run == "a~2"
        shop.redis.delete(key_of(PREFIX, "done", "a"))
        assert answer(shop, call("3")).what == "wait"
        assert shop.end("a~2") == ["a"]
        assert answer(shop, call("2")).what == answer(shop, call("3")).what == "drop", "each is still known"

    def test_a_message_that_says_nothing_runs_if_it_was_not_delivered_before(self, shop: Shop):
        shop.end(starts(shop, call("1")))
        assert starts(shop, call("2", anonymous=False)) == "a~2"


class TestCopies:
    @pytest.mark.parametrize("publication", ["1", "2"])
    def test_of_a_run_that_waits_runs_or_has_ended_are_dropped_and_counted(self, shop: Shop, publication: str):
        starts(shop, call("0", id="other"))
        for number in "12":
            answer(shop, call(number))
        run = {"1": "a", "2": "a~2"}[publication]
        dropped = [answer(shop, call(publication))]
        shop.end("other")
        if run == "a~2":
            shop.end("a")
        dropped.append(answer(shop, call(publication)))
        shop.end(run)
        dropped.append(answer(shop, call(publication)))
        assert [(one.what, one.detail) for one in dropped] == [
            ("drop", (why,)) for why in ("waiting", "running", "ended")
        ]
        assert copies(shop) == 3

    def test_whose_publication_nobody_knows_are_dropped_if_the_id_is_known(self, shop: Shop):
        assert starts(shop, call("7", anonymous=True)) == "a", "it was delivered before, but not to us"
        assert answer(shop, call("8", anonymous=True)).detail == ("running",)
        shop.end("a")
        assert answer(shop, call("9", anonymous=True)).detail == ("ended",)

    def test_of_our_own_are_not_counted(self, shop: Shop):
        starts(shop, call("1"))
        answer(shop, call("2"))
        [grant] = shop.turn(ends={"a": "succeeded"}).grants
        assert grant.id == "a~2"
        assert answer(shop, call("2", grant="7")).what == "drop", "an old grant"
        assert starts(shop, call("2", grant=grant.number)) == "a~2"
        assert answer(shop, call("2", grant=grant.number)).what == "drop"
        assert copies(shop) == 0

    def test_of_a_call_whose_answer_was_lost_give_the_same_run(self, shop: Shop):
        starts(shop, call("1", "free"))
        shop.number += 1
        turns = [shop.ledger.turn("w1", shop.number, "enforce", 0, [], [call("2", "free")]) for _ in range(2)]
        assert turns[0] == turns[1]
        assert turns[0].answers[0].run == "a~2"


class TestAttempts:
    def test_a_retry_continues_the_run_it_comes_from(self, shop: Shop):
        for number in "12":
            starts(shop, call(number, "free"))
        assert answer(shop, call("2", "free", attempt=1)).what == "wait", "for the attempt before it"
        assert answer(shop, call("1", "free", attempt=1)).what == "wait"
        assert answer(shop, call("2", "free", attempt=1)).detail == ("superseded",)
        turn = shop.turn(ends={"a": "retry", "a~2": "retry"}, free=2)
        assert {start.id for start in turn.starts} == {"a", "a~2"}
        shop.turn(ends={"a": "succeeded", "a~2": "succeeded"})
        assert answer(shop, call("2", "free", attempt=0)).detail == ("ended",)
        assert not left_over(shop)

    def test_a_replacement_after_the_end_continues_its_run(self, shop: Shop):
        starts(shop, call("1", "free"))
        shop.end(starts(shop, call("2", "free")), "ignored")
        assert starts(shop, call("2", "free", attempt=1 << 20)) == "a~2"
        shop.turn(ends={"a": "succeeded", "a~2": "succeeded"})
        assert not left_over(shop)


class TestPeople:
    def test_a_revoke_reaches_all_runs_of_a_task_id(self, shop: Shop):
        starts(shop, call("0", id="other"))
        for number in "123":
            answer(shop, call(number))
        endings, _ = shop.ledger.cancel("w1", 1, "revoked", ["a"])
        assert sorted(ending.id for ending in endings) == ["a", "a~2", "a~3"]
        assert shop.ledger.confirm_end([(ending.id, 0) for ending in endings]) == []
        assert shop.end("other") == []
        assert not left_over(shop)

    def test_a_dead_letter_is_remembered_as_revoked(self, shop: Shop):
        for number in "12":
            shop.end(starts(shop, call(number)), "failed")
        shop.ledger.cancel("w1", 1, "revoked", ["a"])
        assert [revoked for _, revoked in shop.ledger.list_dead_letters("one", 0, 10) or ()] == [True, True]
        assert shop.ledger.purge_dead_letters("me", ["a", "a~2"]) == 2
        assert not left_over(shop)

    def test_cancelling_one_leaves_the_others(self, shop: Shop):
        starts(shop, call("0", id="other"))
        for number in "12":
            answer(shop, call(number))
        assert shop.ledger.cancel_by_hand("me", "a~2") == ("waiting", [])
        assert shop.end("other") == ["a"]

    def test_a_message_that_celery_discarded_ends_its_own_run_only(self, shop: Shop):
        starts(shop, call("0", id="other"))
        for number in "12":
            answer(shop, call(number))
        shop.ledger.confirm_end_of_messages([Discarded("a", 0, "3"), Discarded("a", 0, "2")])
        assert shop.end("other") == ["a"]
        assert shop.end("a") == []
        assert history(shop) == [("a", "succeeded"), ("other", "succeeded"), ("a~2", "revoked")]

    def test_runs_of_one_task_id_are_found_and_explained_one_by_one(self, shop: Shop):
        shop.end(starts(shop, call("1")))
        assert shop.ledger.find_ids("a", False, 4, 10, 10) == []
        starts(shop, call("2"))
        assert shop.ledger.find_ids("a", False, 4, 10, 10) == ["a~2"]
        answer(shop, call("3"))
        assert sorted(shop.ledger.find_ids("a", False, 4, 10, 10)) == ["a~2", "a~3"]
        assert shop.ledger.find_ids("a~3", False, 4, 10, 10) == ["a~3"]
        chain = shop.ledger.explain("run", "a~3")["chain"]
        assert [one["run"]["id"] for one in chain] == ["a~3", "a~2"]

    def test_a_requeued_letter_keeps_its_run(self, shop: Shop):
        for number in "12":
            shop.end(starts(shop, call(number)), "failed")
        what, [grant] = shop.ledger.requeue("me", "a~2", "a~2", 0, b"again")
        assert (what, grant.id) == ("ok", "a~2")
        assert answer(shop, call("2")).what == "drop"
        assert starts(shop, call("2", grant=grant.number)) == "a~2"
        shop.end("a~2")
        assert not left_over(shop)


class TestEpochs:
    def test_runs_of_one_task_id_are_claimed_one_by_one(self, shop: Shop):
        claims = []
        for number in "12":
            one = call(number, "free")
            run = starts(shop, one)
            claims.append(Claim(one, shop.fences[run], run))
        shop.redis.delete(
            *shop.redis.keys(key_of(PREFIX, "run", "*")),
            *shop.redis.keys(key_of(PREFIX, "task_runs", "*")),
            key_of(PREFIX, "worker_runs", "w1"),
        )
        shop.redis.hdel(key_of(PREFIX, "job", "free"), "state")
        epoch = shop.register("w1").epoch
        assert shop.ledger.claim_runs("w1", epoch, [], claims).answers == ["ok", "ok"]
        assert shop.turn(ends={"a": "succeeded", "a~2": "succeeded"}).settled == ["ok", "ok"]
        assert not left_over(shop)

    def test_a_run_that_came_before_the_claim_gets_an_id_of_its_own(self, shop: Shop):
        """The ledger had forgotten the run that a worker has, and gave its id to the next publication."""
        starts(shop, call("0", id="other"))
        assert answer(shop, call("2")).what == "wait"
        epoch = shop.register("w1").epoch
        claims = [
            Claim(call("1"), str(int(shop.fences["other"]) + 1)),
            Claim(call("0", id="other"), shop.fences["other"]),
        ]
        assert shop.ledger.claim_runs("w1", epoch, [], claims).answers == ["ok", "ok"]
        shop.fences["a"] = claims[0].fence
        assert shop.end("other") == []
        assert shop.end("a") == ["a~2"]
        shop.end("a~2")
        assert not left_over(shop)

    def test_a_run_that_the_worker_had_before_goes_back(self, shop: Shop):
        """The ledger had forgotten that it ended, and that the next publication got its id."""
        starts(shop, call("1"))
        epoch = shop.register("w1").epoch
        claims = [Claim(call("2"), str(int(shop.fences["a"]) + 1))]
        found = shop.ledger.claim_runs("w1", epoch, [], claims)
        assert (found.answers, found.returned) == (["ok"], 1)
        assert shop.turn(ends={"a": "succeeded"}).settled == ["refused"], "nobody has the first one"
        shop.fences["a"] = claims[0].fence
        assert shop.end("a") == ["a~1"]
        shop.end("a~1")
        assert not left_over(shop)

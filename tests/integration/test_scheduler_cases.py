"""Cases in which fires were once lost, doubled or stuck, verb by verb and step by step."""

from __future__ import annotations

from typing import Any

import pytest

from celery_orchestration.ledger import Ledger
from celery_orchestration.ledger.records import key_of
from celery_orchestration.scheduler.leadership import Term
from support.dispatching import Beat
from support.ledger import PREFIX, arrival
from support.wait import until

HOUR_MS = 3_600_000
J_AFTER_D = {"d": {"max_running": 1}, "j": {"depends_on": [{"job": "d", "on": "idle"}]}}


class TestContinuousJobs:
    def start(self, beat: Beat, **more: Any) -> str:
        beat.begin({"one": {"max_running": 1}})
        beat.adopt_continuous(**more)
        [grant] = beat.ledger.continue_entries(beat.term, ["e"]).grants
        beat.run(grant)
        return grant.id

    def test_a_job_that_is_no_longer_continuous_ends_with_its_run(self, beat: Beat):
        """A new release leads, which has no such entry."""
        id = self.start(beat)
        beat.ledger.resign("s1", beat.term)
        until(lambda: beat.redis.zscore(key_of(PREFIX, "entries"), "e") < beat.now())
        beat.term = beat.lead("s2")
        assert beat.ledger.retire_entries(beat.term)
        assert beat.end(id) == []
        assert beat.runs() == {}

    def test_a_continuous_job_whose_run_goes_back_to_the_broker_has_one_run(self, beat: Beat):
        id = self.start(beat)
        beat.turn(ends={id: "requeued"})
        for _ in range(3):
            assert beat.ledger.continue_entries(beat.term, ["e"]).answers == [("rests",)]
        assert beat.come(id, "one") == "start"
        [following] = beat.end(id)
        assert following != id

    def test_a_continuous_job_goes_on_at_once_when_the_clock_of_redis_was_set_back(self, beat: Beat):
        id = self.start(beat, gap_ms=1000)
        beat.redis.hset(key_of(PREFIX, "entry", "e"), "last", beat.now() + HOUR_MS)
        beat.end(id)
        [following] = beat.runs()
        assert beat.redis.zscore(key_of(PREFIX, "later"), following) < beat.now() + 60_000


class TestRunsThatGoBackToTheBroker:
    """Reject(requeue=True)"""

    def test_a_run_that_goes_back_to_the_broker_has_not_ended(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        id = beat.starts()
        beat.turn(ends={id: "requeued"})
        assert beat.fires(overlap="skip")[0] == "skipped"
        assert beat.come(id, "one") == "start"
        assert beat.come(id, "one") == "drop", "it is that very attempt"
        beat.end(id)
        assert beat.fires(overlap="skip") == ("fired",)

    def test_are_sent_again_as_they_were_if_the_broker_loses_them(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        id = beat.starts()
        beat.turn(ends={id: "requeued"})
        beat.redis.zadd(key_of(PREFIX, "deadlines"), {id: -1})
        assert beat.sweep().retries == [id]
        found = beat.ledger.read_retry(id)
        assert found is not None
        assert found[1] == -1  # the next attempt is the first


class TestWhoWaitsForAFire:
    def test_is_not_who_came_before_it_whatever_comes_first_in_rank(self, beat: Beat):
        beat.begin({**J_AFTER_D, "j": {**J_AFTER_D["j"], "max_running": 1}})
        beat.adopt("d", "d")
        assert [beat.come("j0", "j"), beat.come("j1", "j")] == ["start", "wait"]
        beat.ledger.enable_or_disable("d", False, "me", "")
        assert beat.fires("d", "d") == ("fired",)
        assert beat.turn(come=[arrival("j2", "j", priority=2)]).answers[0].what == "wait"
        assert beat.end("j0") == ["j1"]
        assert beat.end("j1") == []

    def test_goes_on_if_that_run_is_lost(self, beat: Beat):
        beat.begin(J_AFTER_D)
        beat.adopt("d", "d")
        assert beat.come("d0", "d") == "start"
        fire = beat.fire("d", "d")
        beat.dispatch(fire)
        assert beat.come("j1", "j") == "wait"
        beat.redis.hset(key_of(PREFIX, "run", fire.id), "record", "garbage")
        assert beat.end("d0") == ["j1"]

    def test_goes_on_if_a_worker_of_an_older_release_started_it(self, beat: Beat):
        beat.begin(J_AFTER_D)
        beat.redis.zadd(key_of(PREFIX, "unstarted", "d"), {"long gone": 1})
        assert beat.come("j1", "j") == "start"
        assert not beat.redis.exists(key_of(PREFIX, "unstarted", "d"))


class TestGarbage:
    @pytest.mark.parametrize("last", ["inf", "-inf", "nan", "soon"])
    def test_a_time_that_is_none_concerns_its_entry_only(self, beat: Beat, last: str):
        beat.begin({"one": {}})
        fires = []
        for entry in "ef":
            beat.adopt(entry)
            fires.append(beat.fire(entry))
        beat.redis.hset(key_of(PREFIX, "entry", "e"), "last", last)
        assert [answer[0] for answer in beat.dispatch(*fires).answers] == ["corrupt", "fired"]
        assert beat.adopt("e").problem.startswith("corrupt")

    @pytest.mark.parametrize("name", ["added_entries", "changed_entries", "entries", "unstarted"])
    def test_a_key_of_another_type_is_set_aside(self, any_beat: Beat, name: str):
        beat = any_beat
        beat.begin({"one": {}})
        beat.adopt("e")
        key = key_of(PREFIX, name, "one") if name == "unstarted" else key_of(PREFIX, name)
        beat.redis.delete(key)
        beat.redis.set(key, "x")
        assert beat.ledger.read_changes(None).entries == []
        assert beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}")) == "ok"
        assert beat.fires("e") == ("fired",)
        assert beat.adopt("f").problem == ""

    def test_no_number_of_changes_is_none(self, beat: Beat):
        beat.begin({"one": {}})
        beat.redis.hset(key_of(PREFIX, "ledger"), "changes", "x")
        assert beat.lead("s1", beat.term) == beat.term

    def test_a_lane_of_another_type_keeps_no_fire_of_others_from_being_granted(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"bad": {"max_running": 1}, "good": {}})
        for entry in ("bad", "good"):
            beat.adopt(entry, entry)
        beat.come("busy", "bad")
        beat.come("waits", "bad")
        beat.redis.delete(key_of(PREFIX, "lane", "bad", ""))
        beat.redis.set(key_of(PREFIX, "lane", "bad", ""), "x")
        found = beat.dispatch(beat.fire("bad", "bad"), good := beat.fire("good", "good"))
        assert found.answers == [("fired",), ("fired",)]
        assert [grant.id for grant in found.grants] == [good.id]
        assert beat.end("busy") == ["waits"]


def test_an_entry_that_is_ahead_of_a_clock_that_was_set_back_begins_anew(beat: Beat):
    beat.begin({"one": {}})
    beat.adopt()
    beat.redis.hset(key_of(PREFIX, "entry", "e"), "last", beat.now() + HOUR_MS)
    assert beat.adopt(ago_ms=1000).last_ms <= beat.now()
    assert beat.fires(due_ms=beat.now()) == ("fired",)
    beat.redis.hset(key_of(PREFIX, "entry", "e"), "last", beat.now() + HOUR_MS)
    beat.ledger.change_schedule("me", "pause", "e", "")
    beat.ledger.change_schedule("me", "resume", "e", "")
    assert int(beat.entry()["last"]) <= beat.now()


class TestALeaderThatCannotDispatch:
    def term(self, beat: Beat, silent: list[float]) -> Term:
        ledger: Ledger = beat.ledger.new_connection()
        return Term(ledger, "s1", "s1@host", 10, lambda: None, lambda: silent[0])

    def test_resigns_and_asks_no_more_until_it_can(self, beat: Beat):
        beat.install({"one": {}})
        silent = [0.0]
        term = self.term(beat, silent)
        term._ask()
        assert term.number
        silent[0] = 60.0
        term._ask()
        assert term.number == ""
        assert beat.lead("s2"), "another one can"
        silent[0] = 0.0
        term._ask()
        assert term.number == ""

"""Continuous jobs: the ledger makes the next run itself, in the script that ends the last one."""

from __future__ import annotations

import pytest

from celery_orchestration.ledger import Dispatched, Outcome
from celery_orchestration.ledger.records import key_of
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.message import Call
from support.dispatching import Beat, message_of
from support.ledger import PREFIX, arrival


class TestContinuous:
    @pytest.fixture
    def one(self, beat: Beat) -> Beat:
        beat.begin({"one": {"max_running": 1}})
        beat.adopt_continuous()
        return beat

    def start(self, beat: Beat, entry: str = "e") -> str:
        """The chain begins, and its first run is running."""
        found = beat.ledger.continue_entries(beat.term, [entry])
        assert (found.what, found.answers) == ("ok", [("fired",)])
        [grant] = found.grants
        beat.run(grant)
        return grant.id

    def go_on(self, beat: Beat, entry: str = "e") -> str:
        [(what,)] = beat.ledger.continue_entries(beat.term, [entry]).answers
        return what

    def test_begins_at_once(self, one: Beat):
        id = self.start(one)
        assert one.entry()["run"] == id
        assert one.runs() == {id: "running"}

    def test_has_one_run_at_a_time(self, one: Beat):
        self.start(one)
        for _ in range(3):
            assert one.ledger.continue_entries(one.term, ["e"]) == Dispatched("ok", [("rests",)], [])

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "ignored", "rejected", "revoked"])
    def test_goes_on_in_the_call_that_ends_a_run(self, one: Beat, outcome: str):
        """However it ended: no scheduler is needed."""
        id = self.start(one)
        one.ledger.resign("s1", one.term)
        for _ in range(3):
            [following] = one.end(id, outcome)
            assert following != id
            assert one.runs() == {following: "running"}
            id = following
        assert int(one.entry()["fires"]) == 4

    def test_its_runs_have_the_ids_that_schedulers_know(self, one: Beat):
        id = self.start(one)
        for _ in range(3):
            known = Entry("e", Call("one", (), {}, {}), "", None, generation=one.adopted["e"].generation)
            assert id == known.run_id(int(one.entry()["last"]))
            [id] = one.end(id)

    def test_its_messages_have_the_id_in_their_heads(self, one: Beat):
        turn = one.turn(ends={self.start(one): "succeeded"}, free=1)
        [start] = turn.starts
        assert start.message == message_of(start.id)

    def test_it_is_granted_where_no_slot_is_free(self, one: Beat):
        [grant] = one.turn(ends={self.start(one): "succeeded"}).grants
        assert one.ledger.read_granted(grant) == ("q", message_of(grant.id))

    def test_waits_between_two_runs_if_it_has_an_interval(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt_continuous(gap_ms=60_000)
        id = self.start(beat)  # the first one at once
        assert beat.end(id) == []
        [following] = beat.runs()
        assert beat.redis.zscore(key_of(PREFIX, "later"), following) == pytest.approx(beat.now() + 60_000, abs=10_000)
        assert self.go_on(beat) == "rests"

    def test_goes_on_when_the_clock_of_redis_was_set_back(self, beat: Beat):
        """Its next run seems to be due in two hours then."""
        beat.begin({"one": {"max_running": 1}})
        beat.adopt_continuous(gap_ms=7_200_000)
        assert beat.end(self.start(beat)) == []
        [(following, _)] = beat.redis.zrange(key_of(PREFIX, "later"), 0, -1, withscores=True)
        beat.redis.hset(key_of(PREFIX, "entry", "e"), "gap", 1000)
        for _ in range(2):
            assert self.go_on(beat) == "rests"
            assert beat.runs() == {following: "later"}
            assert 0 < beat.redis.zscore(key_of(PREFIX, "later"), following) - beat.now() <= 1000

    def test_survives_a_crashed_worker(self, one: Beat):
        one.register("w2")
        [grant] = one.ledger.continue_entries(one.term, ["e"]).grants
        one.run(grant, worker="w2")
        [again] = one.dies("w2").grants
        assert again.id == grant.id, "it is the same run"
        one.run(again)
        assert len(one.end(grant.id)) == 1

    def test_goes_on_when_a_run_crashed_for_good(self, beat: Beat):
        beat.begin({"one": {"max_running": 1, "on_crash": "fail"}})
        beat.adopt_continuous()
        beat.register("w2")
        [grant] = beat.ledger.continue_entries(beat.term, ["e"]).grants
        beat.run(grant, worker="w2")
        swept = beat.dies("w2")
        assert [ending.id for ending in swept.endings] == [grant.id]
        [following] = swept.grants
        assert following.id != grant.id
        assert self.go_on(beat) == "rests"

    def test_goes_on_when_a_run_is_cancelled(self, one: Beat):
        """Before it starts."""
        one.ledger.enable_or_disable("one", False, "me", "")
        assert self.go_on(one) == "fired"
        [id] = one.runs()
        assert one.ledger.cancel_by_hand("me", id)[0] == "waiting"
        one.ledger.confirm_end([(id, 0)])
        [following] = one.runs()
        assert following != id
        assert self.go_on(one) == "rests"

    def test_goes_on_when_a_worker_finds_the_message_of_a_run_revoked(self, one: Beat):
        [grant] = one.ledger.continue_entries(one.term, ["e"]).grants
        [following] = one.ledger.confirm_end([(grant.id, 0)])
        assert following.id != grant.id

    def test_a_disabled_job_holds(self, one: Beat):
        id = self.start(one)
        one.ledger.enable_or_disable("one", False, "me", "")
        assert one.end(id) == []
        [held] = one.runs()
        assert self.go_on(one) == "rests"
        assert [grant.id for grant in one.ledger.enable_or_disable("one", True, "me", "")] == [held]

    def test_a_disabled_job_that_drops_runs_stops_and_begins_again_when_it_is_enabled(self, beat: Beat):
        beat.begin({"one": {"max_running": 1, "when_disabled": "drop"}})
        beat.adopt_continuous()
        id = self.start(beat)
        beat.ledger.enable_or_disable("one", False, "me", "")
        assert beat.end(id) == []
        assert beat.runs() == {}
        assert self.go_on(beat) == "rests"
        beat.ledger.enable_or_disable("one", True, "me", "")
        assert self.go_on(beat) == "fired"

    def test_a_job_that_drops_gets_its_probe(self, beat: Beat):
        beat.begin(
            {"one": {"max_running": 1, "when_disabled": "drop", "max_consecutive_failures": 1, "cool_down_seconds": 60}}
        )
        beat.adopt_continuous()
        id = self.start(beat)
        assert beat.end(id, "failed") == []
        assert self.go_on(beat) == "rests"
        beat.redis.zadd(key_of(PREFIX, "timers"), {"cool_down:one": 1})
        beat.sweep()
        probe = self.start(beat)
        assert len(beat.end(probe)) == 1, "it works again"

    def test_a_failing_job_is_disabled_and_held(self, beat: Beat):
        beat.begin({"one": {"max_running": 1, "max_consecutive_failures": 2}})
        beat.adopt_continuous()
        [second] = beat.end(self.start(beat), "failed")
        assert beat.end(second, "failed") == []
        assert list(beat.runs().values()) == ["waiting"]

    def test_stops_when_its_entry_is_paused(self, one: Beat):
        id = self.start(one)
        one.ledger.change_schedule("me", "pause", "e", "")
        assert one.end(id) == []
        assert one.runs() == {}
        assert self.go_on(one) == "rests"
        one.ledger.change_schedule("me", "resume", "e", "")
        assert self.go_on(one) == "fired"

    def test_is_held_while_everything_is_paused(self, one: Beat):
        id = self.start(one)
        one.ledger.pause_or_resume(True, "me", "")
        assert one.end(id) == []
        assert len(one.ledger.pause_or_resume(False, "me", "")) == 1

    def test_a_retry_is_the_same_run(self, one: Beat):
        id = self.start(one)
        assert one.turn(ends={id: "retry"}, free=1).starts == []
        assert self.go_on(one) == "rests"
        assert one.come(id, "one", attempt=1) == "start"
        [following] = one.end(id)
        assert following != id

    def test_a_retry_that_came_before_the_last_attempt_ended_is_the_same_run(self, one: Beat):
        id = self.start(one)
        assert one.come(id, "one", attempt=1) == "wait"
        [start] = one.turn(ends={id: "retry"}, free=1).starts
        assert start.id == id
        [following] = one.end(id)
        assert following != id

    def test_a_run_that_replaced_itself_is_the_same_run(self, one: Beat):
        id = self.start(one)
        assert one.come(id, "one", attempt=1 << 20) == "wait"
        [start] = one.turn(ends={id: "ignored"}, free=4).starts
        assert start.id == id
        assert one.runs() == {id: "running"}
        [following] = one.end(id)
        assert one.runs() == {following: "running"}

    def test_goes_on_beside_another_job_that_replaced_a_run(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}, "two": {}})
        beat.adopt_continuous()
        id = self.start(beat)
        assert beat.come(id, "two", attempt=1 << 20) == "wait"
        starts = {start.id for start in beat.turn(ends={id: "ignored"}, free=4).starts}
        assert id in starts
        assert len(starts) == 2
        [following] = starts - {id}
        beat.end(id, free=0)
        assert beat.runs() == {following: "running"}

    def test_a_run_that_nobody_knows_of_any_more_is_followed_by_another(self, one: Beat):
        """The next check of the leader repairs the chain."""
        id = self.start(one)
        one.redis.hset(key_of(PREFIX, "entry", "e"), "run", "forgotten")
        assert self.go_on(one) == "fired"
        assert one.end(id, free=0) == []
        assert len(one.runs()) == 1

    def test_an_entry_that_vanished_is_to_be_adopted(self, one: Beat):
        id = self.start(one)
        one.redis.delete(key_of(PREFIX, "entry", "e"))
        assert self.go_on(one) == "stale"
        assert one.end(id) == []
        one.adopt_continuous()
        assert self.go_on(one) == "fired"

    @pytest.mark.parametrize("field", ["message", "queue", "granted_queue", "key", "priority", "gap"])
    @pytest.mark.parametrize("garbage", [None, "x"])
    def test_a_corrupt_entry_does_not_affect_others(self, any_beat: Beat, field: str, garbage: str | None):
        """Its runs end, and it is adopted again."""
        beat = any_beat
        beat.begin({"one": {"max_running": 1}, "other": {}})
        beat.adopt_continuous()
        id = self.start(beat)
        if garbage is None:
            beat.redis.hdel(key_of(PREFIX, "entry", "e"), field)
        else:
            beat.redis.hset(key_of(PREFIX, "entry", "e"), field, garbage)
        turn = beat.turn(ends={id: "succeeded"}, come=[arrival("a", "other")])
        assert (turn.settled, turn.answers[0].what) == (["ok"], "start")
        if field in ("queue", "granted_queue", "key") and garbage:
            assert len(beat.runs()) == 2, "it goes on"
        else:
            assert self.go_on(beat) == "stale"
            beat.adopt_continuous()
            assert self.go_on(beat) == "fired"

    def test_an_entry_of_another_type_does_not_affect_others(self, any_beat: Beat):
        any_beat.begin({"one": {"max_running": 1}})
        any_beat.adopt_continuous()
        id = self.start(any_beat)
        any_beat.redis.delete(key_of(PREFIX, "entry", "e"))
        any_beat.redis.set(key_of(PREFIX, "entry", "e"), "x")
        assert any_beat.end(id) == []
        assert self.go_on(any_beat) == "stale"

    def test_an_entry_that_is_continuous_no_more_stops(self, one: Beat):
        id = self.start(one)
        one.adopt()
        assert one.end(id) == []
        assert self.go_on(one) == "stale"
        assert not {"gap", "message", "queue", "granted_queue", "key", "priority"} & one.entry().keys()

    def test_stops_when_nobody_brings_its_job_any_more(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}, "other": {}})
        beat.adopt_continuous()
        id = self.start(beat)
        beat.register("w2", release="r2")
        beat.ledger.leave("w1")
        beat.install({"other": {}}, release="r2")
        beat.redis.hset(key_of(PREFIX, "run", id), "x", "")
        for grant in beat.sweep().grants:
            beat.run(grant)
            assert beat.end(grant.id) == []
        assert self.go_on(beat) == "rests"

    def test_others_that_wait_for_it_are_looked_at_before_its_next_run(self, beat: Beat):
        beat.begin(
            {"one": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "one"}], "blocks": ["one"]}}
        )
        beat.adopt_continuous()
        id = self.start(beat)
        assert beat.come("j1", "j") == "wait"
        assert beat.end(id, free=4) == ["j1"]
        [following] = beat.end("j1", free=4)
        assert beat.entry()["run"] == following

    def test_a_continuous_job_goes_on_in_observe_mode(self, one: Beat):
        id = self.start(one)
        one.number += 1
        turn = one.ledger.turn("w1", one.number, "observe", 1, [Outcome(id, one.fences[id], "succeeded")], [])
        assert len(turn.starts) == 1

    def test_leaves_nothing_behind_when_it_was_stopped(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}, "j": {"depends_on": [{"job": "one"}]}})
        beat.adopt_continuous()
        [grant] = beat.ledger.continue_entries(beat.term, ["e"]).grants
        beat.run(grant)
        [following] = beat.end(grant.id)
        beat.ledger.change_schedule("me", "pause", "e", "")
        beat.end(following)
        assert beat.leftovers() == set(), "I5"

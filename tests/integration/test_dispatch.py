"""Terms, entries and fires: what the ledger decides for schedulers, verb by verb, on a real Redis.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from celery_orchestration.ledger import Adopted, Adoption, Dispatched
from celery_orchestration.ledger.records import HistoryLine, key_of
from support.dispatching import EVER_MS, TERM_MS, Beat
from support.ledger import PREFIX, arrival

STARTED, ENDED = "the run before it has not started", "the run before it has not ended"
DISABLED = "its job is disabled"


class TestTerms:
    def test_one_leads_at_a_time(self, beat: Beat):
        first = beat.lead("s1")
        assert first
        assert beat.lead("s2") == ""
        found = beat.ledger.lead("s2", "s2@host", TERM_MS, "")
        assert (found.term, found.leader) == ("", "s1@host")
        assert abs(found.now - beat.now()) < 5000

    def test_a_term_is_renewed_by_asking(self, beat: Beat):
        term = beat.lead()
        since = beat.redis.hget(key_of(PREFIX, "leader"), "since")
        for _ in range(5):
            beat.time_passes(TERM_MS - 60_000)
            found = beat.ledger.lead("s1", "s1@host", TERM_MS, term)
            assert (found.term, beat.redis.hget(key_of(PREFIX, "leader"), "since")) == (term, since)
        assert beat.lead("s2") == ""

    def test_a_term_that_is_over_is_renewed_if_nobody_else_leads(self, beat: Beat):
        term = beat.lead()
        beat.time_passes(TERM_MS + 1000)
        assert beat.ledger.adopt_entries(term, 1, []) is None
        assert beat.lead("s1", term) == term
        assert beat.ledger.adopt_entries(term, 1, []) == []

    def test_a_term_that_is_over_by_the_clock_of_redis_goes_to_the_next_scheduler_that_asks(self, beat: Beat):
        first = beat.lead("s1")
        beat.time_passes(TERM_MS + 1000)
        second = beat.lead("s2")
        assert int(second) > int(first)
        assert beat.lead("s1", first) == ""
        beat.time_passes(TERM_MS + 1000)
        assert int(beat.lead("s1", first)) > int(second), "it is a new one, whatever it was told before"

    def test_a_leader_that_resigns_leaves_the_lead_to_others_at_once(self, beat: Beat):
        first = beat.lead("s1")
        assert beat.ledger.resign("s1", first)
        assert not beat.ledger.resign("s1", first)
        assert beat.ledger.adopt_entries(first, 1, []) is None
        assert int(beat.lead("s2")) > int(first)

    def test_nobody_resigns_for_another(self, beat: Beat):
        term = beat.lead("s1")
        assert not beat.ledger.resign("s2", term)
        assert not beat.ledger.resign("s1", "7")
        assert beat.ledger.adopt_entries(term, 1, []) == []

    def test_a_lost_reply_gives_the_same_term(self, beat: Beat):
        assert beat.lead("s1") == beat.lead("s1")

    def test_a_clock_that_was_set_back_makes_no_term_longer(self, beat: Beat):
        """A scheduler asks, and its term ends within its length from then."""
        beat.lead("s1")
        beat.set_clock_back(3_600_000)
        assert beat.lead("s2") == ""
        assert int(beat.redis.hget(key_of(PREFIX, "leader"), "until")) <= beat.now() + TERM_MS
        beat.time_passes(TERM_MS)
        assert beat.lead("s2")

    def test_a_term_is_higher_than_those_before_redis_was_emptied(self, beat: Beat):
        first = beat.lead()
        beat.redis.flushall()
        second = beat.lead()
        assert int(second) > int(first)
        assert beat.ledger.adopt_entries(first, 1, []) is None

    def test_a_new_leader_is_chosen_if_the_record_of_the_lead_is_corrupt(self, any_beat: Beat):
        any_beat.redis.set(key_of(PREFIX, "leader"), "x")
        assert any_beat.lead("s1")
        assert any_beat.lead("s2") == ""

    def test_everybody_hears_how_often_people_changed_the_schedule(self, beat: Beat):
        beat.begin({"one": {}})
        assert beat.ledger.lead("s2", "s2@host", TERM_MS, "").changes == 0
        assert beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}")) == "ok"
        assert beat.ledger.lead("s1", "s1@host", TERM_MS, beat.term).changes == 1
        assert beat.ledger.lead("s2", "s2@host", TERM_MS, "").changes == 1

    def test_no_verb_of_an_old_term_changes_anything(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        beat.adopt_continuous("c")
        old = beat.term
        beat.time_passes(TERM_MS + 1000)
        before = beat.everything()
        fire = beat.fire()
        for term in (old, "7", ""):
            assert beat.ledger.dispatch(term, [fire]) == Dispatched("term", [], [])
            assert beat.ledger.continue_entries(term, ["c"]) == Dispatched("term", [], [])
            assert beat.ledger.adopt_entries(term, 1, [Adoption("x", "x", "one", "one", "", "code", None)]) is None
            assert not beat.ledger.record_next_due(term, [("e", 5)])
        assert beat.everything() == before
        beat.term = beat.lead("s2")
        assert beat.dispatch(fire).answers == [("fired",)]


class TestEntries:
    def test_an_entry_begins_when_it_is_adopted(self, beat: Beat):
        beat.begin({"one": {}})
        now = beat.now()
        first = beat.adopt("e", ago_ms=0)
        assert now - 1000 <= first.last_ms <= beat.now()
        assert first.generation
        assert not first.paused

    def test_the_next_leader_continues_entries_where_they_were(self, beat: Beat):
        beat.begin({"one": {}})
        first = beat.adopt()
        fire = beat.fire()
        beat.dispatch(fire)
        beat.time_passes(TERM_MS + 1000)
        beat.term = beat.lead("s2")
        again = beat.adopt(ago_ms=0)
        assert (again.generation, again.last_ms) == (first.generation, fire.due_ms)

    def test_that_vanished_go_on_from_where_their_leader_knows_they_were(self, beat: Beat):
        beat.begin({"one": {}})
        first = beat.adopt()
        beat.redis.delete(key_of(PREFIX, "entry", "e"))
        later = beat.now() + 5000
        [again] = beat.ledger.adopt_entries(beat.term, 1, [Adoption("e", "e", "one", "one", "", "code", later)]) or []
        assert again.last_ms == later
        assert int(again.generation) > int(first.generation)

    def test_whose_schedule_the_code_has_changed_begin_anew(self, beat: Beat):
        """Due times of the new schedule before the change never existed: they are not missed."""
        beat.begin({"one": {}})
        first = beat.adopt()
        beat.ledger.change_schedule("me", "pause", "e", "")
        now = beat.now()
        [again] = (
            beat.ledger.adopt_entries(beat.term, now, [Adoption("e", "e", "one", "one", "every 5 s", "code", None)])
            or []
        )
        assert (again.last_ms, again.paused) == (now, True)
        assert int(again.generation) > int(first.generation)

    def test_of_people_that_the_code_has_now_are_the_codes(self, beat: Beat):
        beat.begin({"one": {}})
        beat.ledger.change_schedule("me", "add", "e", "", ("one", "one", "every second", "{}"))
        before = beat.entry()["generation"]
        assert beat.adopt().generation == before
        assert beat.entry()["written"] == "{}", "a release that is taken back must not take it away"
        assert beat.ledger.change_schedule("me", "remove", "e", "") == "ok"
        assert beat.ledger.read_changes(None).entries == []
        assert beat.entry().get("written") is None
        assert beat.ledger.change_schedule("me", "remove", "e", "") == "code"

    def test_of_code_that_who_leads_does_not_have_may_be_removed_or_replaced(self, beat: Beat):
        beat.begin({"one": {}})
        for entry in "ef":
            beat.adopt(entry)
        beat.redis.hset(key_of(PREFIX, "leader"), "since", beat.now() - 61_000)
        beat.redis.zadd(key_of(PREFIX, "entries"), {"e": beat.now() - 62_000})
        assert [fields.get("left") for _, fields in beat.ledger.read_entries(0, 10)] == ["1", None]
        assert beat.ledger.change_schedule("me", "remove", "f", "") == "code"
        assert beat.ledger.change_schedule("me", "add", "f", "", ("one", "one", "every 5 s", "{}")) == "exists"
        assert beat.ledger.change_schedule("me", "add", "e", "", ("one", "one", "every 5 s", "{}")) == "ok"
        assert beat.ledger.change_schedule("me", "remove", "e", "") == "ok"

    def test_that_people_removed_do_not_come_back(self, beat: Beat):
        beat.begin({"one": {}})
        assert beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}")) == "ok"
        assert beat.ledger.change_schedule("me", "remove", "mine", "") == "ok"
        gone = Adoption("mine", "mine", "one", "one", "", "people", 5)
        assert beat.ledger.adopt_entries(beat.term, 1, [gone]) == [Adopted(problem="gone")]
        assert beat.ledger.record_next_due(beat.term, [("mine", 5)])
        assert not beat.redis.exists(key_of(PREFIX, "entry", "mine"))
        assert beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}")) == "ok"

    def test_that_are_corrupt_are_named_and_the_others_adopted(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"one": {}})
        beat.redis.set(key_of(PREFIX, "entry", "string"), "x")
        beat.redis.hset(key_of(PREFIX, "entry", "garbage"), mapping={"generation": "x", "last": "y"})
        adoptions = [Adoption(name, name, "one", "one", "", "code", None) for name in ("string", "garbage", "good")]
        string, garbage, good = beat.ledger.adopt_entries(beat.term, 5, adoptions) or []
        assert string.problem.startswith("corrupt ")
        assert "WRONGTYPE" in string.problem
        assert garbage.problem == "corrupt its generation or last fire is no number"
        assert (good.problem, good.last_ms) == ("", 5)
        beat.redis.zadd(key_of(PREFIX, "entries"), {"string": 1})
        assert ("string", {}) in beat.ledger.read_entries(0, 10)

    def test_of_code_that_is_gone_go_after_a_day(self, beat: Beat):
        beat.begin({"one": {}})
        beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}"))
        for entry in ("old", "e"):
            beat.adopt(entry)
        day_ago = beat.now() - 86_400_001
        beat.redis.zadd(key_of(PREFIX, "entries"), {"old": day_ago, "mine": day_ago})
        beat.adopt("e")
        assert beat.redis.exists(key_of(PREFIX, "entry", "old")), "those that are adopted may be a part of all"
        assert beat.ledger.retire_entries(beat.term)
        assert beat.redis.zrange(key_of(PREFIX, "entries"), 0, -1) == ["mine", "e"]
        assert not beat.redis.exists(key_of(PREFIX, "entry", "old"))
        assert beat.redis.exists(key_of(PREFIX, "entry", "mine")), "people's stay until people remove them"

    def test_of_code_that_is_gone_are_not_late_but_never_due(self, beat: Beat):
        beat.begin({"one": {}})
        for entry in ("old", "e"):
            beat.adopt(entry)
        beat.ledger.change_schedule("me", "add", "mine", "", ("one", "one", "every 5 s", "{}"))
        beat.ledger.record_next_due(beat.term, [(entry, beat.now()) for entry in ("old", "e", "mine")])
        beat.redis.zadd(key_of(PREFIX, "entries"), {"old": beat.now() - 60_000, "mine": beat.now() - 60_000})
        assert beat.ledger.retire_entries(beat.term)
        assert ["next" in beat.entry(entry) for entry in ("old", "e", "mine")] == [False, True, True]
        beat.adopt("old")
        beat.ledger.record_next_due(beat.term, [("old", beat.now())])
        assert "next" in beat.entry("old"), "a leader has it again"

    def test_say_when_they_are_due_next(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        assert beat.ledger.record_next_due(beat.term, [("e", 12345), ("unknown", 5)])
        assert beat.entry()["next"] == "12345"
        assert not beat.redis.exists(key_of(PREFIX, "entry", "unknown"))


class TestFires:
    def test_a_fire_is_a_run_that_is_handed_over(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt()
        fire = beat.fire()
        found = beat.dispatch(fire)
        assert found.answers == [("fired",)]
        [grant] = found.grants
        assert beat.ledger.read_granted(grant) == ("q", fire.message)
        entry = beat.entry()
        assert (entry["last"], entry["next"], entry["how"]) == (str(fire.due_ms), str(fire.next_ms), "fired")
        assert (entry["run"], entry["fires"]) == (fire.id, "1")
        beat.run(grant)
        beat.end(fire.id)
        assert beat.past() == [("succeeded", None, 1)]
        [record] = [HistoryLine.read(one) for one in beat.ledger.read_history("one", 1) or ()]
        assert (record.entry, record.due) == ("e", fire.due_ms)

    def test_a_fire_that_must_wait_is_a_run_without_a_message(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt()
        assert beat.come("a", "one") == "start"
        found = beat.dispatch(fire := beat.fire())
        assert (found.answers, found.grants) == ([("fired",)], [])
        assert beat.end("a") == [fire.id]

    def test_a_fire_with_an_eta_waits_for_its_time(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        found = beat.dispatch(fire := beat.fire(eta_ms=beat.now() + 60_000))
        assert (found.answers, found.grants) == ([("fired",)], [])
        beat.redis.zadd(key_of(PREFIX, "later"), {fire.id: 1})
        assert [grant.id for grant in beat.sweep().grants] == [fire.id]

    def test_a_waiting_fire_may_expire(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt()
        beat.come("a", "one")
        beat.dispatch(fire := beat.fire(expires_ms=beat.now() + 60_000))
        beat.redis.zadd(key_of(PREFIX, "expiring"), {fire.id: 1})
        assert [(ending.id, ending.why) for ending in beat.sweep().endings] == [(fire.id, "expired")]

    def test_dispatch_called_again_gives_the_same_grants_until_they_are_published(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt("e")
        beat.adopt("f")
        fires = [beat.fire("e"), beat.fire("f")]
        first = beat.dispatch(*fires)
        assert first.answers == [("fired",), ("fired",)]
        again = beat.dispatch(*fires)
        assert again.answers == [("known", "fired"), ("known", "fired")]
        assert again.grants == first.grants
        beat.ledger.confirm_published(first.grants[:1])
        assert beat.dispatch(*fires).grants == first.grants[1:]
        assert [int(beat.entry(entry)["fires"]) for entry in "ef"] == [1, 1]

    @pytest.mark.parametrize("ended", [True, False])
    def test_a_due_time_not_after_the_last_one_is_refused(self, beat: Beat, ended: bool):
        """Whichever scheduler dispatches it, and whenever: one run for each due time."""
        beat.begin({"one": {}})
        beat.adopt()
        early, last = beat.fire(), beat.fire()
        [grant] = beat.dispatch(last).grants
        if ended:
            beat.run(grant)
            beat.end(last.id)
        else:
            beat.ledger.confirm_published([grant])
        before = beat.entry()
        found = beat.dispatch(early, last)
        assert (found.answers, found.grants) == ([("known", ""), ("known", "fired")], [])
        assert beat.entry() == before

    def test_a_fire_of_another_generation_or_of_no_entry_is_stale(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        other, gone = beat.fire(generation="7"), replace(beat.fire(), entry="gone")
        assert beat.dispatch(other, gone).answers == [("stale",), ("stale",)]
        assert beat.runs() == {}

    def test_an_entry_that_people_changed_is_another_generation(self, beat: Beat):
        beat.begin({"one": {}})
        assert beat.ledger.change_schedule("me", "add", "e", "", ("one", "one", "every 5 s", "{}")) == "ok"
        beat.adopt("e", source="people")
        fire = beat.fire()
        changed = ("one", "one", "every 6 s", "{}", fire.generation)
        assert beat.ledger.change_schedule("me", "update", "e", "", changed) == "ok"
        assert beat.dispatch(fire).answers == [("stale",)]

    def test_a_paused_entry_does_not_fire(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        assert beat.ledger.change_schedule("me", "pause", "e", "why not") == "ok"
        fire = beat.fire()
        assert beat.dispatch(fire).answers == [("paused",)]
        assert beat.adopt().paused
        assert beat.ledger.change_schedule("me", "resume", "e", "") == "ok"
        assert beat.dispatch(fire).answers == [("known", "")], "what was due meanwhile was not wanted"
        assert beat.fires(due_ms=beat.now() + 500) == ("fired",)

    def test_a_due_time_that_has_not_come_by_the_clock_of_redis_is_early(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        fire = beat.fire(due_ms=beat.now() + 60_000)
        assert beat.dispatch(fire).answers == [("early",)]
        assert "fires" not in beat.entry()

    def test_an_unregistered_job_is_unknown(self, beat: Beat):
        beat.begin({"one": {}, "gone": {}})
        beat.adopt()
        beat.adopt("g", "gone")
        beat.come("r", "gone")
        beat.ledger.leave("w1")
        beat.install({"one": {}}, release="r2")
        fires = beat.fire(job="never"), beat.fire("g", "gone"), beat.fire()
        assert beat.dispatch(*fires).answers == [("unknown",), ("unknown",), ("fired",)]
        assert "fires" not in beat.entry("g")

    def test_a_run_that_is_remembered_is_not_made_again(self, beat: Beat):
        """An entry was forgotten and was added again."""
        beat.begin({"one": {}})
        beat.adopt()
        fire = beat.fire()
        beat.redis.set(key_of(PREFIX, "done", fire.id), 0, px=60_000)
        assert beat.dispatch(fire).answers == [("known", "")]
        assert beat.runs() == {}

    def test_a_job_that_drops_runs_while_it_is_disabled_skips_fires(self, beat: Beat):
        beat.begin({"one": {"when_disabled": "drop"}, "two": {}})
        beat.adopt("e")
        beat.adopt("f", "two")
        for job in ("one", "two"):
            beat.ledger.enable_or_disable(job, False, "me", "")
        found = beat.dispatch(beat.fire("e"), beat.fire("f", "two"))
        assert (found.answers, found.grants) == ([("skipped", DISABLED), ("fired",)], [])
        assert (beat.past("one"), len(beat.runs())) == ([("skipped", DISABLED, 1)], 1)
        beat.ledger.enable_or_disable("one", True, "me", "")
        assert beat.fires("e") == ("fired",)

    def test_a_probe_is_not_skipped(self, beat: Beat):
        beat.begin({"one": {"when_disabled": "drop", "max_consecutive_failures": 1, "cool_down_seconds": 60}})
        beat.adopt()
        beat.come("a", "one")
        beat.end("a", "failed")
        assert beat.fires() == ("skipped", DISABLED)
        beat.redis.zadd(key_of(PREFIX, "timers"), {"cool_down:one": 1})
        beat.sweep()
        assert beat.fires() == ("fired",)
        assert beat.fires(overlap="allow") == ("skipped", DISABLED), "there is one"

    def test_a_task_that_is_no_job_is_sent_by_the_leader_and_then_noted(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt("p", job="")
        fire = beat.fire("p", job="", missed=2)
        for _ in range(2):
            assert beat.dispatch(fire) == Dispatched("ok", [("send",)], [])
        assert (beat.ledger.confirm_sent([fire]), beat.ledger.confirm_sent([fire])) == (1, 0)
        assert beat.dispatch(fire).answers == [("known", "sent")]
        entry = beat.entry("p")
        assert (entry["last"], entry["how"], entry["fires"], entry["misses"]) == (str(fire.due_ms), "sent", "1", "2")
        assert beat.ledger.confirm_sent([beat.fire("p", job="", generation="7")]) == 0

    def test_fires_of_one_call_go_in_their_order(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}, "two": {"max_running": 1}}, cap=1)
        beat.adopt("e", "one")
        beat.adopt("f", "two")
        found = beat.dispatch(beat.fire("f", "two"), first := beat.fire("e", "one", priority=2))
        assert [grant.id for grant in found.grants] == [first.id]

    def test_no_more_are_granted_than_there_are_slots(self, beat: Beat):
        beat.begin({"one": {}})
        entries = [f"e{number}" for number in range(20)]
        for entry in entries:
            beat.adopt(entry)
        found = beat.dispatch(*(beat.fire(entry) for entry in entries))
        assert found.answers == [("fired",)] * 20
        assert len(found.grants) == 8
        assert len(beat.runs()) == 20


class TestCorruptRecords:
    """The job of a corrupt record is reported, and the others continue."""

    def test_a_corrupt_entry_keeps_no_other_from_firing(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"one": {}})
        for entry in ("string", "garbage", "good"):
            beat.adopt(entry)
        fires = [beat.fire(entry) for entry in ("string", "garbage", "good")]
        beat.redis.delete(key_of(PREFIX, "entry", "string"))
        beat.redis.lpush(key_of(PREFIX, "entry", "string"), "x")
        beat.redis.hset(key_of(PREFIX, "entry", "garbage"), "last", "yesterday")
        string, garbage, good = beat.dispatch(*fires).answers
        assert string[0] == garbage[0] == "corrupt"
        assert "WRONGTYPE" in string[1]
        assert good == ("fired",)
        assert beat.ledger.confirm_sent(fires) == 0

    @pytest.mark.parametrize("how", ["type", "policy", "state"])
    def test_a_corrupt_job_waits_and_others_start(self, any_beat: Beat, how: str):
        beat = any_beat
        beat.begin({"bad": {}, "good": {}})
        beat.adopt("b", "bad")
        beat.adopt("g", "good")
        self.corrupt(beat, "bad", how)
        found = beat.dispatch(beat.fire("b", "bad"), beat.fire("g", "good"))
        assert found.answers == [("fired",), ("fired",)]
        assert [grant.id for grant in found.grants] == [beat.entry("g")["run"]], "the other waits until that is fixed"
        assert beat.redis.hexists(key_of(PREFIX, "corrupt"), "job:bad")

    @pytest.mark.parametrize("how", ["type", "policy"])
    @pytest.mark.parametrize(
        "relation", [{"depends_on": [{"job": "bad"}]}, {"blocks": ["bad"]}], ids=["depends", "blocks"]
    )
    def test_a_job_that_depends_on_or_blocks_a_corrupt_job_waits_and_others_start(
        self, any_beat: Beat, how: str, relation: dict[str, Any]
    ):
        beat = any_beat
        beat.begin({"bad": {"max_running": 1}, "near": relation, "good": {}})
        beat.come("busy", "bad")
        beat.come("waits", "bad")
        for entry, job in (("n", "near"), ("g", "good")):
            beat.adopt(entry, job)
        self.corrupt(beat, "bad", how)
        found = beat.dispatch(beat.fire("n", "near"), beat.fire("g", "good"))
        assert found.answers == [("fired",), ("fired",)]
        assert [grant.id for grant in found.grants] == [beat.entry("g")["run"]], "the other waits until that is fixed"

    def corrupt(self, beat: Beat, job: str, how: str) -> None:
        key = key_of(PREFIX, "job", job)
        if how == "type":
            beat.redis.delete(key)
            beat.redis.lpush(key, "x")
        else:
            beat.redis.hset(key, how, "\x81")

    def test_a_history_of_another_type_keeps_no_other_from_firing(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"bad": {}, "good": {}})
        beat.adopt("b", "bad")
        beat.adopt("g", "good")
        beat.redis.set(key_of(PREFIX, "history", "bad"), "x")
        found = beat.dispatch(beat.fire("b", "bad", missed=1), beat.fire("g", "good"))
        assert found.answers == [("fired",), ("fired",)]
        assert beat.redis.hexists(key_of(PREFIX, "corrupt"), "history:bad")

    def test_a_last_run_of_another_type_keeps_no_other_from_firing(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"bad": {}, "good": {}})
        beat.adopt("b", "bad")
        beat.adopt("g", "good")
        beat.redis.hset(key_of(PREFIX, "entry", "b"), "run", "r")
        beat.redis.set(key_of(PREFIX, "run", "r"), "x")
        found = beat.dispatch(beat.fire("b", "bad", overlap="skip"), beat.fire("g", "good"))
        assert found.answers == [("fired",), ("fired",)]
        assert beat.redis.hexists(key_of(PREFIX, "corrupt"), "run:r")


class TestAFullRedis:
    def test_makes_no_runs_and_nothing_is_half_written(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"one": {}})
        beat.adopt()
        beat.adopt_continuous("c")
        fires = [beat.fire(missed=3), beat.fire(), beat.fire(late_ms=0)]
        before = beat.everything()
        beat.redis.config_set("maxmemory", 1)
        for _ in range(2):
            assert beat.ledger.dispatch(beat.term, fires) == Dispatched("full", [], [])
            assert beat.ledger.continue_entries(beat.term, ["c"]) == Dispatched("full", [], [])
        assert beat.everything() == before
        beat.redis.config_set("maxmemory", 0)
        assert beat.dispatch(*fires).answers[0] == ("fired",)

    def test_lets_a_leader_lead_on(self, any_beat: Beat):
        beat = any_beat
        beat.begin({"one": {}})
        beat.adopt("p", job="")
        beat.redis.config_set("maxmemory", 1)
        assert beat.lead("s1", beat.term) == beat.term
        assert beat.ledger.confirm_sent([beat.fire("p", job="")]) == 1
        assert beat.ledger.record_next_due(beat.term, [("p", 5)])
        assert beat.ledger.adopt_entries(beat.term, 5, [Adoption("new", "new", "one", "one", "", "code", None)])
        assert beat.ledger.change_schedule("me", "pause", "p", "") == "ok"
        assert beat.ledger.change_schedule("me", "resume", "p", "") == "ok"
        assert beat.ledger.resign("s1", beat.term)
        assert beat.lead("s2")


# -- overlap


def nothing(beat: Beat) -> None:
    pass


def waiting(beat: Beat) -> None:
    assert beat.come("other", "one") == "start"
    assert beat.fires() == ("fired",)


def not_due(beat: Beat) -> None:
    assert beat.fires(eta_ms=beat.now() + 60_000) == ("fired",)


def granted(beat: Beat) -> None:
    assert len(beat.dispatch(beat.fire()).grants) == 1


def queued(beat: Beat) -> None:
    beat.ledger.confirm_published(beat.dispatch(beat.fire()).grants)


def running(beat: Beat) -> None:
    beat.starts()


def ended(outcome: str) -> Callable[[Beat], None]:
    def end(beat: Beat) -> None:
        beat.turn(ends={beat.starts(): outcome})

    return end


def retried(beat: Beat) -> None:
    id = beat.starts()
    beat.turn(ends={id: "retry"})
    assert beat.come("other", "one") == "start"
    assert beat.come(id, "one", attempt=1) == "wait"


def lost_with_its_worker(beat: Beat) -> None:
    beat.register("w2")
    [grant] = beat.dispatch(beat.fire()).grants
    beat.run(grant, worker="w2")
    beat.ledger.pause_or_resume(True, "me", "")
    beat.dies("w2")


def called_off(beat: Beat) -> None:
    waiting(beat)
    assert beat.ledger.cancel_by_hand("me", f"e{beat.due['e']}")[0] == "waiting"


def released(beat: Beat) -> None:
    waiting(beat)
    assert len(beat.ledger.release_waiting("me", 10)[1]) == 1


def replaced(beat: Beat) -> None:
    """By another job, which has not started."""
    id = beat.starts()
    beat.ledger.enable_or_disable("two", False, "me", "")
    assert beat.come(id, "two", attempt=1 << 20) == "wait"
    beat.turn(ends={id: "ignored"})


def unchanged(beat: Beat) -> None:
    """The fire before it was skipped: only the last run counts."""
    beat.starts()
    assert beat.fires(overlap="skip")[0] == "skipped"


FIRED = ("fired",)
#: The state of the entry's last run, and the answer to the next fire.
OVERLAPS: list[tuple[Callable[[Beat], None], tuple[str, ...], tuple[str, ...]]] = [
    (nothing, FIRED, FIRED),
    (waiting, ("skipped", STARTED), ("skipped", STARTED)),
    (not_due, ("skipped", STARTED), ("skipped", STARTED)),
    (granted, ("skipped", STARTED), ("skipped", STARTED)),
    (queued, ("skipped", STARTED), ("skipped", STARTED)),
    (replaced, ("skipped", STARTED), ("skipped", STARTED)),
    (running, ("skipped", ENDED), FIRED),
    (unchanged, ("skipped", ENDED), FIRED),
    (ended("retry"), ("skipped", ENDED), FIRED),
    (retried, ("skipped", ENDED), FIRED),
    (ended("crashed"), ("skipped", ENDED), FIRED),
    (ended("returned"), ("skipped", ENDED), FIRED),
    (lost_with_its_worker, ("skipped", ENDED), FIRED),
    (called_off, FIRED, FIRED),
    (released, FIRED, FIRED),
    *((ended(outcome), FIRED, FIRED) for outcome in ("succeeded", "failed", "ignored", "rejected", "revoked")),
]


class TestMessagesThatAreMadeForEachFire:
    """Code that sees each message requires that: first the ledger is asked whether the fire makes a run."""

    def test_are_asked_for_and_nothing_changes_before(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        before, fire = beat.entry(), beat.fire(message=b"", missed=2)
        for _ in range(2):
            assert beat.dispatch(fire).answers == [("make",)]
        assert (beat.entry(), beat.past()) == (before, [])
        assert beat.dispatch(replace(fire, message=b"made")).answers == [FIRED]
        assert beat.dispatch(fire).answers == [("known", "fired")]
        assert [count for *_, count in beat.past()] == [2], "the missed ones are recorded once"

    def test_are_not_asked_for_by_a_fire_that_makes_no_run(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt()
        beat.starts()
        assert beat.fires(overlap="skip", message=b"") == ("skipped", ENDED)
        assert beat.fires(late_ms=0, message=b"") == ("missed",)

    @pytest.mark.parametrize("job", ["one", ""])
    def test_may_be_refused_by_that_code(self, beat: Beat, job: str):
        beat.begin({"one": {}})
        beat.adopt(job=job)
        fire = beat.fire(job=job, message=b"", refused="not now")
        assert beat.dispatch(fire).answers == [("skipped", "not now")]
        assert beat.dispatch(fire).answers == [("known", "skipped")]
        assert (beat.entry()["how"], beat.entry()["skips"], beat.entry().get("fires")) == ("skipped", "1", None)
        assert beat.past() == ([("skipped", "not now", 1)] if job else [])


class TestOverlap:
    @pytest.mark.parametrize(
        ("last", "skip", "queue"), OVERLAPS, ids=[f"{number}-{one[0].__name__}" for number, one in enumerate(OVERLAPS)]
    )
    def test_the_state_of_the_last_run_decides(
        self, beat: Beat, last: Callable[[Beat], None], skip: tuple[str, ...], queue: tuple[str, ...]
    ):
        for overlap, expected in (("skip", skip), ("queue", queue), ("allow", FIRED)):
            beat.redis.flushall()
            beat.begin({"one": {"max_running": 1}, "two": {}})
            beat.adopt()
            last(beat)
            assert beat.fires(overlap=overlap) == expected, overlap

    def test_at_most_one_is_queued(self, beat: Beat):
        beat.begin({"one": {"max_running": 1}})
        beat.adopt()
        first = beat.starts(overlap="queue")
        second = beat.fire(overlap="queue")
        assert beat.dispatch(second).answers == [FIRED]
        for _ in range(3):
            assert beat.fires(overlap="queue") == ("skipped", STARTED)
        assert beat.end(first) == [second.id]
        assert beat.fires(overlap="queue") == FIRED

    def test_entries_of_one_job_do_not_overlap_each_other(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt("e")
        beat.adopt("f")
        assert [beat.fires(entry, overlap="skip") for entry in "ef"] == [FIRED, FIRED]

    def test_other_runs_of_the_job_do_not_count(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        beat.come("a", "one")
        assert beat.fires(overlap="skip") == FIRED

    def test_a_skipped_fire_is_over(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        beat.starts()
        skipped = beat.fire(overlap="skip")
        assert beat.dispatch(skipped).answers == [("skipped", ENDED)]
        assert beat.dispatch(skipped).answers == [("known", "skipped")]
        entry = beat.entry()
        assert (entry["how"], entry["skips"], entry["last"]) == ("skipped", "1", str(skipped.due_ms))


class TestCatchUp:
    @pytest.mark.parametrize(("ago_ms", "late_ms", "answer"), [
        (10_000, 120_000, ("fired",)), (61_000, 60_000, ("missed",)),
        (61_000, EVER_MS, ("fired",)), (16_000, 15_000, ("missed",)),
    ])  # fmt: skip
    def test_a_fire_that_is_too_late_is_not_made(self, beat: Beat, ago_ms: int, late_ms: int, answer: tuple[str, ...]):
        beat.begin({"one": {}})
        beat.adopt("e")
        beat.adopt("p", job="")
        fires = [
            beat.fire(entry, job, due_ms=beat.now() - ago_ms, late_ms=late_ms)
            for entry, job in (("e", "one"), ("p", ""))
        ]
        assert beat.dispatch(*fires).answers == [answer, ("send",) if answer == ("fired",) else answer]
        if answer == ("missed",):
            assert beat.dispatch(*fires).answers == [("known", "missed")] * 2
            assert [beat.entry(entry)["misses"] for entry in "ep"] == ["1", "1"]
            assert beat.past() == [("missed", "nobody fired it in time", 1)]

    def test_the_latest_stands_for_all_that_were_missed(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        assert beat.fires(missed=41) == ("fired",)
        assert (beat.entry()["misses"], beat.entry()["fires"]) == ("41", "1")
        assert beat.past() == [("missed", "nobody fired it in time", 41)]
        [missed] = [HistoryLine.read(one) for one in beat.ledger.read_history("one", 10) or ()]
        assert missed.id == "", "it names no run"


class TestHistory:
    def test_fires_in_a_row_that_made_no_run_are_one_record(self, beat: Beat):
        beat.begin({"one": {}})
        beat.adopt()
        id = beat.starts()
        fires = [beat.fire(overlap="skip") for _ in range(5)]
        for fire in fires:
            beat.dispatch(fire)
        [record] = [HistoryLine.read(one) for one in beat.ledger.read_history("one", 10) or ()]
        assert (record.id, record.outcome, record.arrived) == (fires[0].id, "skipped", fires[0].due_ms)
        assert (record.entry, record.due, record.fires) == ("e", fires[-1].due_ms, 5)
        beat.end(id)
        beat.starts()
        beat.fires(overlap="skip")
        assert beat.past() == [("skipped", ENDED, 1), ("succeeded", None, 1), ("skipped", ENDED, 5)]

    def test_fires_with_other_reasons_or_entries_get_their_own_record(self, beat: Beat):
        beat.begin({"one": {}})
        for entry in "ef":
            beat.adopt(entry)
            beat.starts(entry)
        for entry, more in [("e", {}), ("e", {}), ("f", {}), ("f", {"missed": 3, "late_ms": 0}), ("f", {})]:
            beat.fires(entry, overlap="skip", **more)
        missed = "nobody fired it in time"
        assert beat.past() == [
            ("skipped", ENDED, 1), ("missed", missed, 4), ("skipped", ENDED, 1), ("skipped", ENDED, 2)
        ]  # fmt: skip

    def test_is_bounded(self, beat: Beat):
        beat.begin({"one": {}})
        beat.redis.hset(key_of(PREFIX, "ledger"), "history", 5)
        for entry in "ef":
            beat.adopt(entry)
            beat.starts(entry)
        for number in range(40):
            beat.fires("ef"[number % 2], overlap="skip")
        assert beat.redis.llen(key_of(PREFIX, "history", "one")) <= 7

    def test_may_be_turned_off(self, beat: Beat):
        beat.begin({"one": {}})
        beat.redis.hset(key_of(PREFIX, "ledger"), "history", 0)
        beat.adopt()
        beat.starts()
        assert beat.fires(overlap="skip", missed=5) == ("skipped", ENDED)
        assert not beat.redis.exists(key_of(PREFIX, "history", "one"))


class TestDependencies:
    """A run of a dependency that arrived earlier keeps a run waiting (the rule depends)."""

    @pytest.fixture
    def line(self, beat: Beat) -> Beat:
        """d, and j that depends on it; both have entries."""
        beat.begin(
            {"d": {"max_running": 1}, "j": {"max_running": 1, "depends_on": [{"job": "d"}]}, "other": {"blocks": ["d"]}}
        )
        beat.come("d0", "d")
        beat.end("d0")
        beat.adopt("d", "d")
        beat.adopt("j", "j")
        return beat

    def test_those_of_one_tick_go_one_after_the_other(self, line: Beat):
        found = line.dispatch(line.fire("d", "d"), second := line.fire("j", "j"))
        [grant] = found.grants
        line.run(grant, "d")
        assert line.end(grant.id) == [second.id]
        line.end(second.id)
        assert line.leftovers() == set()

    def test_a_dependent_waits_for_a_dependency_that_has_to_wait_itself(self, line: Beat):
        assert line.come("o", "other") == "start"
        found = line.dispatch(first := line.fire("d", "d"), second := line.fire("j", "j"))
        assert found.grants == []
        assert line.come("called", "j") == "wait"
        assert line.end("o") == [first.id]
        assert line.end(first.id) == [second.id]
        assert line.end(second.id) == ["called"]

    def test_one_that_arrived_later_does_not(self, line: Beat):
        assert line.come("busy", "j") == "start"
        line.dispatch(second := line.fire("j", "j"))
        assert line.come("o", "other") == "start"
        line.dispatch(line.fire("d", "d"))
        assert line.end("busy") == [second.id]

    def test_one_that_was_called_does_too(self, line: Beat):
        assert line.come("o", "other") == "start"
        assert line.come("called", "d") == "wait"
        assert line.come("j1", "j") == "wait"
        assert line.end("o") == ["called"]
        assert line.end("called") == ["j1"]

    @pytest.mark.parametrize("how", ["cancelled", "expired", "released", "skipped"])
    def test_one_that_will_not_run_does_not_any_more(self, line: Beat, how: str):
        assert line.come("o", "other") == "start"
        more = {"expires_ms": line.now() + 60_000} if how == "expired" else {}
        line.dispatch(first := line.fire("d", "d", **more), second := line.fire("j", "j"))
        if how == "cancelled":
            assert [grant.id for grant in line.ledger.cancel_by_hand("me", first.id)[1]] == [second.id]
        elif how == "expired":
            line.redis.zadd(key_of(PREFIX, "expiring"), {first.id: 1})
            assert [grant.id for grant in line.sweep().grants] == [second.id]
        elif how == "skipped":
            line.ledger.confirm_end([(first.id, 0)])
            assert line.runs()[second.id]
        else:
            assert [id for id, _, _ in line.ledger.release_waiting("me", 1)[1]] == [first.id]
            assert [grant.id for grant in line.sweep().grants] == [second.id]
        assert not line.redis.exists(key_of(PREFIX, "unstarted", "d"))

    def test_one_that_was_put_off_does_when_its_time_has_come(self, line: Beat):
        line.come("o", "other")
        line.dispatch(first := line.fire("d", "d", eta_ms=line.now() + 60_000))
        assert line.come("early", "j") == "start"
        line.end("early")
        line.redis.zadd(key_of(PREFIX, "later"), {first.id: 1})
        line.sweep()
        assert line.come("late", "j") == "wait"
        assert line.end("o") == [first.id]
        assert line.end(first.id) == ["late"]

    def test_one_whose_next_attempt_is_put_off_does_not_any_more(self, line: Beat):
        [grant] = line.dispatch(line.fire("d", "d")).grants
        assert line.come("j1", "j") == "wait"
        later = replace(arrival(grant.id, "d", attempt=1), eta_ms=line.now() + 60_000)
        turn = line.turn(come=[later])
        assert [one.id for one in turn.grants] == ["j1"]

    def test_one_whose_next_attempt_has_come_still_does(self, line: Beat):
        line.come("o", "other")
        line.dispatch(first := line.fire("d", "d"))
        assert line.come("j1", "j") == "wait"
        assert line.come(first.id, "d", attempt=1) == "wait"
        assert line.come("j2", "j") == "wait"
        assert line.end("o", free=4) == [first.id]
        assert line.end(first.id) == ["j1"]

    def test_the_reason_names_the_run_of_the_same_tick(self, line: Beat):
        line.come("o", "other")
        line.dispatch(line.fire("d", "d"), second := line.fire("j", "j"))
        [reason] = [one["reason"] for one in line.status()["waits"] if one["id"] == second.id]
        assert reason == ["depends", "d", "earlier"]

    def test_its_retry_is_no_fire(self, line: Beat):
        """It has started: then it is busy."""
        [grant] = line.dispatch(line.fire("d", "d")).grants
        line.run(grant, "d")
        line.turn(ends={grant.id: "retry"})
        assert not line.redis.exists(key_of(PREFIX, "unstarted", "d"))
        assert line.come("j1", "j") == "wait"
        assert line.come(grant.id, "d", attempt=1) == "start"
        assert line.end(grant.id) == ["j1"]


class TestNothingIsLeftOver:
    """I5: when all runs have ended, only configuration and history are left."""

    def test_after_fires_that_ran(self, beat: Beat):
        beat.begin(
            {
                "d": {"max_running": 1},
                "j": {"max_running": 1, "depends_on": [{"job": "d", "on": "idle"}]},
                "k": {"keyed": True, "max_running": 1},
            }
        )
        for entry in "djk":
            beat.adopt(entry, entry)
        for number in range(5):
            keyed = beat.fire("k", "k", overlap="allow", key=f"t{number % 2}")
            found = beat.dispatch(beat.fire("d", "d", overlap="queue"), beat.fire("j", "j", overlap="skip"), keyed)
            assert ("fired",) in found.answers
            for grant in found.grants:
                beat.run(grant, grant.id[0])
        outcomes = iter(["succeeded", "failed", "ignored", "rejected", "revoked"] * 10)
        while running := sorted(id for id, state in beat.runs().items() if state == "running"):
            for id in running:
                beat.end(id, "succeeded" if id.startswith("d") else next(outcomes), free=8)
        assert beat.runs() == {}
        assert beat.leftovers() == set()

    @pytest.mark.parametrize("how", ["cancelled", "expired", "dropped", "released"])
    def test_after_fires_that_did_not(self, beat: Beat, how: str):
        beat.begin({"d": {"max_running": 1, "when_disabled": "drop"}, "j": {"depends_on": [{"job": "d"}]}})
        beat.adopt("d", "d")
        beat.ledger.pause_or_resume(True, "me", "")
        eta = {"eta_ms": beat.now() + 60_000} if how == "dropped" else {}
        beat.dispatch(fire := beat.fire("d", "d", expires_ms=beat.now() + 120_000, **eta))
        if how == "cancelled":
            beat.ledger.cancel_by_hand("me", fire.id)
        elif how == "expired":
            beat.redis.zadd(key_of(PREFIX, "expiring"), {fire.id: 1})
            beat.sweep()
        elif how == "dropped":
            beat.ledger.enable_or_disable("d", False, "me", "")
            beat.redis.zadd(key_of(PREFIX, "later"), {fire.id: 1})
            beat.sweep()
        else:
            beat.ledger.release_waiting("me", 10)
            beat.ledger.confirm_released([fire.id])
        beat.ledger.confirm_end([(fire.id, 0)])
        assert beat.leftovers() == set()


def test_two_schedulers_that_take_turns_make_each_fire_one_run(beat: Beat):
    """I3: each believes that it leads, and dispatches the entries that are due for it."""
    beat.begin({"one": {}})
    base = beat.adopt().last_ms
    terms = {"s1": beat.term, "s2": ""}
    made = []
    for number in range(1, 40):
        who = "s1" if number % 3 else "s2"
        if number % 7 == 0:
            beat.time_passes(TERM_MS + 1000)
        terms[who] = beat.lead(who, terms[who]) or terms[who]
        for term in terms.values():
            fire = beat.fire(due_ms=base + number // 2 * 1000 + 1, overlap="allow")
            found = beat.ledger.dispatch(term, [fire])
            made += [answer for answer in found.answers if answer == ("fired",)]
    assert len(made) == len(beat.runs()) == 20

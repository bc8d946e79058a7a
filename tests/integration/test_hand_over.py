"""Rules of the hand-over, of fences, attempts and sweeps: one short case for each.

The random model checks all of them together. These tests find a mistake in the same place every time.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from celery_orchestration.ledger import Outcome, keys, scripts
from celery_orchestration.ledger.records import key_of
from celery_orchestration.ledger.scripts import as_script
from support import ledger
from support.ledger import PREFIX, arrival
from support.servers import RedisServer
from support.wait import until

#: A time in milliseconds that does not come during the test.
FAR = 10**14
#: Moves the last end of a job (ARGV[1]) this many milliseconds (ARGV[2]) back.
AGE = """-- uses: schema records
--
local j = job(ARGV[1])
j.last_end, j.dirty = j.last_end - 1000 * ARGV[2], true
flush()
"""


class Case(ledger.Case):
    def comes_due(self, id: str) -> None:
        self.redis.zadd(key_of(PREFIX, "later"), {id: 1})
        self.sweep()

    def ages(self, job: str, ms: int) -> None:
        self.redis.register_script(as_script(AGE))(keys=[PREFIX], args=[keys.encode_job(job), ms])

    def started(self, *ids: str, free: int = 8) -> list[str]:
        """Ends these runs. Returns those that start then."""
        turn = self.turn(ends=dict.fromkeys(ids, "succeeded"), free=free)
        return [start.id for start in turn.starts]

    def room(self) -> int:
        return int(self.ledger.read_status(10, 10)["total"])


@pytest.fixture
def case(redis_server: RedisServer) -> Iterator[Case]:
    case = Case(redis_server)
    yield case
    case.ledger.close()


class TestADependencyThatGrewTooOldWhileARunWaited:
    """``max_age_seconds`` is checked again when the run could start."""

    @pytest.fixture
    def old(self, case: Case) -> Case:
        needs = {"job": "d", "max_age_seconds": 60}
        case.install(
            {
                "d": {"max_running": 1},
                "j": {"max_running": 1, "depends_on": [needs]},
                "k": {"max_running": 1},
                "x": {"max_running": 1},
            },
            cap=1,
        )
        assert case.come("d1", "d") == "start"
        assert case.started("d1") == []
        return case

    def test_after_a_pause_it_waits_and_the_next_one_goes(self, old: Case):
        old.ledger.pause_or_resume(True, "me", "")
        assert [old.come("j1", "j"), old.come("k1", "k")] == ["wait", "wait"]
        old.ages("d", 61_000)
        assert [grant.id for grant in old.ledger.pause_or_resume(False, "me", "")] == ["k1"]

    def test_under_the_global_cap_it_waits_and_the_next_one_goes(self, old: Case):
        assert old.come("x1", "x") == "start"
        assert [old.come("j1", "j"), old.come("k1", "k")] == ["wait", "wait"]
        old.ages("d", 61_000)
        assert old.started("x1") == ["k1"]

    def test_it_goes_when_the_dependency_has_run_again(self, old: Case):
        assert old.come("x1", "x") == "start"
        assert old.come("j1", "j") == "wait"
        old.ages("d", 61_000)
        assert old.started("x1") == []
        assert old.come("d2", "d") == "start"
        assert old.started("d2") == ["j1"]

    def test_a_run_with_a_young_enough_dependency_starts(self, old: Case):
        assert old.come("x1", "x") == "start"
        assert [old.come("j1", "j"), old.come("k1", "k")] == ["wait", "wait"]
        old.ages("d", 30_000)
        assert old.started("x1") == ["j1"]


class TestARuleThatOpensByItself:
    """Shown with a rule of its own, whatever rules there are."""

    RULE = """
function RULE.not_before(j)
  local at = tonumber(j.policy.not_before)
  if at and NOW < at then return { 'not_before', j.name }, at end
end

function RULE.room("""

    @pytest.fixture
    def case(self, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
        lua = Path(shutil.copytree(str(scripts._LUA), tmp_path / "lua"))
        rules = (lua / "rules.lua").read_text()
        rules = rules.replace("\nfunction RULE.room(", self.RULE)
        rules = rules.replace("  { RULE.room,", "  { RULE.not_before, 'its_job' },\n  { RULE.room,")
        (lua / "rules.lua").write_text(rules)
        monkeypatch.setattr(scripts, "_LUA", lua)
        caches = [one for one in vars(scripts).values() if hasattr(one, "cache_clear")]
        for one in caches:
            one.cache_clear()
        case = Case(redis_server)
        yield case
        case.ledger.close()
        for one in caches:
            one.cache_clear()

    def test_its_runs_wait_hold_up_nobody_and_start_when_it_opens(self, case: Case):
        opens = case.now() + 3000
        together = {"max_running": 1, "exclusive": ["g"]}
        case.install({"j": {"not_before": opens, **together}, "k": together})
        assert case.come("j1", "j") == "wait"
        assert case.come("k1", "k") == "start"
        assert case.started("k1") == []
        until(lambda: case.started() == ["j1"])
        assert case.now() >= opens

    def test_the_worker_hears_when_to_look_again(self, case: Case):
        case.install({"j": {"not_before": case.now() + 60_000}})
        assert case.come("j1", "j") == "wait"
        due = case.turn().due
        assert due is not None
        assert 50 < due <= 60


class TestRank:
    def test_a_retry_with_a_countdown_keeps_its_place(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        case.end("a", "retry", free=0)
        assert case.come("b", "one") == "start"
        assert case.come("c", "one") == "wait"
        assert case.come("a", "one", attempt=1, eta_ms=FAR) == "wait"
        case.comes_due("a")
        assert case.started("b") == ["a"]
        assert case.started("a") == ["c"]

    def test_a_new_run_with_a_time_arrives_when_that_has_come(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        assert case.come("b", "one", eta_ms=FAR) == "wait"
        assert case.come("c", "one") == "wait"
        case.comes_due("b")
        assert case.started("a") == ["c"]

    def test_a_retry_goes_before_runs_that_arrived_later(self, case: Case):
        case.install(
            {
                "one": {"max_running": 1},
                "d": {},
                "other": {"max_running": 1, "depends_on": [{"job": "d", "on": "idle"}]},
            }
        )
        assert case.come("a", "one") == "start"
        case.end("a", "retry", free=0)
        assert case.come("b", "one") == "start"
        assert case.come("c", "one") == "wait"
        assert case.come("a", "one", attempt=1) == "wait"
        assert case.started("b") == ["a"]

    def test_a_new_run_of_a_higher_priority_goes_before_a_retry(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        case.end("a", "retry", free=0)
        assert case.come("b", "one") == "start"
        assert case.come("a", "one", attempt=1) == "wait"
        assert case.come("urgent", "one", priority=3) == "wait"
        assert case.started("b") == ["urgent"]

    def test_the_global_room_goes_to_the_highest_priority_of_all_jobs(self, case: Case):
        case.install({"a": {}, "b": {}, "c": {}}, cap=1)
        assert case.come("a1", "a") == "start"
        assert [case.come("b1", "b", priority=0), case.come("c1", "c", priority=2)] == ["wait", "wait"]
        assert case.started("a1") == ["c1"]
        assert case.started("c1") == ["b1"]

    def test_the_global_room_goes_to_the_highest_priority_of_all_queues(self, case: Case):
        case.install({"a": {}, "b": {}, "c": {}}, cap=1)
        case.register("w1", queues=("q", "q2"))
        for number, queues in enumerate((("q", "q2"), ("q2", "q"))):
            assert case.come(f"a{number}", "a") == "start"
            for id, job, queue, priority in (("b1", "b", queues[0], 0), ("c1", "c", queues[1], 2)):
                waits = replace(arrival(f"{id}-{queue}", job, priority=priority), queue=queue)
                assert case.turn(come=[waits]).answers[0].what == "wait"
            assert case.started(f"a{number}") == [f"c1-{queues[1]}"]
            assert case.started(f"c1-{queues[1]}") == [f"b1-{queues[0]}"]
            case.end(f"b1-{queues[0]}")

    def test_nobody_arrives_past_those_who_wait_for_the_global_room(self, case: Case):
        """More slots become free at once than one turn hands over."""
        case.install({"many": {}, "late": {}}, cap=20)
        running = [f"a{n}" for n in range(20)]
        for n in range(0, 20, 5):
            assert {
                answer.what for answer in case.turn(come=[arrival(id, "many") for id in running[n : n + 5]]).answers
            } == {"start"}
        for n in range(20):
            assert case.come(f"b{n}", "many") == "wait"
        turn = case.turn(ends=dict.fromkeys(running, "succeeded"), come=[arrival("late", "late")], free=20)
        assert [start.id for start in turn.starts][:16] == [f"b{n}" for n in range(16)]
        assert turn.answers[0].what == "wait"


class TestPassing:
    def test_a_new_run_does_not_pass_runs_of_its_own_job_that_wait_for_a_slot(self, case: Case):
        case.install({"one": {"max_running": 20}})
        running, waiting = [f"a{n}" for n in range(20)], [f"b{n}" for n in range(20)]
        assert {case.come(id, "one") for id in running} == {"start"}
        assert {case.come(id, "one") for id in waiting} == {"wait"}
        granted = case.turn(ends=dict.fromkeys(running, "succeeded")).grants
        assert 0 < len(granted) < 20
        assert case.come("new", "one") == "wait"

    def test_a_dependent_passes_the_next_run_of_its_dependency_and_no_other(self, case: Case):
        case.install(
            {
                "d": {"max_running": 1},
                "x": {"max_running": 1},
                "k": {"max_running": 1, "blocks": ["x"]},
                "j": {"max_running": 1, "blocks": ["k"], "depends_on": [{"job": "d", "on": "idle"}]},
            }
        )
        assert [case.come("d1", "d"), case.come("x1", "x")] == ["start", "start"]
        assert [case.come("k1", "k"), case.come("j1", "j"), case.come("d2", "d")] == ["wait", "wait", "wait"]
        assert case.started("d1") == ["d2"]
        assert case.started("x1") == ["k1"]
        assert case.started("k1", "d2") == ["j1"]

    def test_a_published_run_whose_message_got_lost_is_published_again(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert [case.come("a", "one"), case.come("b", "one")] == ["start", "wait"]
        [old] = case.turn(ends={"a": "succeeded"}).grants
        assert case.ledger.confirm_published([old]) == 1
        assert case.sweep().grants == []
        case.redis.zadd(key_of(PREFIX, "deadlines"), {"b": -1})
        [new] = case.sweep().grants
        assert (new.id, new.number > old.number) == ("b", True)
        assert case.come("b", "one", grant=old.number) == "drop"
        assert case.come("b", "one", grant=new.number) == "start"


class TestAThousandConflicts:
    NUMBER = 1001

    @pytest.fixture
    def hub(self, case: Case) -> Case:
        """It blocks very many jobs; another job also blocks the last two of them."""
        self.names = [f"b{n:04}" for n in range(self.NUMBER)]
        case.install(
            {
                "hub": {"max_running": 1, "blocks": self.names},
                "x": {"blocks": self.names[-2:]},
                **{name: {} for name in self.names},
            }
        )
        return case

    @pytest.mark.parametrize("nth", [1000, 1001])
    def test_each_of_a_thousand_conflicts_holds_the_job_back(self, hub: Case, nth: int):
        name = self.names[nth - 1]
        assert hub.come("x1", "x") == "start"
        assert hub.come("first", name) == "wait"
        assert hub.come("hub1", "hub") == "wait"
        assert hub.started("x1") == ["first"]
        assert hub.started("first") == ["hub1"]

    @pytest.mark.parametrize("nth", [1000, 1001])
    def test_each_of_a_thousand_conflicting_jobs_waits_and_starts_when_the_job_has_ended(self, hub: Case, nth: int):
        assert hub.come("hub1", "hub") == "start"
        assert hub.come("first", self.names[nth - 1]) == "wait"
        assert hub.started("hub1") == ["first"]


class TestSlots:
    def test_an_arrival_that_has_to_wait_leaves_its_slot_to_a_run_that_may_start(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        assert case.come("b", "one") == "wait"
        turn = case.turn(ends={"a": "succeeded"}, come=[arrival("c", "one")])
        assert ([start.id for start in turn.starts], turn.answers[0].what) == (["b"], "wait")

    def test_no_more_start_here_than_slots_are_offered(self, case: Case):
        case.install({"one": {}}, cap=1)
        assert case.come("a", "one") == "start"
        for id in "bcd":
            assert case.come(id, "one") == "wait"
        case.install({"one": {}}, cap=9)
        turn = case.turn(ends={"a": "succeeded"}, free=2)
        assert [start.id for start in turn.starts] == ["b", "c"]
        assert [grant.id for grant in turn.grants] == ["d"]

    def test_the_slot_of_a_copy_that_is_dropped_goes_to_a_run_that_waits_for_one(self, case: Case):
        case.install({"one": {"max_running": 1}, "two": {"max_running": 1}, "free": {}})
        case.register("w1", slots=1)
        for id, job in (("a", "one"), ("d", "two"), ("f", "free"), ("ended", "free")):
            assert case.come(id, job) == "start"
        assert [case.come(id, job) for id, job in (("b", "one"), ("e", "two"))] == ["wait", "wait"]
        case.end("ended", free=0)
        assert [grant.id for grant in case.turn(ends={"a": "succeeded"}).grants] == ["b"]
        assert case.turn(ends={"d": "succeeded"}).grants == []  # the only slot is for b
        turn = case.turn(ends={"f": "succeeded"}, come=[arrival("ended", "free")])
        assert (turn.answers[0].what, [start.id for start in turn.starts]) == ("drop", ["e"])

    def test_a_retry_with_a_countdown_makes_way_for_runs_behind_the_attempt_before_it(self, case: Case):
        case.install({"j": {"blocks": ["k"]}, "k": {}, "free": {}})
        assert case.come("f", "free") == "start"
        case.register("w1", slots=1)
        assert case.come("a", "j") == "start"
        for attempt in (replace(arrival("b", "k"), queue="nobody"), arrival("c", "j")):
            assert case.turn(come=[attempt]).answers[0].what == "wait"
        assert case.turn(ends={"a": "succeeded"}).grants == []  # c waits behind b, whose queue nobody serves
        turn = case.turn(ends={"f": "succeeded"}, come=[arrival("b", "k", attempt=1, eta_ms=FAR)])
        assert (turn.answers[0].what, [grant.id for grant in turn.grants]) == ("wait", ["c"])

    def test_a_worker_is_handed_only_runs_of_queues_that_it_serves(self, case: Case):
        case.install({"one": {"max_running": 1}})
        case.register("w2", queues=("elsewhere",))
        case.turn(worker="w2", come=[arrival("a", "one")])
        assert case.come("b", "one") == "wait"
        turn = case.turn(worker="w2", ends={"a": "succeeded"}, free=8)
        assert (turn.starts, [grant.id for grant in turn.grants]) == ([], ["b"])

    def test_a_copy_of_an_older_grant_does_not_start_the_run(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        assert case.come("b", "one") == "wait"
        [old] = case.turn(ends={"a": "succeeded"}).grants
        case.redis.zadd(key_of(PREFIX, "deadlines"), {"b": -1})
        [new] = case.sweep().grants
        assert case.come("b", "one", grant=old.number) == "drop"
        assert case.come("b", "one", grant=new.number) == "start"

    def test_a_granted_run_holds_its_room_until_it_starts(self, case: Case):
        case.install({"one": {"max_running": 1}})
        assert case.come("a", "one") == "start"
        assert case.come("b", "one") == "wait"
        [grant] = case.turn(ends={"a": "succeeded"}).grants
        assert (case.room(), case.come("c", "one")) == (1, "wait")
        assert case.ledger.confirm_published([grant]) == 1
        assert case.come("b", "one", grant=grant.number) == "start"
        assert case.room() == 1


class TestFences:
    @pytest.fixture
    def recovered(self, case: Case) -> Case:
        """A worker lost its lease while it ran `a`, came back, and another worker has started the run since."""
        case.install({"one": {"max_running": 1}})
        case.register("w2")
        case.turn(worker="w2", come=[arrival("a", "one")])
        self.old = case.fences["a"]
        [grant] = case.dies("w2").grants
        assert case.come("a", "one", grant=grant.number) == "start"
        case.register("w2")
        return case

    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "retry", "crashed", "returned", "requeued"])
    def test_an_outcome_with_an_old_fence_changes_nothing(self, recovered: Case, outcome: str):
        recovered.number += 1
        told = [Outcome("a", self.old, outcome)]
        assert recovered.ledger.turn("w2", recovered.number, "enforce", 0, told, []).settled == ["refused"]
        assert (recovered.room(), recovered.ledger.read_history("one", 10)) == (1, [])
        assert recovered.turn(ends={"a": "succeeded"}).settled == ["ok"]
        assert recovered.room() == 0

    def test_an_outcome_is_taken_once(self, recovered: Case):
        assert recovered.turn(ends={"a": "succeeded"}).settled == ["ok"]
        assert recovered.turn(ends={"a": "succeeded"}).settled == ["refused"]
        assert recovered.room() == 0

    def test_a_heartbeat_names_the_runs_whose_fence_is_old(self, recovered: Case):
        assert recovered.ledger.heartbeat("w2", 30_000, [("a", self.old)]) == ["a"]
        assert recovered.ledger.heartbeat("w1", 30_000, [("a", recovered.fences["a"])]) == []

    def test_every_start_has_a_higher_fence(self, recovered: Case):
        assert int(recovered.fences["a"]) > int(self.old)


class TestAttempts:
    @pytest.fixture
    def one(self, case: Case) -> Case:
        case.install({"one": {"max_running": 2}})
        assert case.come("a", "one") == "start"
        return case

    def test_an_attempt_lower_than_the_running_one_is_dropped(self, one: Case):
        one.end("a", "retry", free=0)
        assert one.come("a", "one", attempt=1) == "start"
        assert one.come("a", "one") == "drop"

    def test_an_attempt_lower_than_the_waiting_one_is_dropped(self, one: Case):
        one.end("a", "retry", free=0)
        assert [one.come("b", "one"), one.come("c", "one")] == ["start", "start"]
        assert one.come("a", "one", attempt=1) == "wait"
        assert one.come("a", "one") == "drop"
        assert one.started("b") == ["a"]

    def test_an_attempt_lower_than_the_ended_one_is_dropped(self, one: Case):
        one.end("a", "retry", free=0)
        assert one.come("a", "one", attempt=1) == "start"
        one.end("a")
        assert one.come("a", "one") == "drop"
        assert one.come("a", "one", attempt=1) == "drop"

    def test_a_higher_attempt_waits_for_the_running_one(self, one: Case):
        assert one.come("a", "one", attempt=1) == "wait"
        assert one.room() == 1
        assert one.turn(ends={"a": "retry"}, free=1).starts[0].id == "a"

    def test_of_two_attempts_that_wait_for_the_running_one_the_lower_is_dropped(self, one: Case):
        assert one.come("a", "one", attempt=2) == "wait"
        assert one.come("a", "one", attempt=1) == "drop"
        assert one.started("a") == ["a"]
        assert one.come("a", "one", attempt=2) == "drop"

    def test_a_lower_attempt_whose_worker_died_is_not_run_again(self, case: Case):
        case.install({"one": {"max_running": 1}})
        case.register("w2")
        case.turn(worker="w2", come=[arrival("a", "one")])
        assert case.come("a", "one", attempt=1) == "wait"
        swept = case.dies("w2")
        assert swept.recovered == 0
        [grant] = swept.grants
        assert case.come("a", "one", grant=grant.number) == "drop"
        assert case.come("a", "one", attempt=1, grant=grant.number) == "start"


class TestProbe:
    """The run that tests whether a job works again that failures have disabled."""

    @pytest.fixture
    def disabled(self, case: Case) -> Case:
        """Two runs wait for the end of the cool-down."""
        case.install({"one": {"max_running": 2, "max_consecutive_failures": 1, "cool_down_seconds": 3600}})
        assert case.come("a", "one") == "start"
        case.end("a", "failed")
        assert [case.come("b", "one"), case.come("c", "one")] == ["wait", "wait"]
        return case

    def cools_down(self, case: Case) -> list[str]:
        case.redis.zadd(key_of(PREFIX, "timers"), {"cool_down:one": 1})
        grants = case.sweep().grants
        return [id for grant in grants for id in [grant.id] if case.come(id, "one", grant=grant.number) == "start"]

    def test_one_probe_runs_after_the_cool_down_and_none_before(self, disabled: Case):
        assert disabled.turn(free=8).starts == []
        assert self.cools_down(disabled) == ["b"]
        assert disabled.come("d", "one") == "wait"
        assert disabled.turn(free=8).starts == []

    def test_a_probe_that_succeeds_enables_the_job(self, disabled: Case):
        self.cools_down(disabled)
        assert disabled.started("b") == ["c"]
        assert disabled.come("d", "one") == "start"
        assert not disabled.redis.sismember(key_of(PREFIX, "disabled_jobs"), "one")

    def test_a_probe_that_fails_begins_the_cool_down_anew(self, disabled: Case):
        self.cools_down(disabled)
        disabled.redis.delete(key_of(PREFIX, "timers"))
        assert disabled.end("b", "failed", free=8) == []
        assert disabled.redis.zscore(key_of(PREFIX, "timers"), "cool_down:one") is not None
        assert self.cools_down(disabled) == ["c"]

    def test_a_probe_without_an_outcome_is_followed_by_another(self, disabled: Case):
        self.cools_down(disabled)
        assert disabled.end("b", "ignored", free=8) == ["c"]
        assert disabled.come("d", "one") == "wait"


class TestCrashes:
    def test_crashes_of_all_attempts_count(self, case: Case):
        case.install({"one": {"max_running": 1, "max_recoveries": 1}})
        assert case.come("a", "one") == "start"
        turn = case.turn(ends={"a": "crashed"}, free=1)
        assert (turn.settled, [start.id for start in turn.starts]) == (["waits"], ["a"])
        case.end("a", "retry")
        assert case.come("a", "one", attempt=1) == "start"
        assert case.turn(ends={"a": "crashed"}).settled == ["dead"]

    def test_a_run_that_was_returned_before_it_began_does_not_count_as_crashed(self, case: Case):
        case.install({"one": {"max_running": 1, "max_recoveries": 0}})
        assert case.come("a", "one") == "start"
        turn = case.turn(ends={"a": "returned"}, free=1)
        assert (turn.settled, [start.id for start in turn.starts]) == (["waits"], ["a"])
        assert case.turn(ends={"a": "crashed"}).settled == ["dead"]


class TestSweep:
    def test_all_runs_of_a_dead_worker_are_recovered_though_one_call_takes_a_part(self, case: Case):
        case.install({"one": {}})
        case.register("w2")
        for n in range(10):
            case.turn(worker="w2", come=[arrival(f"{n}-{m}", "one") for m in range(10)])
        assert case.room() == 100
        first = case.dies("w2")
        assert (first.recovered, first.more, first.dead_workers) == (64, True, [])
        second = case.sweep()
        assert (second.recovered, second.dead_workers) == (36, ["w2@host"])
        granted = len(first.grants) + len(second.grants)
        assert (case.room(), case.redis.zcard(key_of(PREFIX, "waiting"))) == (granted, 100 - granted)

    def test_a_worker_that_sweeps_does_not_count_as_dead(self, case: Case):
        case.install({"one": {}})
        assert case.come("a", "one") == "start"
        swept = case.dies("w1")
        assert (swept.recovered, swept.dead_workers) == (0, [])
        assert case.end("a") == []

    def test_a_worker_that_sends_heartbeats_does_not_count_as_dead(self, case: Case):
        case.install({"one": {}})
        case.register("w2")
        case.redis.zadd(key_of(PREFIX, "leases"), {"w2": -1})
        case.ledger.heartbeat("w2", 30_000, [])
        assert case.sweep().dead_workers == []

    def test_an_ending_that_nobody_carried_out_is_given_out_again(self, case: Case):
        case.install({"one": {"max_running": 1}})
        case.come("a", "one")
        case.come("b", "one")
        case.ledger.cancel("w1", 1, "revoked", ["b"])
        assert case.sweep().endings == []
        case.redis.zadd(key_of(PREFIX, "deadlines"), {"b": -1})
        assert [(one.id, one.why) for one in case.sweep().endings] == [("b", "revoked")]

    def test_a_retry_that_does_not_arrive_is_sent_again(self, case: Case):
        case.install({"one": {"max_running": 1}})
        case.come("a", "one")
        case.end("a", "retry")
        assert case.sweep().retries == []
        case.redis.zadd(key_of(PREFIX, "deadlines"), {"a": -1})
        assert case.sweep().retries == ["a"]
        assert case.sweep().retries == []

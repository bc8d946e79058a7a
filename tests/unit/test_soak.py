"""The checks of the soak: every violation that is planted in a story is found, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak import checks, report
from soak.checks import violations
from soak.plan import LEASE, TOPOLOGIES, Call, Plan, Run, make
from soak.story import Rule, Story
from support.history import Event, Span

RULES = {
    "one": Rule(cap=1),
    "two": Rule(cap=2),
    "free": Rule(),
    "keyed": Rule(cap=1, keyed=True),
    "red": Rule(blocks=frozenset({"blue"})),
    "blue": Rule(),
    "gather": Rule(),
}


class Tale:
    """A story in the making, which begins as a good one."""

    def __init__(self, topology: str = "rabbitmq", max_running: int | None = None) -> None:
        self.plan = Plan("seed", 60.0, topology, (), max_running, (), (), ())
        self.spans: list[Span] = []
        self.journal: list[dict[str, Any]] = []
        self.states: dict[str, str] = {}
        self.rest: dict[str, Any] = {}

    def note(self, kind: str, at: float, **fields: Any) -> None:
        self.journal.append({"kind": kind, "at": at, **fields})

    def sent(self, run: str, job: str, at: float = 0.0, state: str | None = "SUCCESS", **fields: Any) -> None:
        self.plan = replace(self.plan, calls=(*self.plan.calls, Call(at, "single", (Run(run, job, **fields),))))
        self.note("sent", at, runs=[run])
        if state is not None:
            self.states[run] = state

    def executed(
        self, run: str, job: str, begin: float, end: float | None, *, note: Any = None, fence: int = 0,
        attempt: int = 0, worker: str = "w1", pid: int = 1, outcome: str = "returned",
    ) -> int:  # fmt: skip
        fence = fence or int(begin * 1e6) + 1
        start = Event("start", f"{run}@{begin}", job, run, attempt, fence, pid, worker, begin, begin, None, note)
        ended = None if end is None else replace(start, kind="end", monotonic=end, wall=end, outcome=outcome)
        self.spans.append(Span(start, ended))
        return fence

    def settled(
        self, run: str, fence: int, at: float, answer: str = "ok", outcome: str = "succeeded", attempt: int = 0
    ) -> None:
        self.note("settled", at, run=run, fence=fence, attempt=attempt, outcome=outcome, answer=answer, worker="w1")

    def ran(self, run: str, job: str, begin: float, end: float, **fields: Any) -> None:
        """Sent, executed and accepted."""
        self.sent(run, job, begin)
        self.settled(run, self.executed(run, job, begin, end, **fields), end)

    def found(self) -> list[str]:
        story = Story(self.plan, RULES, self.spans, self.journal, self.states, **self.rest)
        found = violations(story)
        assert len(list(report.findings(story, found))) >= len(found)
        assert list(report.summary(story))
        return [f"{one.invariant} {one.what}" for one in found]

    def finds(self, *expected: str) -> None:
        found = self.found()
        assert len(found) == len(expected), found
        for one, text in zip(found, expected, strict=True):
            assert text in one


@pytest.fixture
def tale() -> Tale:
    return Tale()


def test_a_good_story_has_no_violation(tale):
    tale.ran("a", "one", 1, 2)
    tale.ran("b", "one", 2, 3)
    tale.ran("c", "keyed", 1, 3, note="x")
    tale.ran("d", "keyed", 1, 3, note="y")
    tale.ran("e", "red", 1, 2)
    tale.ran("f", "blue", 2, 3)
    tale.finds()


# -- I1


def test_more_runs_of_a_job_than_allowed_are_found(tale):
    tale.ran("a", "two", 1, 3)
    tale.ran("b", "two", 1.5, 3)
    tale.ran("c", "two", 2, 3)
    tale.finds("I1 3 runs of two together, 2 may")


def test_more_runs_of_a_key_than_allowed_are_found(tale):
    tale.ran("a", "keyed", 1, 3, note="x")
    tale.ran("b", "keyed", 2, 3, note="x")
    tale.finds("I1 2 runs of keyed with key x together, 1 may")


@pytest.mark.parametrize(("first", "second"), [("red", "blue"), ("blue", "red")])
def test_jobs_that_block_each_other_and_ran_together_are_found(tale, first, second):
    tale.ran("a", first, 1, 3)
    tale.ran("b", second, 2, 3)
    tale.finds("I1 " + f"{second} and {first} together")


def test_more_runs_of_all_jobs_than_allowed_are_found():
    tale = Tale(max_running=1)
    tale.ran("a", "free", 1, 3)
    tale.ran("b", "blue", 2, 3)
    tale.finds("I1 2 runs together, 1 may")


def test_a_run_that_was_executed_twice_at_once_is_found(tale):
    tale.sent("a", "free", 1)
    tale.executed("a", "free", 1, 3)
    tale.settled("a", tale.executed("a", "free", 2, 4, worker="w2"), 4)
    assert any("executed twice at once" in one for one in tale.found())


def test_a_killed_execution_lasts_until_its_process_died(tale):
    tale.sent("a", "one", 1)
    tale.executed("a", "one", 1, None, pid=7)
    tale.note("death", 2.0, pid=7)
    tale.settled("a", tale.executed("a", "one", 2.1, 3), 3)
    tale.finds()
    tale.journal = [entry for entry in tale.journal if entry["kind"] != "death"]
    tale.finds("I1 run a of one is executed twice at once", "I1 2 runs of one together, 1 may")
    tale.note("seen", 9.0, pid=7, last=2.05)
    tale.finds()


def stopped(tale: Tale, worker: str, begin: float, end: float) -> None:
    tale.note("stopped", begin, worker=worker)
    tale.note("continued", end, worker=worker)


def test_a_void_execution_may_overlap_but_its_outcome_may_not_be_accepted(tale):
    begin = 1.0
    lost = begin + 1 + LEASE
    tale.sent("a", "one", begin)
    old = tale.executed("a", "one", begin, lost + 3)
    stopped(tale, "w1", begin + 0.5, lost + 2)
    new = tale.executed("a", "one", lost, lost + 4, worker="w2")
    tale.settled("a", new, lost + 4)
    tale.settled("a", old, lost + 3, answer="refused")
    tale.finds()
    tale.journal[-1]["answer"] = "ok"
    found = tale.found()
    assert any("executed twice at once" in one for one in found)
    assert any("2 outcomes of attempt 0 of run a were accepted" in one for one in found)
    assert any(f"accepted with fence {old}, a later one started" in one for one in found)


def test_a_short_stop_does_not_excuse_a_second_execution(tale):
    tale.sent("a", "one", 1)
    tale.executed("a", "one", 1, 4)
    stopped(tale, "w1", 1.5, 1.5 + LEASE / 3)
    tale.settled("a", tale.executed("a", "one", 2, 5, worker="w2"), 5)
    assert any("executed twice at once" in one for one in tale.found())


def test_a_stall_of_the_machine_excuses_a_second_execution(tale):
    tale.sent("a", "free", 1)
    tale.executed("a", "free", 1, 9)
    tale.note("stall", 5.0, since=2.0)
    tale.settled("a", tale.executed("a", "free", 6, 10, worker="w2"), 10)
    tale.finds()


def test_a_fence_that_does_not_rise_is_found(tale):
    tale.sent("a", "free", 1)
    tale.executed("a", "free", 1, 2, fence=5, attempt=0)
    tale.settled("a", 5, 2, outcome="retry")
    tale.settled("a", tale.executed("a", "free", 3, 4, fence=5, attempt=1), 4, attempt=1)
    tale.finds("I1 the fence of run a does not rise")


def test_a_result_of_an_execution_that_was_not_accepted_is_found(tale):
    tale.ran("a", "free", 1, 2)
    tale.rest["results"] = {"a": 77}
    tale.finds("I1 the result of run a is of fence 77")


def test_a_result_that_a_void_execution_stored_is_found(tale):
    tale.sent("a", "free", 1)
    old = tale.executed("a", "free", 1, 1.5)
    stopped(tale, "w1", 1.2, 9)
    tale.settled("a", tale.executed("a", "free", 7, 8, worker="w2"), 8)
    tale.rest["results"] = {"a": old}
    tale.finds()  # it was stored before the lease was lost, and Celery keeps the first
    tale.spans.pop(0)
    tale.executed("a", "free", 1, 10)
    tale.finds(f"I1 the result of run a is of fence {old}")


# -- I2


def test_a_run_that_vanished_is_found(tale):
    tale.sent("a", "free", 1, state=None)
    tale.note("received", 2, run="a", retries=0, worker="w1")
    tale.finds("I2 run a of free is PENDING and nowhere to be found")


def test_a_result_that_a_zombie_wrote_over_is_allowed_for_only_if_it_stood_still_while_storing(tale):
    for run, stop in (("1", 2.1), ("2", 4.0)):
        tale.sent(run, "free", 1.0, state="RETRY")
        tale.executed(run, "free", 1.5, 2.0, worker=f"w{run}", outcome="ValueError")
        stopped(tale, f"w{run}", stop, 12.0)
        tale.settled(run, tale.executed(run, "free", 8.0 + int(run), 8.5 + int(run), worker="w3", fence=9_000_000), 9.5)
    tale.finds("I2 run 2 of free is RETRY and nowhere")


@pytest.mark.parametrize("topology", ["apart", "together", "rabbitmq"])
@pytest.mark.parametrize("what", ["cut_broker", "kill_worker", "kill_ledger"])
@pytest.mark.parametrize("job", ["free", "plain"])
def test_a_lost_message_is_found_whatever_broke(topology, what, job):
    tale = Tale(topology)
    tale.sent("a", job, 1, state=None)
    tale.note("fault", 1, what=what)
    tale.finds(f"I2 run a of {job} is PENDING")


def test_a_lost_retry_is_found(tale):
    """The ledger sends it again."""
    tale.sent("a", "free", 1, state="RETRY")
    tale.note("fault", 3, what="cut_broker")
    tale.note("received", 1, run="a", retries=0, worker="w1")
    tale.settled("a", tale.executed("a", "free", 1, 2, outcome="Retry"), 2, outcome="retry")
    tale.rest = {"listed": {"a": "retrying"}, "leftovers": {"{soak}:r:a": "hash", "free is busy": 1}}
    assert len(tale.found()) == 3


def test_an_end_that_contradicts_the_outcome_is_found(tale):
    tale.ran("a", "free", 1, 2)
    tale.states["a"] = "FAILURE"
    tale.finds("I2 run a of free ended as FAILURE")


def test_a_success_without_an_execution_is_found(tale):
    tale.sent("a", "free", 1)
    tale.finds("I2 run a of free succeeded and was never executed")


def test_a_run_that_was_executed_again_after_its_end_is_found(tale):
    tale.sent("a", "free", 1)
    tale.executed("a", "free", 1, 2, pid=5)
    tale.settled("a", tale.executed("a", "free", 8, 9, worker="w2"), 9)
    tale.finds("I2 run a of free had ended (returned) and was executed again")
    tale.note("struck", 2.1, worker="w1", pid=6)  # another child of that worker
    assert len(tale.found()) == 1
    tale.note("struck", 2.1, worker="w1")
    tale.finds()


def test_a_run_that_begins_void_after_it_has_ended(tale):
    tale.sent("a", "free", 1)
    tale.settled("a", tale.executed("a", "free", 5, 6, worker="w2"), 6)
    stopped(tale, "w1", 1.1, 9)
    tale.settled("a", tale.executed("a", "free", 9.1, 9.2, fence=1_000_000), 9.3, answer="refused")
    tale.finds("I2 run a of free had ended (returned) and was executed again")


def test_a_chord_that_lacks_a_result_is_found(tale):
    tale.sent("a", "gather", 1, kwargs={"expected": 3})
    tale.settled("a", tale.executed("a", "gather", 1, 2, note=2), 2)
    tale.finds("I2 the chord's body a got 2 results of 3")


# -- I3, I4, I5


def test_two_runs_of_one_fire_are_found(tale):
    tale.note("fire", 1, entry="e", due=5.0, run="a")
    tale.note("fire", 1, entry="e", due=6.0, run="b")
    tale.finds()
    tale.note("fire", 2, entry="e", due=5.0, run="c")
    tale.finds("I3 2 runs of e, due at 5.0")


def test_a_stuck_run_is_found(tale):
    tale.sent("a", "free", 1, state=None)
    tale.rest["listed"] = {"a": "waiting: for a free slot"}
    tale.finds("I4 run a of free has not ended: waiting: for a free slot")


def test_a_message_that_no_worker_takes_is_found():
    tale = Tale("apart")
    tale.sent("a", "free", 1, state=None)
    tale.rest["queued"] = {"a"}
    tale.finds("I4 run a of free has not ended: in the broker")


def test_a_run_that_waited_for_no_reason_is_found(tale):
    tale.sent("a", "one", 1)
    tale.settled("a", tale.executed("a", "one", 1, 20), 20)
    tale.sent("b", "one", 2)
    tale.settled("b", tale.executed("b", "one", 21, 22), 22)  # it waited for a
    tale.finds()
    tale.sent("c", "blue", 2)
    tale.settled("c", tale.executed("c", "blue", 18, 19), 19)
    tale.finds("I4 run c of blue waited 16.0 s with nobody in its way")
    tale.note("fault", 3, what="kill_child", seconds=0)  # and the time that this takes to fix
    tale.finds()


def test_a_killed_run_that_is_recovered_too_late_is_found(tale):
    tale.sent("a", "free", 1)
    tale.executed("a", "free", 1, None, pid=7)
    tale.note("death", 2.0, pid=7)
    tale.settled("a", tale.executed("a", "free", 2 + LEASE + checks.PATIENCE, 30), 30)
    tale.finds()
    tale.note("struck", 2.0, worker="w1", pid=7)  # its main process has seen it die
    tale.finds("I4 run a of free was killed and went again after 13.0 s")
    tale.note("fault", 4, what="kill_ledger", seconds=1)
    tale.finds()


def test_leftovers_in_the_ledger_are_found(tale):
    tale.rest["leftovers"] = {"{soak}:r:x": "hash"}
    tale.finds("I5 left in the ledger: {soak}:r:x: hash")


def test_workers_that_end_by_themselves_or_do_not_end_are_found(tale):
    tale.note("ended_by_itself", 3, worker="w1", code=1)
    tale.note("did_not_end", 9, worker="w2")
    tale.finds("I4 worker w1 ended by itself: 1", "I4 worker w2 was asked to end and did not")


# -- the plan


def test_the_same_seed_gives_the_same_plan():
    plan = make("7", 60)
    assert make("7", 60) == plan
    assert make("8", 60) != plan
    assert Plan.loads(plan.dumps()) == plan


def test_a_longer_soak_begins_like_a_shorter_one():
    short, long = make("7", 30), make("7", 90)
    at_the_end = 2
    assert long.calls[: len(short.calls) - at_the_end] == short.calls[:-at_the_end]
    assert long.faults[: len(short.faults)] == short.faults


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_plan_has_every_kind_of_call_act_and_fault(topology):
    plan = make("7", 600, topology)
    runs = [run for _, run in plan.runs()]
    assert len({run.id for run in runs}) == len(runs)
    assert {call.shape for call in plan.calls} == {"single", "chain", "group", "chord"}
    assert {"free", "keyed", "ring.0", "process", "plain", "deadly", "flaky", "gather"} <= {run.job for run in runs}
    assert {act.what for act in plan.acts} == {"revoke", "terminate", "cancel", "pause"}
    assert len({fault.what for fault in plan.faults}) == 9

"""Runs end: outcomes are kept until the ledger has taken them, and runs that are not ours any more are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_orchestration.job.envelope import HEADER
from celery_orchestration.ledger import Discarded, Outcome
from celery_orchestration.worker.settlement import MOST_REPORTED, Settlement
from support.gates import GateStage, starts_with


@pytest.fixture
def stage(new_app: Callable[..., Celery]) -> Iterator[GateStage]:
    stage = GateStage(new_app())
    yield stage
    stage.close()


def outcome(id: str, fence: str = "7") -> Outcome:
    return Outcome(id, fence, "succeeded")


class TestOutcomes:
    def test_an_outcome_is_kept_until_the_ledger_took_it(self, stage: GateStage):
        stage.started("a").on_success((False, None, 0.1))
        stage.loop.drain()
        assert [one.id for one in stage.settlement.reported] == []
        stage.answer()
        assert [one.id for one in stage.settlement.reported] == ["a"]

    def test_only_the_latest_reported_outcomes_are_kept(self, stage: GateStage):
        outcomes = [outcome(str(number), str(number)) for number in range(MOST_REPORTED + 5)]
        stage.settlement.answered(outcomes, [None] * len(outcomes), ["ok"] * len(outcomes))
        assert [one.id for one in stage.settlement.reported] == [str(n) for n in range(5, MOST_REPORTED + 5)]

    def test_an_error_in_what_follows_one_answer_does_not_keep_the_others_from_theirs(self, stage: GateStage):
        heard: list[str] = []

        def failing(answer: str) -> None:
            raise ConnectionError

        stage.settlement.answered([outcome("a"), outcome("b")], [failing, heard.append], ["ok", "dead"])
        assert heard == ["dead"]

    def test_a_new_start_of_a_run_voids_the_one_before(self, stage: GateStage):
        first = stage.started("a", fence="7")
        second = stage.started("a", fence="8")
        assert (first.void, second.void) == (True, False)
        first.on_success((False, None, 0.1))
        stage.loop.drain()
        assert stage.settlement.runs == {"a": second}
        assert stage.settlement.highest_fence == "8"

    def test_the_highest_fence_is_kept_in_whatever_order_runs_start(self, stage: GateStage):
        stage.come("a", "b")
        stage.answer(starts_with("10", "a"), starts_with("9", "b"))
        assert stage.settlement.highest_fence == "10"

    def test_a_run_that_ends_can_be_claimed_at_every_moment(self, stage: GateStage):
        """The carrier's thread may claim runs for a new epoch while another thread reports the end of one."""
        claimed: list[list[str]] = []

        class Runs(dict[str, Any]):
            def __delitem__(self, id: str) -> None:
                claimed.append([one.id for one in stage.settlement.claims()])
                super().__delitem__(id)
                claimed.append([one.id for one in stage.settlement.claims()])

        request = stage.started("a")
        stage.settlement.runs = Runs(stage.settlement.runs)
        request.settle("succeeded")
        assert claimed == [["a"], ["a"]]


class Pool:
    def __init__(self) -> None:
        self.terminated: list[int] = []

    def terminate_job(self, pid: int) -> None:
        self.terminated.append(pid)


def run(id: str, **fields: Any) -> Any:
    defaults = {"run_id": id, "id": id, "fence": "7", "void": False, "time_start": 1.0, "worker_pid": 3}
    return SimpleNamespace(task=SimpleNamespace(name="job"), _already_revoked=False, **{**defaults, **fields})


class TestLostLeases:
    @pytest.fixture
    def pool(self) -> Pool:
        return Pool()

    @pytest.fixture
    def settlement(self, pool: Pool) -> Settlement:
        return Settlement(pool, None, None, None, None, None)  # type: ignore[arg-type]

    def test_a_run_that_executes_is_terminated_once(self, settlement: Settlement, pool: Pool):
        settlement.runs["a"] = run("a")
        settlement.lease_lost([("a", "7")])
        settlement.lease_lost([("a", "7")])
        assert (settlement.runs["a"].void, pool.terminated) == (True, [3])

    def test_a_later_start_of_the_run_goes_on(self, stage: GateStage):
        """Between the ledger's answer and the event loop that hears of it, the run may have started here again."""
        stage.started("a", fence="7")
        again = stage.started("a", fence="8")
        stage.settlement.lease_lost([("a", "7")])
        assert not again.void
        stage.settlement.lease_lost([("a", "8")])
        assert again.void

    def test_a_run_that_has_not_begun_is_only_void(self, settlement: Settlement, pool: Pool):
        settlement.runs["a"] = run("a", time_start=None)
        settlement.lease_lost([("a", "7"), ("unknown", "7")])
        assert (settlement.runs["a"].void, pool.terminated) == (True, [])


class TestNotices:
    def test_a_revoke_reaches_the_ledger_and_terminates_runs_that_celery_does_not_know(self, stage: GateStage):
        request = stage.started("a")
        terminated: list[Any] = []
        request.terminate = lambda pool, signal: terminated.append(signal)
        stage.settlement.revoked(["a", "b"], terminate=False, signal=None)
        assert (list(stage.notices.revoked), terminated) == (["a", "b"], [])
        stage.settlement.revoked(["a"], terminate=True, signal="KILL")
        assert terminated == ["KILL"]

    def test_a_message_that_celery_refuses_ends_its_run_if_it_is_one_of_ours(self, stage: GateStage):
        ours = {"id": "a", "retries": 2, HEADER: {"publication": "p"}}
        for headers in ({"id": "plain"}, {HEADER: {}}, ours):
            message = SimpleNamespace(headers=headers, properties={"message_id": "m"}, delivery_info={})
            stage.settlement.message_refused(message)
        [found] = stage.notices.discarded
        assert isinstance(found, Discarded)
        assert found.id == "a"

    def test_a_run_whose_time_is_over_keeps_its_room_until_its_code_returns(self, stage: GateStage):
        request = stage.started("a")
        request.note = "TimeLimitExceeded: 1"
        stage.settlement.timed_out(request)
        assert [one.id for one in stage.notices.timed_out] == ["a"]
        assert "a" in stage.settlement.runs

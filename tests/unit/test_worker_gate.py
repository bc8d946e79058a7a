"""The gate in the worker, without a worker: its questions, the runs that it starts, and its reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from billiard.einfo import ExceptionInfo
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry

from celery_orchestration.ledger import Answer, Start
from celery_orchestration.worker.turns import MOST_OFFERED
from support.gates import GateStage, starts_with


@pytest.fixture
def stage(new_app: Callable[..., Celery]) -> Iterator[GateStage]:
    stage = GateStage(new_app())
    yield stage
    stage.close()


def failure(exc: BaseException) -> tuple[bool, ExceptionInfo, float]:
    """The execution pool's report about a task that raised this."""
    try:
        raise exc  # noqa: TRY301  (for its traceback)
    except BaseException:
        return True, ExceptionInfo(), 0.1


class TestStarting:
    def test_nothing_is_executed_before_the_ledger_has_answered(self, stage: GateStage):
        stage.come("a")
        assert stage.pool.given == []
        stage.answer(starts_with("7", "a"))
        assert stage.pool.given == ["a"]
        assert stage.settlement.runs["a"].fence == "7"

    def test_a_run_that_waits_is_acknowledged_and_its_slot_is_free(self, stage: GateStage):
        stage.come("a")
        assert (stage.acknowledged, stage.slots.free()) == ([], 1)
        stage.answer(Answer("wait"))
        assert (stage.acknowledged, stage.slots.free(), stage.pool.given) == (["a"], 2, [])

    @pytest.mark.parametrize("answer", ["unknown", "full", "kept"])
    def test_a_run_that_the_ledger_does_not_take_in_stays_and_asks_again(self, stage: GateStage, answer: str):
        stage.come("a")
        stage.answer(Answer(answer))
        assert (stage.acknowledged, stage.slots.free(), stage.pool.given) == ([], 2, [])
        stage.loop.time_passes(5)
        stage.answer(starts_with("7", "a"))
        assert stage.pool.given == ["a"]

    def test_a_worker_that_lacks_a_policy_registers_again(self, stage: GateStage):
        stage.come("a")
        stage.answer(Answer("unknown"))
        assert "register_again" in stage.called

    def test_no_more_ask_than_there_are_slots(self, stage: GateStage):
        stage.come("a", "b", "c")
        assert [arrival.id for arrival in stage.turns[0].arrivals] == ["a", "b"]
        stage.answer(starts_with("7", "a"), Answer("wait"))
        assert [arrival.id for arrival in stage.turns[0].arrivals] == ["c"]
        stage.answer(starts_with("8", "c"))
        assert (stage.turns, stage.slots.free()) == ([], 0)

    def test_a_handed_over_run_goes_before_those_that_came_first(self, stage: GateStage):
        for id in ("a", "b"):
            stage.started(id, fence=id)
        stage.come("c")
        stage.come("d", grant="3")
        stage.settlement.runs["a"].on_success((False, None, 0.1))
        stage.loop.drain()
        assert [arrival.id for batch in stage.turns for arrival in batch.arrivals] == ["d"]

    def test_idle_slots_are_offered_while_runs_wait_and_only_then(self, new_app: Callable[..., Celery]):
        stage = GateStage(new_app(), slots=9)
        stage.come("a")
        assert stage.answer(starts_with("7", "a")).offered == 0
        stage.come("b")
        stage.answer(starts_with("8", "b"), waiting=5)
        stage.come("c")
        assert stage.turns[0].offered == MOST_OFFERED
        stage.close()

    def test_a_run_that_is_handed_over_starts_in_an_offered_slot(self, stage: GateStage):
        stage.gate.turns.request_with_offer()
        stage.loop.drain()
        assert stage.turns[0].offered == 2
        stage.answer(starts=[Start("b", "9", stage.message("b"))])
        assert (stage.pool.given, stage.slots.free()) == (["b"], 1)

    def test_a_worker_that_stops_returns_what_it_is_given(self, stage: GateStage):
        stage.come("a")
        stage.gate.begin_drain()
        stage.answer(starts_with("7", "a"))
        assert (stage.pool.given, stage.slots.free()) == ([], 2)
        assert [(one.id, one.fence, one.outcome) for one in stage.reported()] == [("a", "7", "returned")]


class TestSettling:
    @pytest.mark.parametrize(
        ("exc", "outcome"),
        [
            (ValueError("bad"), "failed"), (Ignore(), "ignored"), (Reject("no", requeue=False), "rejected"),
            (Retry("later"), "retry"),
        ],
    )  # fmt: skip
    def test_a_run_is_settled_once_however_often_celery_says_so(self, stage: GateStage, exc: Exception, outcome: str):
        """Celery calls on_failure from within on_success."""
        request = stage.started("a")
        request.on_success(failure(exc))
        stage.loop.drain()
        assert [(one.id, one.fence, one.outcome) for one in stage.reported()] == [("a", "7", outcome)]
        request.settle("succeeded")
        request.on_success((False, None, 0.1))
        stage.loop.drain()
        assert len(stage.reported()) == 1
        assert (stage.slots.free(), stage.settlement.runs) == (2, {})

    def test_a_run_that_succeeded_is_settled_once(self, stage: GateStage):
        request = stage.started("a")
        request.on_success((False, None, 0.25))
        request.on_timeout(False, 1.0)
        stage.loop.drain()
        [outcome] = stage.reported()
        assert (outcome.outcome, outcome.ran_ms) == ("succeeded", 250)
        assert stage.slots.free() == 2

    def test_a_run_that_ended_its_process_has_failed(self, stage: GateStage):
        request = stage.started("a")
        with pytest.raises(SystemExit):
            request.on_success(failure(SystemExit(3)))
        stage.loop.drain()
        assert [one.outcome for one in stage.reported()] == ["failed"]

    def test_an_outcome_says_what_failed(self, stage: GateStage):
        stage.started("a").on_success(failure(ValueError("bad data")))
        stage.loop.drain()
        [outcome] = stage.reported()
        assert outcome.note == "ValueError: bad data"
        assert "ValueError" in outcome.traceback

    @pytest.mark.parametrize(("answer", "lines"), [("ok", 0), ("refused", 1)])
    def test_only_a_refused_outcome_is_reported_as_a_lost_lease(
        self, stage: GateStage, caplog: pytest.LogCaptureFixture, answer: str, lines: int
    ):
        stage.started("a").on_success(failure(ValueError()))
        stage.loop.drain()
        with caplog.at_level(logging.WARNING):
            stage.answer(outcomes=answer)
        assert sum("its lease was lost" in record.getMessage() for record in caplog.records) == lines

    def test_a_void_run_reports_nothing_to_celery(self, stage: GateStage):
        request = stage.started("a")
        stage.settlement.lease_lost([("a", "7")])
        request.on_success((False, "result", 0.1))
        stage.loop.drain()
        assert [one.outcome for one in stage.reported()] == ["returned"]

    def test_outcomes_go_in_one_turn_with_the_next_question(self, stage: GateStage):
        request = stage.started("a")
        request.on_success((False, None, 0.1))
        stage.come("b")
        [batch] = stage.turns
        assert ([one.id for one in batch.outcomes], [one.id for one in batch.arrivals]) == (["a"], ["b"])

    def test_one_turn_is_under_way_at_a_time(self, stage: GateStage):
        stage.started("a").on_success((False, None, 0.1))
        stage.loop.drain()
        stage.come("b")
        assert len(stage.turns) == 1
        stage.answer()
        assert [one.id for one in stage.turns[0].arrivals] == ["b"]


class TestTrouble:
    def test_while_the_ledger_is_away_slots_are_free_and_nothing_is_acknowledged(self, stage: GateStage):
        stage.come("a")
        stage.gate.close()
        assert (stage.slots.free(), stage.acknowledged, stage.pool.given) == (2, [], [])
        stage.come("b")
        assert len(stage.turns) == 1
        stage.answer(starts_with("7", "a"))
        stage.gate.open()
        stage.loop.drain()
        assert "a" in stage.pool.given
        asked = {arrival.id for batch in stage.turns for arrival in batch.arrivals}
        assert asked == {"b"}
        assert stage.slots.free() >= 0

    def test_a_turn_that_is_answered_with_an_error_is_tried_part_by_part(self, stage: GateStage):
        stage.started("a").on_success((False, None, 0.1))
        stage.come("b")
        batch = stage.turns.pop()
        stage.gate.turns.refused(batch, RuntimeError("no"))
        stage.loop.drain()
        part = stage.answer()
        assert ([one.id for one in part.outcomes], part.arrivals) == (["a"], [])
        stage.gate.turns.refused(stage.turns.pop(), RuntimeError("no"))
        stage.loop.drain()
        assert (stage.slots.free(), stage.turns) == (2, [])
        stage.loop.time_passes(5)
        assert [one.id for one in stage.turns[0].arrivals] == ["b"]

    def test_runs_that_go_on_and_runs_that_were_not_reported_are_claimed_in_a_new_epoch(self, stage: GateStage):
        stage.started("a", fence="7")
        stage.started("b", fence="8").on_success((False, None, 0.1))
        assert [(claim.run.id, claim.fence) for claim in stage.settlement.claims()] == [("a", "7"), ("b", "8")]
        stage.loop.drain()
        stage.answer()
        assert [claim.run.id for claim in stage.settlement.claims()] == ["a"]
        stage.settlement.lease_lost([("a", "7")])
        assert stage.settlement.claims() == []

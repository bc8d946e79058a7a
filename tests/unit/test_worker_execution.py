"""Runs that may start: given to the execution pool, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError

from celery_orchestration.ledger import Start
from support.gates import GateStage, starts_with


@pytest.fixture
def stage(new_app: Callable[..., Celery]) -> Iterator[GateStage]:
    stage = GateStage(new_app())
    yield stage
    stage.close()


class Result:
    """The result of apply_async on threads."""

    def __init__(self) -> None:
        self.f = self
        self.done: list[Callable[[Any], None]] = []

    def add_done_callback(self, function: Callable[[Any], None]) -> None:
        self.done.append(function)

    def end(self) -> None:
        for function in self.done:
            function(self)


def refusing(stage: GateStage, exc: Exception) -> None:
    def apply_async(*args: Any, **options: Any) -> Any:
        raise exc

    stage.pool.apply_async = apply_async  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("exc", "outcome"),
    [(OSError("pipe"), "returned"), (TaskRevokedError("x"), "revoked"), (ValueError("bad"), "failed")],
)
def test_a_run_that_the_pool_does_not_take_is_settled_and_its_slot_is_free(
    stage: GateStage, exc: Exception, outcome: str
):
    refusing(stage, exc)
    stage.come("a")
    stage.answer(starts_with("7", "a"))
    assert [(one.id, one.outcome) for one in stage.reported()] == [("a", outcome)]
    assert (stage.slots.free(), stage.settlement.runs) == (2, {})


@pytest.mark.parametrize(("time_start", "outcome"), [(None, "returned"), (1.0, "crashed")])
def test_a_run_that_threads_drop_without_a_callback_is_settled(
    stage: GateStage, time_start: float | None, outcome: str
):
    result = Result()
    stage.pool.apply_async = lambda *args, **options: result  # type: ignore[method-assign]
    request = stage.started("a")
    request.time_start = time_start
    result.end()
    stage.loop.drain()
    assert [one.outcome for one in stage.reported()] == [outcome]


def test_a_run_that_ended_as_usual_is_not_settled_again_when_it_leaves_the_pool(stage: GateStage):
    result = Result()
    stage.pool.apply_async = lambda *args, **options: result  # type: ignore[method-assign]
    stage.started("a").on_success((False, None, 0.1))
    result.end()
    stage.loop.drain()
    assert [one.outcome for one in stage.reported()] == ["succeeded"]


def test_a_handed_over_run_whose_message_cannot_be_read_fails_without_a_slot(stage: GateStage):
    stage.gate.turns.request_with_offer()
    stage.loop.drain()
    stage.answer(starts=[Start("b", "9", b"not a message")])
    assert [(one.id, one.fence, one.outcome) for one in stage.notices.unreadable] == [("b", "9", "failed")]
    assert (stage.pool.given, stage.slots.free()) == ([], 2)


def test_a_run_without_a_room_key_fails_as_soon_as_it_starts(stage: GateStage):
    [request] = stage.come("a")
    request.problem = ValueError("no key")
    stage.answer(starts_with("7", "a"))
    assert stage.pool.given == []
    assert [(one.outcome, one.note) for one in stage.reported()] == [("failed", "ValueError: no key")]


def test_more_runs_than_slots_wait_for_a_slot(stage: GateStage):
    """The ledger may start a run in answer to a turn whose slots were given back meanwhile."""
    stage.come("a", "b")
    stage.gate.close()
    stage.answer(starts_with("7", "a"), starts_with("8", "b"))
    assert stage.pool.given == []
    stage.gate.open()
    stage.loop.drain()
    assert stage.pool.given == ["a", "b"]


class TestProcesses:
    def test_room_is_freed_only_when_the_process_is_gone(self, stage: GateStage):
        process, gone = Process(), []
        stage.gate.execution.when_gone(process, lambda: gone.append(True))
        stage.loop.time_passes(1)
        assert gone == []
        process.alive = False
        stage.loop.time_passes(1)
        assert gone == [True]

    def test_a_worker_that_has_stopped_does_not_wait(self, stage: GateStage):
        stage.state.stopping = True
        gone: list[bool] = []
        stage.gate.execution.when_gone(Process(), lambda: gone.append(True))
        assert gone == [True]


class Process:
    alive = True

    def _is_alive(self) -> bool:
        return self.alive

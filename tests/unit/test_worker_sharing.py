"""Handed-over runs that no slot is free for are shared with other workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from celery_orchestration.worker.sharing import SHARE_AFTER
from support.gates import GateStage, starts_with


@pytest.fixture
def stage(new_app: Callable[..., Celery]) -> Iterator[GateStage]:
    stage = GateStage(new_app(), slots=1, granted=("celery",))
    yield stage
    stage.close()


def hand_over(stage: GateStage, id: str) -> None:
    """Its message arrives, and no slot is free for it yet."""
    request = stage.request(id, grant="3")
    stage.admission.message_received(request)
    stage.comes(request)
    stage.loop.drain()


def test_a_run_that_waits_for_a_slot_is_copied_and_no_more_are_taken(stage: GateStage):
    stage.started("a")
    hand_over(stage, "b")
    assert (stage.copied, stage.take_granted) == ([], [])
    stage.loop.time_passes(SHARE_AFTER)
    assert (stage.copied, stage.take_granted) == (["b"], [False])
    hand_over(stage, "c")
    stage.loop.time_passes(SHARE_AFTER)
    assert (stage.copied, stage.take_granted) == (["b", "c"], [False])


def test_handed_over_runs_are_taken_again_when_none_waits(stage: GateStage):
    stage.started("a")
    hand_over(stage, "b")
    stage.loop.time_passes(SHARE_AFTER)
    stage.settlement.runs["a"].on_success((False, None, 0.1))
    stage.loop.drain()
    assert stage.take_granted == [False, True]


def test_a_run_that_has_asked_by_then_is_not_copied(stage: GateStage):
    hand_over(stage, "a")
    stage.answer(starts_with("7", "a"))
    stage.loop.time_passes(SHARE_AFTER)
    assert (stage.copied, stage.take_granted) == ([], [])


def test_a_closed_gate_shares_nothing(stage: GateStage):
    stage.started("a")
    hand_over(stage, "b")
    stage.gate.close()
    stage.loop.time_passes(SHARE_AFTER)
    assert stage.copied == []


def test_runs_of_the_users_own_queues_are_not_copied(new_app: Callable[..., Celery]):
    stage = GateStage(new_app(), slots=1, granted=("default.granted",))
    stage.started("a")
    hand_over(stage, "b")
    stage.loop.time_passes(SHARE_AFTER)
    assert (stage.copied, stage.take_granted) == ([], [])
    stage.close()

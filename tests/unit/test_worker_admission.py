"""Requests come in and wait for slots; the ledger, the broker or the worker goes away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_orchestration.ledger import Answer, Start
from celery_orchestration.worker.admission import MOST_SCHEDULED
from support.gates import GateStage, starts_with


@pytest.fixture
def stage(new_app: Callable[..., Celery]) -> Iterator[GateStage]:
    stage = GateStage(new_app())
    yield stage
    stage.close()


def asked(stage: GateStage) -> list[str]:
    return [arrival.id for batch in stage.turns for arrival in batch.arrivals]


class TestStartTimes:
    def test_a_request_with_a_start_time_goes_to_the_ledger_without_a_slot(self, stage: GateStage):
        eta = time.time() + 60
        stage.admission.schedule(stage.request("a"), eta)
        stage.loop.drain()
        [batch] = stage.turns
        assert ([one.eta_ms for one in batch.arrivals], batch.slots, stage.slots.free()) == ([int(eta * 1000)], 0, 2)
        stage.answer(Answer("wait"))
        assert (stage.acknowledged, stage.slots.free()) == (["a"], 2)
        [(delay, _)] = stage.loop.delayed
        assert delay == pytest.approx(60, abs=1)

    def test_many_of_them_go_in_several_turns(self, stage: GateStage):
        for number in range(MOST_SCHEDULED + 3):
            stage.admission.schedule(stage.request(str(number)), time.time() + 60)
        stage.loop.drain()
        assert len(asked(stage)) == MOST_SCHEDULED
        stage.answer(*[Answer("wait")] * MOST_SCHEDULED)
        assert len(asked(stage)) == 3

    def test_while_the_ledger_is_away_they_stay(self, stage: GateStage):
        stage.gate.close()
        stage.admission.schedule(stage.request("a"), time.time() + 60)
        stage.loop.drain()
        assert stage.turns == []
        stage.gate.open()
        stage.loop.drain()
        assert asked(stage) == ["a"]

    def test_one_that_the_ledger_does_not_take_in_is_scheduled_again(self, stage: GateStage):
        stage.admission.schedule(stage.request("a"), time.time() + 60)
        stage.loop.drain()
        stage.answer(Answer("full"))
        assert stage.acknowledged == []
        stage.loop.time_passes(5)
        assert asked(stage) == ["a"]


class TestSlots:
    def test_a_run_that_cannot_be_asked_for_fails_and_its_slot_is_free(self, stage: GateStage):
        failed: list[str] = []
        stage.task.backend = SimpleNamespace(mark_as_failure=lambda id, *_, **__: failed.append(id))
        stage.come("\ud800", "b")
        assert (failed, stage.acknowledged) == (["\ud800"], ["\ud800"])
        assert asked(stage) == ["b"]
        assert stage.slots.free() == 1

    def test_requests_that_wait_for_a_slot_are_listed_in_order(self, stage: GateStage):
        for id in ("a", "b"):
            stage.started(id, fence=id)
        stage.come("c", "d")
        assert [request.id for request in stage.admission.fetched()] == ["c", "d"]
        assert stage.admission.free_slots() == 0

    def test_requests_that_the_ledger_cannot_take_in_are_set_aside(self, stage: GateStage):
        [request] = stage.come("a")
        assert not stage.admission.has_set_aside(request)
        stage.answer(Answer("full"))
        assert stage.admission.has_set_aside(request)
        assert not stage.admission.has_set_aside(object())

    def test_all_runs_that_start_can_be_claimed_before_the_first_is_executed(self, stage: GateStage):
        """Under gevent the execution pool may take a while, and a new epoch may begin meanwhile."""
        claimed: list[list[str]] = []
        execute = stage.pool.apply_async

        def apply_async(*args: Any, **options: Any) -> Any:
            claimed.append(sorted(one.id for one in stage.settlement.claims()))
            return execute(*args, **options)

        stage.pool.apply_async = apply_async  # type: ignore[method-assign]
        stage.come("a", "b")
        stage.answer(starts_with("7", "a"), starts_with("8", "b"))
        assert (claimed, stage.pool.given) == ([["a", "b"]] * 2, ["a", "b"])

    def test_a_run_that_went_back_before_it_was_executed_is_not_executed(self, stage: GateStage):
        execute = stage.pool.apply_async

        def apply_async(*args: Any, **options: Any) -> Any:
            stage.settlement.return_runs([stage.settlement.runs["b"]])
            return execute(*args, **options)

        stage.pool.apply_async = apply_async  # type: ignore[method-assign]
        stage.come("a", "b")
        stage.answer(starts_with("7", "a"), starts_with("8", "b"))
        assert (stage.pool.given, stage.slots.free()) == (["a"], 1)


class TestConnections:
    def test_runs_that_a_rate_limit_held_back_without_a_slot_free_none_when_they_go_back(self, stage: GateStage):
        stage.consumer.task_buckets = {"job": object()}
        stage.consumer._limit_task = lambda request, bucket, tokens: None
        stage.gate.turns.request_with_offer()
        stage.loop.drain()
        stage.answer(starts=[Start(id, fence, stage.message(id)) for id, fence in (("a", "7"), ("b", "8"))])
        assert (stage.pool.given, stage.slots.free()) == ([], 2)
        stage.gate.reconnected()
        stage.loop.drain()
        assert sorted((one.id, one.outcome) for one in stage.reported()) == [("a", "returned"), ("b", "returned")]
        assert stage.slots.free() == 2

    def test_requests_that_were_not_admitted_are_dropped_with_the_connection(self, stage: GateStage):
        for id in ("a", "b"):
            stage.started(id, fence=id)
        [waiting] = stage.come("c")
        stage.gate.connection_lost()
        assert (waiting.stage, list(stage.admission.fetched())) == ("dropped", [])

    def test_admitted_requests_ask_for_a_slot_again(self, stage: GateStage):
        stage.come("a")
        stage.gate.close()
        stage.answer(starts_with("7", "a"))
        stage.gate.connection_lost()
        asks_celery: list[str] = []
        stage.consumer.on_task_request = lambda request: asks_celery.append(request.id)
        stage.gate.reconnected()
        stage.gate.open()
        stage.loop.drain()
        assert (asks_celery, stage.pool.given) == (["a"], ["a"])


class TestStopping:
    def stop(self, stage: GateStage) -> None:
        stage.gate.begin_drain()
        stage.gate.stop()

    def test_admitted_runs_without_a_slot_go_back(self, stage: GateStage):
        stage.come("a")
        stage.gate.close()
        stage.answer(starts_with("7", "a"))
        self.stop(stage)
        assert [(one.id, one.outcome) for one in stage.reported()] == [("a", "returned")]

    def test_messages_that_were_not_begun_go_back_to_their_queues_the_last_one_first(self, stage: GateStage):
        back: list[str] = []
        for id in ("a", "b"):
            stage.started(id, fence=id)
        for request in stage.come("c", "d"):
            with_channel(request, back)
        self.stop(stage)
        assert back == []
        stage.admission.hand_back()
        stage.admission.hand_back()
        assert back == ["d", "c"]

    def test_a_request_that_celery_brings_after_the_end_is_not_served(self, stage: GateStage):
        self.stop(stage)
        stage.come("a")
        assert asked(stage) == []

    def test_it_waits_until_the_ledger_took_every_outcome(self, stage: GateStage):
        stage.started("a").on_success((False, None, 0.1))
        self.stop(stage)
        assert not stage.gate.turns.wait_until_reported(time.monotonic() - 1)
        stage.answer()
        assert stage.gate.turns.wait_until_reported(time.monotonic() + 5)


def with_channel(request: Any, back: list[str]) -> None:
    """As a message from a broker has one."""
    request.message.channel = SimpleNamespace()
    request.message.requeue = lambda: back.append(request.id)

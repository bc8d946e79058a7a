"""The time by which a run of ``on_lease_lost="stop"`` has to be gone."""

from __future__ import annotations

import pytest

from celery_orchestration.job.settings import Settings
from celery_orchestration.worker.deadline import Deadline, now, seconds_after_heartbeat


@pytest.mark.parametrize(("lease", "sweep", "seconds"), [(30, 5, 17), (30, 1, 25), (3, 5, 1.7), (300, 5, 260)])
def test_a_run_is_gone_before_the_ledger_can_count_its_lease_as_over(lease, sweep, seconds):
    """A sweep may add up to two sweep intervals too much; and there is a margin."""
    settings = Settings(lease_seconds=lease, sweep_seconds=sweep)
    assert seconds_after_heartbeat(settings) == pytest.approx(seconds)
    assert seconds_after_heartbeat(settings) > lease / 3, "a heartbeat is due before"


def test_the_deadline_moves_with_heartbeats_and_never_back():
    deadline = Deadline(Settings())
    assert deadline.has_passed(), "without a heartbeat there is no lease"
    began = now()
    deadline.heartbeat(began)
    deadline.heartbeat(began - 100)
    assert not deadline.has_passed()
    deadline.heartbeat(began - 1)
    assert deadline.has_passed_since(began)
    assert not deadline.has_passed_since(now())

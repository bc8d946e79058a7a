"""The scheduler: any number of beats, one leads. Real beat processes, real workers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from support.schedulers import ScheduleStage
from support.wait import until

Scheduled = Callable[..., ScheduleStage]

EVERY_SECOND = {"interval_seconds": 1}
HOURLY = {"interval_seconds": 3600}


def gaps(stage: ScheduleStage, entry: str) -> list[int]:
    """Ms between the due times of its runs."""
    return [b.due - a.due for a, b in pairwise(stage.ran(entry))]


# -- who leads


def test_one_leads_and_the_other_stands_by(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    first, second = stage.beat(), stage.beat()
    stage.worker()
    assert stage.leader() is first
    second.wait_for_log(f"Standing by: {first.known_as} leads")
    stage.wait_fires("tick", 4)
    assert {gap % 1000 for gap in gaps(stage, "tick")} == {0}
    assert first.log().count("Scheduler: Sending due task tick (tick)") >= 4
    assert "Sending" not in second.log()
    stage.all_fired_well()


def test_a_leader_that_is_told_to_end_resigns(scheduled: Scheduled):
    """Nobody waits for the end of its term."""
    stage = scheduled(jobs={"tick": EVERY_SECOND}, env={"TEST_TERM": "20"})
    first, second = stage.beat(), stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    told_at = stage.now
    first.signal(15)
    assert stage.leader(but=first) is second
    assert stage.lead.since - told_at < 3000  # under 1 s where the machine has time for it
    until(lambda: not first.running)
    assert first.returncode == 0
    stage.wait_fires("tick", 2, after=stage.lead.since)
    assert {gap % 1000 for gap in gaps(stage, "tick")} == {0}
    stage.all_fired_well()


def test_a_leader_that_died_is_followed_at_the_end_of_its_term(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND, "hourly": HOURLY}, env={"TEST_TERM": "3"})
    first, second = stage.beat(), stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    first.kill()
    died_at = stage.now
    last = stage.was_last_due("hourly", 3600)  # it is due while nobody leads
    assert stage.leader(but=first) is second
    assert stage.lead.since - died_at < 3000 + 2000
    [fire] = stage.wait_fires("hourly")
    assert fire.due == last + 3_600_000
    stage.wait_fires("tick", 2, after=stage.lead.since)
    stage.all_fired_well()

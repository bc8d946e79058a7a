"""The scheduler: any number of beats, one leads. Real beat processes, real workers.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.history import most_at_once
from support.invariants import forbidden_overlaps, status_of, waiting
from support.schedulers import ScheduleStage
from support.wait import stays, until

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


def test_a_leader_that_is_stopped_resigns(scheduled: Scheduled):
    """The standby does not wait for the end of the term."""
    stage = scheduled(jobs={"tick": EVERY_SECOND}, env={"TEST_TERM": "20"})
    first, second = stage.beat(), stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    told_at = stage.now
    first.signal(15)
    assert stage.leader(but=first) is second
    assert stage.lead.since - told_at < 3000  # under 1 s if the machine is not busy
    until(lambda: not first.running)
    assert first.returncode == 0
    stage.wait_fires("tick", 2, after=stage.lead.since)
    assert {gap % 1000 for gap in gaps(stage, "tick")} == {0}
    stage.all_fired_well()


@pytest.mark.slow
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


# -- what fires


@pytest.mark.slow
def test_without_workers_a_fire_waits_and_those_after_it_are_skipped(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    stage.beat()
    until(lambda: int(stage.entry("tick").get("skips", 0)) >= 2)
    assert stage.entry("tick")["fires"] == "1"
    waits = stage.entry("tick")["run"]
    stage.worker()
    [first, *_] = stage.wait_fires("tick", 2)
    assert first.run == waits
    stage.all_fired_well()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "rabbitmq"])
def test_jobs_and_plain_tasks_fire(request: pytest.FixtureRequest, schedule_on: Scheduled, kind: str):
    """A plain task fires as with Celery's own beat: with its arguments, options and headers."""
    entry = {"task": "plain", "schedule": 1, "args": ["by position"], "options": {"queue": "own"}}
    stage = schedule_on(
        request.getfixturevalue(f"{kind}_broker"),
        jobs={"tick": EVERY_SECOND},
        plain=["plain"],
        entries={"with arguments": entry, "of a job": {"task": "tick", "schedule": 1, "kwargs": {"note": "by name"}}},
    )
    beat = stage.beat()
    stage.worker(queues=["celery", "own"])
    stage.wait_fires("tick", 2)
    stage.wait_fires("of a job", 2)
    until(lambda: len(stage.executions("plain")) >= 2)
    assert {event.note for event in stage.history.started("plain")} == {"by position"}
    assert {event.note for event in stage.history.started("tick")} == {None, "by name"}
    assert "Scheduler: Sending due task with arguments (plain)" in beat.log()
    stage.all_fired_well()


@pytest.mark.slow
def test_arguments_that_are_made_when_it_fires(scheduled: Scheduled):
    every = {"schedule": 1, "args": "lazy"}
    stage = scheduled(
        jobs={"job": {"mode": "triggered"}},
        plain=["plain"],
        entries={"one": {"task": "job", **every}, "other": {"task": "plain", **every}},
    )
    stage.beat()
    stage.worker(concurrency=1)
    until(lambda: len(stage.executions("job")) >= 2 and len(stage.executions("plain")) >= 2)
    notes = [event.note for event in stage.history.started()]
    assert len(set(notes)) == len(notes)
    assert all(isinstance(note, int) for note in notes)
    stage.all_fired_well()


def test_a_task_that_the_app_does_not_have_is_sent_by_its_name(scheduled: Scheduled):
    entry = {"task": "elsewhere.task", "schedule": 1, "kwargs": {"x": 1}, "options": {"queue": "elsewhere"}}
    stage = scheduled(entries={"theirs": entry})
    stage.beat()
    until(lambda: stage.ledger.llen("elsewhere") >= 2)
    [message] = stage.ledger.lrange("elsewhere", -1, -1)
    assert json.loads(message)["headers"]["task"] == "elsewhere.task"
    assert stage.entry("theirs")["how"] == "sent"


def test_entries_that_are_broken_are_named_and_the_others_fire(scheduled: Scheduled):
    stage = scheduled(
        jobs={"tick": EVERY_SECOND},
        entries={
            "no schedule": {"task": "tick"},
            "no task": {"schedule": 1},
            "odd schedule": {"task": "tick", "schedule": "every now and then"},
            "miscalled": {"task": "tick", "schedule": 1, "args": ["one", 2, "three", "four", "too many"]},
            "odd options": {"task": "tick", "schedule": 1, "options": {"serializer": "no such one"}},
        },
    )
    beat = stage.beat()
    stage.worker()
    stage.wait_fires("tick", 3)
    for name in ("entry no schedule", "entry no task", "entry odd schedule", "entry miscalled", "entry odd options"):
        errors = [line for line in beat.log().splitlines() if "ERROR" in line and name in line.replace("'", "")]
        assert len(errors) == 1, name
        assert stage.ran(name.removeprefix("entry ")) == []
    assert "Traceback" not in beat.log()
    stage.all_fired_well()


@pytest.mark.slow
def test_whatever_an_entry_is_called_it_fires_and_the_others_do(scheduled: Scheduled):
    """Also an entry whose name has half a surrogate pair, which JSON may contain."""
    odd = ["half a pair \ud800", "\n\0:{}*\x1b[31m", "x" * 20_000, "\u202egnol"]
    stage = scheduled(
        jobs={"tick": EVERY_SECOND},
        plain=["plain"],
        entries={
            **{f"of a job {name}": {"task": "tick", "schedule": 1} for name in odd},
            **{f"plain {name}": {"task": "plain", "schedule": 1} for name in odd},
            "odd argument": {"task": "tick", "schedule": 1, "args": [odd[0]]},
            "odd task": {"task": odd[0], "schedule": 1},
            "odd queue": {"task": "tick", "schedule": 1, "options": {"queue": odd[0]}},
            "odd queue of a plain one": {"task": "plain", "schedule": 1, "options": {"queue": odd[0]}},
        },
    )
    beat = stage.beat()
    stage.worker()
    for entry in ("tick", *(f"{kind} {name}" for name in odd for kind in ("of a job", "plain"))):
        until(lambda entry=entry: int(stage.entry(entry).get("fires", 0)) >= 2, 30, f"{entry[:40]!r} fires")
    assert "\x1b[31m" not in beat.log()
    assert "Traceback" not in beat.log()


@pytest.mark.slow
def test_results_are_cleaned_up_where_the_backend_does_not_do_it(scheduled: Scheduled, tmp_path: Path):
    """Celery's own entry for that, every night."""
    (tmp_path / "results").mkdir()
    results = {"backend_url": f"file://{tmp_path}/results"}
    stage = scheduled(jobs={"hourly": HOURLY})
    stage.was_last_due("celery.backend_cleanup", 25 * 3600)
    stage.beat(**results)
    worker = stage.worker(**results)
    worker.wait_for_log("Task celery.backend_cleanup")
    assert stage.entry("celery.backend_cleanup")["every"] == "cron 0 4 * * *"


def test_of_one_tick_dependencies_go_first(scheduled: Scheduled):
    """The dependent has the higher priority, and its name comes first; it waits nevertheless."""
    stage = scheduled(
        jobs={
            "a_report": {"interval_seconds": 3600, "depends_on": ["process"], "priority": "critical"},
            "process": {"interval_seconds": 3600, "depends_on": ["z_fetch"], "priority": "high", "seconds": 0.2},
            "z_fetch": {"interval_seconds": 3600, "seconds": 0.2},
        }
    )
    due_together(stage, "a_report", "process", "z_fetch")
    stage.beat()
    stage.worker(concurrency=4)
    for entry in ("a_report", "process", "z_fetch"):
        stage.wait_fires(entry)
    fetch, process, report = stage.history.spans()
    assert [span.job for span in (fetch, process, report)] == ["z_fetch", "process", "a_report"]
    assert fetch.end.monotonic < process.start.monotonic
    assert process.end.monotonic < report.start.monotonic
    stage.all_fired_well()


@pytest.mark.slow
def test_of_one_tick_the_dependency_s_new_run_is_waited_for(scheduled: Scheduled):
    """A success an hour ago is not enough: the dependency is due now, too."""
    stage = scheduled(
        jobs={"fetch": {**HOURLY, "until": "fetched"}, "process": {**HOURLY, "depends_on": ["fetch"]}},
    )
    stage.worker(concurrency=4)
    stage.release("before")
    stage.jobs.tasks["fetch"].delay(until="before").get(timeout=30)
    due_together(stage, "process", "fetch")
    stage.beat()
    until(lambda: len(stage.executions("fetch")) == 2)
    stage.wait_waiting(1)
    assert "fetch" in status_of(stage.app).waits[0].reason
    assert stage.executions("process") == []
    stage.release("fetched")
    stage.wait_fires("process")
    stage.all_fired_well()


@pytest.mark.slow
def test_of_one_tick_the_higher_priority_goes_first(scheduled: Scheduled):
    ranks = ["low", "normal", "high", "critical"]
    stage = scheduled(
        jobs={rank: {**HOURLY, "priority": rank, "seconds": 0.1} for rank in ranks},
        conf={"orchestration_max_running": 1},
    )
    due_together(stage, *ranks)
    stage.beat()
    for rank in ranks:
        until(lambda rank=rank: stage.entry(rank).get("fires") == "1")
    stage.worker(concurrency=4)
    for rank in ranks:
        stage.wait_fires(rank)
    assert [event.job for event in stage.history.started()] == ranks[::-1]
    stage.all_fired_well()


def due_together(stage: ScheduleStage, *entries: str) -> None:
    """In one tick: hourly entries that were last due an hour ago."""
    last = stage.was_last_due(entries[0], 3600)
    for entry in entries[1:]:
        stage.was_last_due(entry, 3600)
        stage.ledger.hset(stage.key(entry), "last", last)


# -- people


@pytest.mark.slow
def test_fires_of_a_disabled_job_wait_and_are_not_more_than_one(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    with closing(Orchestration(stage.app)) as orchestration:
        orchestration.disable("tick", "for a while")
        stage.wait_waiting(1)
        before = stage.executions("tick")
        skips = int(stage.entry("tick").get("skips", 0))
        until(lambda: int(stage.entry("tick").get("skips", 0)) >= skips + 2)
        assert stage.executions("tick") == before
        orchestration.enable("tick")
        until(lambda: len(stage.executions("tick")) > len(before) + 1)
        orchestration.pause("maintenance")
        stage.wait_waiting(1)
        before = stage.executions("tick")
        skips = int(stage.entry("tick")["skips"])
        until(lambda: int(stage.entry("tick")["skips"]) >= skips + 2)
        assert stage.executions("tick") == before
        orchestration.resume()
        until(lambda: len(stage.executions("tick")) > len(before) + 1)
    stage.all_fired_well()


@pytest.mark.slow
def test_fires_of_a_disabled_job_are_dropped_if_it_says_so(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": {**EVERY_SECOND, "when_disabled": "drop"}})
    stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    with closing(Orchestration(stage.app)) as orchestration:
        orchestration.disable("tick", "for a while")
        until(lambda: int(stage.entry("tick").get("skips", 0)) >= 2)
        assert waiting(stage.app) == 0
        orchestration.enable("tick")
        stage.wait_fires("tick", 1, after=stage.now)
    stage.all_fired_well()


# -- continuous jobs


def test_a_continuous_job_goes_on_one_run_after_the_other(scheduled: Scheduled):
    stage = scheduled(
        jobs={
            "always": {"mode": "continuous", "seconds": 0.05},
            "paced": {"mode": "continuous", "interval_seconds": 0.5},
        }
    )
    beat = stage.beat()
    stage.worker(concurrency=4)
    until(lambda: len(stage.executions("always")) >= 10 and len(stage.executions("paced")) >= 3)
    beat.kill()  # the ledger continues it by itself
    before = len(stage.executions("always"))
    until(lambda: len(stage.executions("always")) >= before + 10)
    paced = [span for span in stage.history.spans() if span.job == "paced" and span.end]
    for one, other in pairwise(paced):
        assert other.start.monotonic - one.end.monotonic >= 0.45
    one_in_flight(stage, "always", "paced")


def one_in_flight(stage: ScheduleStage, *jobs: str) -> None:
    """Runs never overlap, none is executed twice, and one is in the ledger."""
    assert forbidden_overlaps(stage.app, stage.history, deaths=stage.deaths) == []
    stage.nothing_fired_twice()
    until(
        lambda: len(list(stage.ledger.scan_iter(key_of(stage.prefix, "run", "*")))) == len(jobs), message="one run each"
    )


@pytest.mark.slow
def test_a_continuous_job_survives_its_worker_and_its_scheduler(scheduled: Scheduled):
    stage = scheduled(jobs={"always": {"mode": "continuous", "seconds": 0.3}})
    first, _ = stage.beat(), stage.beat()
    workers = [stage.worker(), stage.worker()]
    until(lambda: len(stage.executions("always")) >= 3)
    running = stage.history.started("always")[-1].worker
    [victim] = [one for one in workers if one.hostname == running]
    victim.kill()
    before = len(stage.executions("always"))
    until(lambda: len(stage.executions("always")) >= before + 3, 30, "another worker goes on")
    first.kill()
    before = len(stage.executions("always"))
    until(lambda: len(stage.executions("always")) >= before + 5)
    stage.leader(but=first)
    with closing(Orchestration(stage.app)) as orchestration:
        [run, *_] = until(lambda: status_of(stage.app).runs)
        orchestration.cancel(run.id, terminate=True)
    before = len(stage.executions("always"))
    until(lambda: len(stage.executions("always")) >= before + 3)
    one_in_flight(stage, "always")


@pytest.mark.slow
def test_a_continuous_job_stops_when_it_is_disabled(scheduled: Scheduled):
    stage = scheduled(jobs={"always": {"mode": "continuous", "seconds": 0.05}})
    stage.beat()
    stage.worker()
    with closing(Orchestration(stage.app)) as orchestration:
        schedule = orchestration.schedule
        for stop, go_on in (
            (lambda: orchestration.disable("always", "enough"), lambda: orchestration.enable("always")),
            (lambda: orchestration.pause("enough"), orchestration.resume),
            (lambda: schedule.pause("always"), lambda: schedule.resume("always")),
        ):
            before = len(stage.executions("always"))
            until(lambda before=before: len(stage.executions("always")) >= before + 3)
            stop()
            until(lambda: not [run for run in status_of(stage.app).runs if run.state == "running"])
            until(lambda: len(stage.history.ended("always")) == len(stage.history.started("always")))
            before = len(stage.executions("always"))
            stays(lambda before=before: len(stage.executions("always")) == before, 1.5, "it stands still")
            go_on()
    before = len(stage.executions("always"))
    until(lambda: len(stage.executions("always")) >= before + 3)
    one_in_flight(stage, "always")


# -- ways to start it


@pytest.mark.slow
def test_a_worker_s_own_beat(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    worker = stage.worker(options=["-B"])
    stage.wait_fires("tick", 2)
    assert worker.stop(timeout=30) == 0
    assert stage.lead is None, "it resigned"
    stage.beat()
    stage.worker()
    stage.wait_fires("tick", 2, after=stage.now)
    stage.all_fired_well()


@pytest.mark.slow
def test_it_is_chosen_on_the_command_line(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND}, conf={"beat_scheduler": "celery.beat:PersistentScheduler"})
    beat = stage.beat(options=["-S", "celery_orchestration:OrchestratedScheduler"])
    stage.worker()
    stage.wait_fires("tick", 2)
    assert "OrchestratedScheduler" in beat.log()
    stage.all_fired_well()


@pytest.mark.slow
def test_in_observe_mode_everything_fires_and_runs_at_once(scheduled: Scheduled):
    stage = scheduled(
        jobs={"slow": {**EVERY_SECOND, "seconds": 1.5}}, conf={"orchestration_mode": "observe"}, plain=["plain"]
    )
    first, second = stage.beat(), stage.beat()
    stage.worker(concurrency=4)
    until(lambda: len(stage.executions("slow")) >= 4)
    assert most_at_once(stage.history.events(), ["slow"]) >= 2
    assert "Sending" in first.log()
    assert "Sending" not in second.log()
    stage.nothing_fired_twice()


def test_switched_off_it_is_celery_s_own_scheduler(scheduled: Scheduled):
    stage = scheduled(
        jobs={"tick": EVERY_SECOND},
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 1}},
        conf={"orchestration_mode": "off"},
    )
    beat = stage.beat(settled=False)
    stage.worker()
    until(lambda: len(stage.executions("tick")) >= 2 and len(stage.executions("plain")) >= 2)
    assert "PersistentScheduler" in beat.log()
    assert list(stage.ledger.scan_iter(f"{stage.prefix}*")) == []
    assert beat.stop() == 0


# -- ledgers that are not for it


def refused(stage: ScheduleStage, **options: Any) -> str:
    """The line that says why it refused to start."""
    beat = stage.beat(settled=False, **options)
    until(lambda: not beat.running)
    assert beat.returncode != 0
    assert "Traceback" not in beat.log()
    [line] = [line for line in beat.log().splitlines() if "ledger" in line and "->" not in line]
    return line


def test_the_ledger_of_another_app_is_refused(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    stage.beat()
    until(lambda: stage.ledger.hget(key_of(stage.prefix, "ledger"), "owner"))
    stage.ledger.hset(key_of(stage.prefix, "ledger"), "owner", "another")
    line = refused(stage)
    assert "belongs to the app 'another'" in line
    assert "orchestration_namespace" in line


def test_a_ledger_of_the_future_is_refused(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    beat = stage.beat()
    # It has registered and swept, so it need not register again.
    until(lambda: stage.ledger.hget(key_of(stage.prefix, "ledger"), "swept"))
    stage.ledger.hset(key_of(stage.prefix, "ledger"), "schema", 99)
    assert "has data layout 99" in refused(stage)
    assert beat.running

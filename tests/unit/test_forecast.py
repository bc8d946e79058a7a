"""The forecast: what runs when, what waits for what, what cannot end in time. The same plan gives the same answer."""

from __future__ import annotations

from typing import Any

import pytest

from celery_orchestration.job import rules
from celery_orchestration.job.queues import FORCED
from celery_orchestration.operate.forecast import simulation
from celery_orchestration.operate.forecast.report import Forecast, forecast
from celery_orchestration.operate.forecast.simulation import Plan, PlannedEntry, PlannedJob, Present
from celery_orchestration.scheduler.times import Asked, Every

HOUR = 3_600_000
NOW = 1000 * HOUR


def job(seconds: float = 10, *, cap: int | None = 1, deps: Any = (), beside: Any = (), **more: Any) -> PlannedJob:
    needs = [rules.Dependency(**dep) for dep in deps]
    return PlannedJob(rules.Job(cap, needs, tuple(beside)), typical_ms=round(seconds * 1000), source="last run", **more)


def every(name: str, seconds: float, first: float | None = None, **more: Any) -> PlannedEntry:
    """Due every so many seconds; the first time after one interval, or after `first`."""
    last = NOW if first is None else NOW + round((first - seconds) * 1000)
    return PlannedEntry(name, more.pop("job", name), Every(round(seconds * 1000)), last, **more)


def forecast_of(jobs: dict[str, PlannedJob], *entries: PlannedEntry, hours: float = 1, **more: Any) -> Forecast:
    return forecast(Plan(NOW, NOW + round(hours * HOUR), jobs, entries, **more))


def starts(found: Forecast, name: str) -> list[float | None]:
    """Seconds from now."""
    return [
        None if run.starts is None else run.starts.timestamp() - NOW / 1000 for run in found.runs if run.job == name
    ]


def test_each_due_time_becomes_a_run():
    found = forecast_of({"a": job()}, every("a", 600))
    assert starts(found, "a") == [600, 1200, 1800, 2400, 3000, 3600]
    assert (found.collisions, found.overruns, found.complete) == ([], [], True)
    assert (found.jobs[0].runs, found.jobs[0].waits) == (6, 0)


def test_a_job_that_blocks_another_makes_it_wait_and_the_forecast_says_how_long():
    jobs = {"clean": job(90, beside=["work"]), "work": job(10, beside=["clean"])}
    found = forecast_of(jobs, every("clean", 1800), every("work", 600), hours=1)
    assert starts(found, "work") == [600, 1200, 1890, 2400, 3000, 3690]
    (collision,) = found.collisions
    assert (collision.job, collision.rule, collision.waits_for, collision.runs) == ("work", "blocked", "clean", 2)
    assert collision.longest_seconds == 90


def test_of_those_that_are_due_together_dependencies_go_first_and_dependents_wait_for_them():
    jobs = {"process": job(5, deps=[{"job": "fetch"}]), "fetch": job(20)}
    found = forecast_of(jobs, every("process", 600), every("fetch", 600), hours=0.5)
    assert starts(found, "fetch") == [600, 1200, 1800]
    assert starts(found, "process") == [620, 1220, 1820]
    assert [(one.rule, one.waits_for, one.longest_seconds) for one in found.collisions] == [("depends", "fetch", 20)]


def test_a_job_that_takes_longer_than_its_interval_cannot_end_in_time_and_skips():
    found = forecast_of({"slow": job(150)}, every("slow", 60), hours=0.25)
    (overrun,) = found.overruns
    assert starts(found, "slow") == [60, 240, 420, 600, 780]
    assert (overrun.job, overrun.runs, overrun.of, overrun.latest_seconds) == ("slow", 5, 5, 90)
    assert overrun.skipped == found.jobs[0].skipped == 10


def test_a_run_that_waits_may_end_too_late_even_if_it_is_short():
    jobs = {"long": job(300, beside=["short"]), "short": job(10, beside=["long"])}
    found = forecast_of(jobs, every("long", 3600, first=50), every("short", 60), hours=0.5)
    assert [one.job for one in found.overruns] == ["short"]
    assert found.overruns[0].runs == 1


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [("skip", [60, 180, 300]), ("queue", [60, 160, 260, 360]), ("allow", [60, 120, 180, 240, 300])],
)
def test_overlap_decides_what_becomes_of_a_fire_while_the_run_before_it_goes_on(overlap: str, expected: list[float]):
    cap = None if overlap == "allow" else 1
    found = forecast_of({"a": job(100, cap=cap)}, every("a", 60, overlap=overlap), hours=1 / 12)
    assert [start for start in starts(found, "a") if start is not None and start <= 360][: len(expected)] == expected


def test_neither_a_disabled_job_nor_its_dependents_start():
    jobs = {"fetch": job(), "process": job(deps=[{"job": "fetch"}])}
    found = forecast_of(jobs, every("fetch", 600), every("process", 900), disabled={"fetch": "5 failures"}, hours=1)
    by_name = {one.job: one for one in found.jobs}
    assert by_name["fetch"].why_never == "disabled"
    assert (by_name["process"].runs, by_name["process"].never) == (0, 1)
    assert by_name["process"].next_start is None


def test_a_run_that_waits_for_a_rule_that_time_opens_starts_then(monkeypatch: pytest.MonkeyPatch):
    opens = NOW / 1000 + 90

    def not_before(gate: Any, run: Any) -> list[str] | None:
        return ["due"] if gate.now < opens else None

    monkeypatch.setattr(rules, "RULES", (*rules.RULES, not_before))
    monkeypatch.setitem(rules.OPENS, not_before, lambda gate, run: opens)
    found = forecast_of({"a": job(10)}, present=[Present("a"), Present("a")])
    assert starts(found, "a") == [90, 100]
    assert [run.rule for run in found.runs] == ["due", "behind"]


def test_current_runs_and_waits_are_taken_into_account():
    jobs = {"a": job(100)}
    present = [Present("a", since_ms=NOW - 40_000), Present("a")]
    found = forecast_of(jobs, present=present)
    assert starts(found, "a") == [-40, 60]
    assert found.runs[1].waits_for == "a"


def test_a_forced_run_starts_although_everything_is_paused_or_its_job_disabled():
    jobs = {"a": job(10), "b": job(10)}
    present = [Present("a", priority=FORCED), Present("b")]
    for stopped in ({"paused": True}, {"disabled": {"a": "by hand", "b": "by hand"}}):
        found = forecast_of(jobs, present=present, **stopped)
        assert (starts(found, "a"), starts(found, "b")) == ([0], [None])


def test_runs_of_different_keys_do_not_wait_for_each_other():
    jobs = {"sync": job(100)}
    entries = [every("eu", 600, job="sync", key="eu"), every("us", 600, job="sync", key="us")]
    assert forecast_of(jobs, *entries, hours=0.2).collisions == []


def test_where_all_slots_of_a_pool_are_busy_runs_wait_for_one():
    jobs = {name: job(30) for name in ("a", "b", "c")}
    found = forecast_of(jobs, *(every(name, 600) for name in jobs), hours=0.2, slots={"default": 2})
    assert [(one.job, one.rule, one.longest_seconds) for one in found.collisions] == [("c", "slot", 30)]


def test_higher_priority_goes_first():
    jobs = {"low": job(30, priority=0), "high": job(30, priority=2), "first": job(30)}
    entries = [every("first", 3600, first=10), every("low", 3600, first=11), every("high", 3600, first=12)]
    found = forecast_of(jobs, *entries, max_running=1)
    assert (starts(found, "first"), starts(found, "high"), starts(found, "low")) == ([10], [40], [70])


def test_of_those_that_are_due_together_and_need_nothing_the_highest_priority_gets_the_slot():
    jobs = {"a": job(10, priority=0), "z": job(10, priority=2)}
    found = forecast_of(jobs, every("a", 600), every("z", 600), hours=0.2, slots={"default": 1})
    assert (starts(found, "z"), starts(found, "a")) == ([600], [610])


def test_a_long_chain_of_jobs_is_no_problem():
    names = [f"job{number}" for number in range(3000)]
    jobs = {
        name: job(0.01, deps=[{"job": before}] if before else ())
        for before, name in zip(["", *names], names, strict=False)
    }
    ended = dict.fromkeys(names, rules.Last(True, NOW / 1000))
    found = forecast_of(jobs, every(names[-1], 600), hours=0.2, ended=ended)
    assert starts(found, names[-1]) == [600]


def test_a_continuous_job_goes_on_when_it_has_ended():
    entry = PlannedEntry("loop", "loop", None, NOW, gap_ms=5000)
    assert starts(forecast_of({"loop": job(10)}, entry, hours=1 / 60), "loop") == [0, 15, 30, 45, 60]


def test_a_schedule_that_cannot_be_asked_is_named():
    entry = PlannedEntry("own", "a", Asked(None, None), NOW)  # type: ignore[arg-type]
    found = forecast_of({"a": job()}, entry)
    assert (found.runs, found.unpredictable) == ([], ["own"])


def test_a_forecast_with_very_many_runs_ends_early(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(simulation, "MOST_RUNS", 100)
    found = forecast_of({"a": job(0)}, every("a", 1), hours=1)
    assert (len(found.runs), found.complete) == (100, False)
    assert (found.until - found.at).total_seconds() <= 101


def test_the_same_plan_gives_the_same_forecast():
    names = [f"job{number}" for number in range(30)]
    jobs = {
        name: job(7 * number % 50 + 1, beside=[names[(number + 1) % 30], names[number - 1]], priority=number % 4)
        for number, name in enumerate(names)
    }
    entries = [every(name, 60 + 10 * (number % 5)) for number, name in enumerate(names)]
    assert forecast_of(jobs, *entries) == forecast_of(jobs, *reversed(entries))

"""The forecast: what will run when, by the coming due times, the gate's rules and typical durations.

``planner.py`` gathers the plan from the code and the ledger, ``simulation.py`` simulates it, and :func:`forecast` sums
up what will run, what will wait for what, and what cannot end in time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import Field

from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.clock import when
from celery_orchestration.operate.forecast.simulation import MOST_RUNS, Plan, Simulated, Simulation, Source


class ForecastRun(Model):
    """An expected run."""

    job: str = Field(description="its job")
    entry: str | None = Field(description="its entry of the schedule; None: the run exists already")
    due: datetime = Field(description="its due time; if it exists already: now")
    starts: datetime | None = Field(description="None: it cannot start within the forecast")
    ends: datetime | None = Field(description="if it takes as long as usual")
    waited_seconds: float = Field(description="from its due time to its start, or to the end of the forecast")
    rule: str | None = Field(
        default=None, description="the first rule of the gate that makes it wait; `slot`: all slots are busy"
    )
    waits_for: str | None = Field(default=None, description="the job that it waits for first, if it is one")
    next_due: datetime | None = Field(default=None, description="the next due time of its entry")


class Collision(Model):
    """Waits of a job that have the same reason."""

    job: str = Field(description="the job that waits")
    rule: str = Field(description="rule of the gate: room, blocked, depends, behind … or slot")
    waits_for: str | None = Field(description="the job that it waits for, if it is one")
    runs: int = Field(description="how many wait")
    longest_seconds: float = Field(description="the longest of these waits within the forecast")
    never: int = Field(description="how many of them do not start within the forecast")
    first: datetime = Field(description="due time of the first of them")


class Overrun(Model):
    """A job whose runs do not end before they are due again."""

    job: str = Field(description="its full name")
    entry: str = Field(description="its entry of the schedule")
    runs: int = Field(description="how many end too late")
    of: int = Field(description="of how many")
    skipped: int = Field(description="fires that make no run because of that")
    latest_seconds: float = Field(description="how long after the next due time the latest of them ends")
    first: datetime = Field(description="due time of the first of them")


class JobForecast(Model):
    job: str = Field(description="full name of the task")
    typical_seconds: float | None = Field(description="the assumed duration of a run; None: unknown, 0 is assumed")
    source: Source = Field(description="where that comes from")
    runs: int = Field(description="runs that start within the forecast")
    next_start: datetime | None = Field(description="of the first of them")
    skipped: int = Field(description="fires that make no run")
    waits: int = Field(description="runs that have to wait")
    waited_seconds: float = Field(description="all waits together")
    never: int = Field(description="runs that cannot start within the forecast")
    why_never: str | None = Field(default=None, description="the rule that keeps the first of them from starting")


class Forecast(Model):
    """The expected runs, if they take as long as usual and succeed."""

    at: datetime = Field(description="Redis's time")
    until: datetime = Field(description="the end of the forecast")
    complete: bool = Field(description=f"False: it ends early, because there would be more than {MOST_RUNS:,} runs")
    jobs: list[JobForecast] = Field(description="by name; only jobs with runs or skipped fires")
    collisions: list[Collision] = Field(description="what waits for what, the longest first")
    overruns: list[Overrun] = Field(description="what cannot end before it is due again")
    unpredictable: list[str] = Field(description="entries with a custom schedule whose future is unknown")
    runs: list[ForecastRun] = Field(description="in the order of their due times")


def forecast(plan: Plan) -> Forecast:
    simulation = Simulation(plan)
    simulation.run()
    end_ms = simulation.reached_ms
    runs = sorted(
        (run for run in simulation.runs if run.due_ms <= end_ms), key=lambda run: (run.due_ms, run.run.arrival)
    )
    return Forecast(
        at=when(plan.now_ms),
        until=when(end_ms),
        complete=end_ms == plan.until_ms,
        jobs=_jobs(plan, simulation, runs, end_ms),
        collisions=_collisions(runs, end_ms),
        overruns=_overruns(simulation, runs),
        unpredictable=sorted(simulation.unpredictable),
        runs=[_shown(run, end_ms) for run in runs],
    )


def _waited_ms(run: Simulated, end_ms: int) -> int:
    return max(0, (end_ms if run.starts_ms is None else run.starts_ms) - run.due_ms)


def _by(runs: Iterable[Simulated], key: str) -> dict[str, list[Simulated]]:
    found: dict[str, list[Simulated]] = {}
    for run in runs:
        name = run.run.job if key == "job" else run.entry.name if run.entry else ""
        found.setdefault(name, []).append(run)
    return found


def _jobs(plan: Plan, simulation: Simulation, runs: Sequence[Simulated], end_ms: int) -> list[JobForecast]:
    by_job = _by(runs, "job")
    found = []
    for name in sorted({*by_job, *simulation.skipped}):
        of_job, job = by_job.get(name, []), plan.jobs[name]
        started = [run for run in of_job if run.starts_ms is not None and run.starts_ms >= plan.now_ms]
        waits = [run for run in of_job if _waited_ms(run, end_ms) > 0]
        never = [run for run in of_job if run.starts_ms is None]
        found.append(
            JobForecast(
                job=name,
                typical_seconds=None if job.source == "unknown" else job.typical_ms / 1000,
                source=job.source,
                runs=len(started),
                next_start=when(min(run.starts_ms or 0 for run in started)) if started else None,
                skipped=simulation.skipped[name],
                waits=len(waits),
                waited_seconds=sum(_waited_ms(run, end_ms) for run in waits) / 1000,
                never=len(never),
                why_never=never[0].rule if never else None,
            )
        )
    return found


def _collisions(runs: Sequence[Simulated], end_ms: int) -> list[Collision]:
    groups: dict[tuple[str, str, str | None], list[Simulated]] = {}
    for run in runs:
        if run.rule is not None and _waited_ms(run, end_ms) > 0:
            groups.setdefault((run.run.job, run.rule, run.waits_for), []).append(run)
    found = [
        Collision(
            job=job,
            rule=rule,
            waits_for=other,
            runs=len(group),
            longest_seconds=max(_waited_ms(run, end_ms) for run in group) / 1000,
            never=sum(run.starts_ms is None for run in group),
            first=when(group[0].due_ms),
        )
        for (job, rule, other), group in groups.items()
    ]
    return sorted(found, key=lambda one: (-one.longest_seconds, one.job, one.rule, one.waits_for or ""))


def _overruns(simulation: Simulation, runs: Sequence[Simulated]) -> list[Overrun]:
    found = []
    for entry, of_entry in sorted(_by((run for run in runs if run.entry is not None), "entry").items()):
        late = [run for run in of_entry if run.next_due_ms and run.ends_ms and run.ends_ms > run.next_due_ms]
        if late:
            found.append(
                Overrun(
                    job=late[0].run.job,
                    entry=entry,
                    runs=len(late),
                    of=len(of_entry),
                    skipped=simulation.skipped_of_entry[entry],
                    latest_seconds=max((run.ends_ms or 0) - (run.next_due_ms or 0) for run in late) / 1000,
                    first=when(late[0].due_ms),
                )
            )
    return found


def _shown(run: Simulated, end_ms: int) -> ForecastRun:
    return ForecastRun(
        job=run.run.job,
        entry=run.entry.name if run.entry else None,
        due=when(run.due_ms),
        starts=None if run.starts_ms is None else when(run.starts_ms),
        ends=None if run.ends_ms is None else when(run.ends_ms),
        waited_seconds=_waited_ms(run, end_ms) / 1000,
        rule=run.rule if _waited_ms(run, end_ms) > 0 else None,
        waits_for=run.waits_for if _waited_ms(run, end_ms) > 0 else None,
        next_due=None if run.next_due_ms is None else when(run.next_due_ms),
    )

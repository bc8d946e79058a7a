"""What will run when."""

from __future__ import annotations

from datetime import datetime
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from celery_orchestration.cli.show.base import many, plain, print_to, rest, table
from celery_orchestration.job import reasons
from celery_orchestration.operate.clock import clock, lasting, took
from celery_orchestration.operate.forecast.report import Collision, Forecast, JobForecast, Overrun

#: Rows of a table.
MOST = 200


def print_forecast(found: Forecast, file: IO[str], most: int = MOST) -> None:
    print_to(_forecast(found, most), file)


def _forecast(found: Forecast, most: int) -> RenderableType:
    runs = sum(job.runs for job in found.jobs)
    head = f"until {clock(found.until)}: {many(runs, 'run')} of {many(len(found.jobs), 'job')}"
    parts: list[RenderableType] = [Text(head, "bold")]
    if not found.complete:
        parts.append(Text("the forecast ends early, because there are too many runs: ask for fewer hours", "yellow"))
    if found.overruns:
        parts += [Text("\ncannot end in time", "bold red"), *map(_overrun, found.overruns[:most])]
        parts += rest(len(found.overruns), most)
    if found.collisions:
        parts += [Text("\nwaits", "bold"), *map(_collision, found.collisions[:most])]
        parts += rest(len(found.collisions), most)
    if found.jobs:
        rows = [_row(job, found.at) for job in found.jobs[:most]]
        parts += [Text(), table("jobs", ("job", "next start", "runs", "skipped", "takes", "waits"), rows)]
        parts += rest(len(found.jobs), most)
    if found.unpredictable:
        names = ", ".join(found.unpredictable)
        parts.append(plain(f"left out, as their schedules cannot be asked about the future: {names}", "dim"))
    if not found.overruns and not found.collisions and found.jobs:
        parts.append(Text("nothing waits, and everything ends in time", "green"))
    return Group(*parts)


def _overrun(one: Overrun) -> Text:
    skipped = f", and {many(one.skipped, 'fire')} will be skipped" if one.skipped else ""
    late = f"{one.runs} of {many(one.of, 'run')} end up to {lasting(one.latest_seconds)} after the next is due"
    return plain(f"  {one.job}: {late}{skipped}; first the one of {clock(one.first)}")


def _collision(one: Collision) -> Text:
    other = reasons.past([one.rule, *([one.waits_for] if one.waits_for else [])])
    how_long = "not started by then" if one.never else f"up to {took(one.longest_seconds)}"
    waits = f"{many(one.runs, 'run')}, {how_long}; first the one of {clock(one.first)}"
    return plain(f"  {one.job} waits for {other} ({one.rule}): {waits}")


def _row(job: JobForecast, now: datetime) -> tuple[Text, ...]:
    next_start = Text("never", "red") if job.next_start is None else Text(f"in {lasting(_until(job, now))}")
    takes = "?" if job.typical_seconds is None else took(job.typical_seconds)
    waits = f"{many(job.waits, 'run')}, {lasting(job.waited_seconds)}" if job.waits else ""
    return (
        plain(job.job),
        next_start,
        Text(str(job.runs)),
        Text(str(job.skipped or "")),
        Text(takes),
        Text(waits, "yellow"),
    )


def _until(job: JobForecast, now: datetime) -> float:
    return 0.0 if job.next_start is None else max(0.0, (job.next_start - now).total_seconds())

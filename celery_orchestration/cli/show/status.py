"""Status on one screen: is everything all right, and if not, what is wrong?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import IO

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from celery_orchestration.cli.show import status_sections as sections
from celery_orchestration.cli.show.base import ago, console_to, many, plain
from celery_orchestration.cli.show.grid import Section, abridged, most_important, shared, short, wrapped
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.models import (
    SchedulerStatus,
    Status,
)
from celery_orchestration.operate.status.urgency import is_disabled, is_failing, problems_of

#: Rows of a section if no window limits them; and if all are wanted.
ROWS, ALL = 20, 10**9

#: For how many seconds a death is shown, and how many deaths are.
SHOW_DEATHS, MOST_DEATHS = 3600, 5

#: How many problems are shown, and how many lines each may take.
MOST_PROBLEMS, PROBLEM_LINES = 10, 3


def print_status(status: Status, file: IO[str], everything: bool = False) -> None:
    """Prints a status. In a terminal it fits into the window."""
    console = console_to(file)
    height = console.height - 1 if file.isatty() and not everything else None
    console.print(View(status, ALL if everything else ROWS, height))


def render(status: Status, rows: int = ROWS) -> View:
    return View(status, rows)


@dataclass(frozen=True)
class View:
    """Takes the width of the window when it is drawn. `height`: of the window, if the view should fit into it. `live`:
    it must fit, and progress is drawn as bars. `note`: replaces the sentence that everything is all right."""

    status: Status
    rows: int = ROWS
    height: int | None = None
    live: bool = False
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Group(*self.lines(options.max_width))

    def lines(self, width: int) -> list[Text]:
        status, tall = self.status, self.height or ALL
        problems = _problems(status, width, max(1, min(MOST_PROBLEMS, tall // 6)))
        deaths = _deaths(status, max(1, min(MOST_DEATHS, tall // 12)))
        head = [*self._head(width), *_observing(status, width)]
        top = [*head, *problems, *_scheduler(status.scheduler, status.at, width)]
        most = self.rows if self.height is None else self.height
        sections = [one for one in self._sections(width, most) if one.blocks]
        if self.height is None:
            parts = [one.lines(one.wants) for one in sections]
        else:
            room = self.height - len(top) - len(deaths)
            sections = abridged(sections, room)
            sections = most_important(sections, room) if self.live else sections
            parts = [one.lines(lines) for one, lines in zip(sections, shared(sections, room), strict=True)]
        return [short(line, width) for line in (*top, *(line for part in parts for line in part), *deaths)]

    def _head(self, width: int) -> list[Text]:
        status = self.status
        texts = [f"{status.running} running", f"{status.waiting} waiting"]
        texts += [f"{status.later} not due yet"] if status.later else []
        texts += [many(status.dead_letters, "dead letter")] if status.dead_letters else []
        texts += [f"at most {status.max_running} at once"] if status.max_running is not None else []
        head = plain(f"{status.namespace}: {', '.join(texts)}", "bold")
        if self.note:
            head = Text(": ").join([head, plain(self.note, "bold red")])
        elif not problems_of(status):
            counts = {"failing": sum(map(is_failing, status.jobs)), "disabled": sum(map(is_disabled, status.jobs))}
            unwell = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            head += Text(f"; {unwell}", "yellow") if unwell else Text("; everything is all right", "green")
        return wrapped(head, width, 0, 3)

    def _sections(self, width: int, most: int) -> Iterator[Section]:
        status = self.status
        yield sections.jobs(status, width, most)
        yield sections.pools(status, width, most)
        yield sections.runs(status, width, most, self.live)
        yield sections.waits(status, width, most)
        yield sections.queues(status, width, most)
        yield sections.workers(status, width, most)


def _observing(status: Status, width: int) -> list[Text]:
    """Says that workers are in observe mode: nothing waits for them."""
    alive = [one for one in status.workers if one.state != "dead"]
    observing = sum(one.mode == "observe" for one in alive)
    if not observing:
        return []
    who = "observe mode" if observing == len(alive) else f"observe mode on {observing} of {len(alive)} workers"
    line = f"{who}: everything starts at once; runs that would have waited are counted"
    return wrapped(plain(line, "yellow"), width, 0)


def _problems(status: Status, width: int, most: int) -> list[Text]:
    found = problems_of(status)
    lines = [line for one in found[:most] for line in _problem(one, width)]
    more = len(found) - most
    return [*lines, Text(f"… {more} more problems", "bold red")] if more > 0 else lines


def _problem(problem: str, width: int) -> list[Text]:
    first, *others = wrapped(plain(problem, "bold red"), width, 2, PROBLEM_LINES)
    return [Text("! ", "bold red") + first[2:], *others]


def _scheduler(scheduler: SchedulerStatus, now: datetime, width: int) -> list[Text]:
    texts = []
    if scheduler.leader is not None and scheduler.since is not None:
        texts.append(f"{scheduler.leader} has led for {lasting((now - scheduler.since).total_seconds())}")
    texts += [f"{one.leader} leads {one.service}" for one in scheduler.others]
    if scheduler.standbys:
        texts.append(many(len(scheduler.standbys), "stands by", "stand by"))
    if scheduler.entries:
        texts.append(many(scheduler.entries, "entry", "entries"))
    return wrapped(plain(f"scheduler: {', '.join(texts)}"), width, 0) if texts else []


def _deaths(status: Status, most: int) -> list[Text]:
    recent = [one for one in status.died if (status.at - one.at).total_seconds() < SHOW_DEATHS]
    lines = [
        plain(f"worker {one.name} died {ago(status.at, one.at)}, with {many(one.runs, 'run')}", "red")
        for one in recent[:most]
    ]
    more = len(recent) - most
    return [*lines, Text(f"… {more} more died within the hour", "red")] if more > 0 else lines

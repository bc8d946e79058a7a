"""The schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import IO

from rich.console import Group, RenderableType
from rich.text import Text

from celery_orchestration.cli.show.base import ago, plain, print_to, rest, state, table
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.models import (
    EntryStatus,
)

#: Entries of a table, if nobody asks for more: a large one takes rich half a millisecond for each.
MOST = 200


def print_schedule(
    entries: Sequence[EntryStatus], file: IO[str], now: datetime | None = None, most: int = MOST
) -> None:
    now = now or datetime.now(timezone.utc)
    print_to(_schedule(entries, now, most) if entries else Text("the schedule has no entries"), file)


def _schedule(found: Sequence[EntryStatus], now: datetime, most: int) -> RenderableType:
    entries = found[:most]
    rows = [
        (
            _lines(_name(_of_service(entry)), _name(f"  {entry.task}") if entry.task != entry.name else None),
            _lines(plain(entry.every), Text("by people", "dim") if entry.source == "people" else None),
            _lines(*((state(entry.last_outcome), Text(ago(now, entry.last_fire))) if entry.last_outcome else ())),
            _next(entry, now),
            _lines(
                Text(str(entry.fires)),
                Text(f"{entry.skips} skipped") if entry.skips else None,
                Text(f"{entry.misses} missed") if entry.misses else None,
            ),
        )
        for entry in entries
    ]
    notes = [
        plain(f"{entry.name} is paused: {entry.paused.why or 'no reason given'} ({entry.paused.by})", "yellow")
        for entry in entries
        if entry.paused is not None
    ]
    wrong = [entry for entry in found if entry.problem]  # of those that are not shown, too
    notes += [plain(f"! {entry.name}: {entry.problem}", "bold red") for entry in wrong[:most]]
    shown = table("schedule", ("entry", "when", "last", "next", "fires"), rows)
    return Group(shown, *rest(len(found), most), *notes, *rest(len(wrong), most))


def _of_service(entry: EntryStatus) -> str:
    return entry.name if entry.service is None else f"{entry.name} ({entry.service})"


def _next(entry: EntryStatus, now: datetime) -> Text:
    if entry.problem:
        return Text("never", "red")
    if entry.paused is not None:
        return state("paused")
    if entry.next_fire is None:
        return Text("")
    seconds = (entry.next_fire - now).total_seconds()
    return Text(f"in {lasting(seconds)}" if seconds >= 0 else f"{lasting(-seconds)} late")


def _name(name: str) -> Text:
    """The whole name unless it is very long: people type it in commands."""
    return plain(name if len(name) <= 120 else f"{name[:120]}…")


def _lines(*lines: Text | None) -> Text:
    """The lines of one cell."""
    return Text("\n").join(line for line in lines if line is not None)

"""What all views share. Values come from users (names, keys, errors): they are shown, never interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import IO

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from celery_orchestration.cli.base import forgiving
from celery_orchestration.policy import printable

_COLOURS = {
    "running": "green",
    "busy": "green",
    "waiting": "yellow",
    "granted": "cyan",
    "queued": "cyan",
    "disabled": "red",
    "draining": "yellow",
    "unknown": "dim",
    "dead": "red",
    "failed": "red",
    "timed out": "red",
    "crashed": "red",
    "succeeded": "green",
    "fired": "green",
    "sent": "green",
    "skipped": "yellow",
    "missed": "red",
    "paused": "yellow",
}


def console_to(file: IO[str]) -> Console:
    return Console(file=forgiving(file), highlight=False, no_color=_no_colour())


def print_to(found: RenderableType, file: IO[str]) -> None:
    console_to(file).print(found, crop=False)  # lines to type are longer than a window


def _no_colour() -> bool | None:
    """Whether the command was told so; None leaves it to NO_COLOR."""
    context = click.get_current_context(silent=True)
    return True if getattr(context and context.obj, "no_color", False) else None


#: Columns that give way in a narrow terminal: by wrapping, or by being cut.
_WRAPPED, _CUT = ("why", "queues", "progress", "entry", "when", "value", "source"), ("job", "worker")
_NUMBERS = ("running", "waiting", "for", "last ended", "done", "failed", "fires")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for index, column in enumerate(columns):
        cells = (str(row[index]) for row in rows if index < len(row))
        widest = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
        table.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            no_wrap=column not in (*_WRAPPED, *_CUT),  # else rich would not narrow it
            overflow="fold" if column in _WRAPPED else "ellipsis",
            min_width=None if column in (*_WRAPPED, *_CUT) else max(widest, len(column)),
        )
    for row in rows:
        table.add_row(*row)
    return table


def rest(total: int, most: int) -> list[Text]:
    return [Text(f" … {total - most:,} more")] if total > most else []


def plain(text: str, style: str = "") -> Text:
    """Control characters of any kind are shown as what they are."""
    return Text(printable(text), style=style)


def to_type(text: str) -> Text:
    """A line to copy: a terminal may wrap it, we do not."""
    return Text.assemble("   -> ", plain(text, "cyan"), no_wrap=True, overflow="ignore")


def state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))


def ago(now: datetime, then: datetime | None) -> str:
    return "" if then is None else f"{duration((now - then).total_seconds())} ago"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"


def clock(when: datetime) -> str:
    return when.astimezone().strftime("%m-%d %H:%M:%S")

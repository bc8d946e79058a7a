"""The base of all views. Names, keys and errors come from users: they are shown, never interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from io import StringIO
from typing import IO

import click
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from celery_orchestration.cli.base import escaping_unencodable
from celery_orchestration.job.text import printable
from celery_orchestration.operate.clock import lasting

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
    return Console(file=escaping_unencodable(file), highlight=False, no_color=_no_colour())


def print_to(found: RenderableType, file: IO[str]) -> None:
    """Lines that must not be folded, such as commands to copy, may be longer than the window."""
    console_to(file).print(found, crop=False)


def _no_colour() -> bool | None:
    """True if the command has --no-color; None leaves the decision to NO_COLOR."""
    context = click.get_current_context(silent=True)
    return True if getattr(context and context.obj, "no_color", False) else None


#: Columns that become narrower in a narrow terminal: by wrapping, or by being cut.
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
            no_wrap=column not in (*_WRAPPED, *_CUT),  # rich narrows only columns that may wrap
            overflow="fold" if column in _WRAPPED else "ellipsis",
            min_width=None if column in (*_WRAPPED, *_CUT) else max(widest, len(column)),
        )
    for row in rows:
        table.add_row(*row)
    return table


def rest(total: int, most: int) -> list[Text]:
    return [Text(f" … {total - most:,} more")] if total > most else []


def plain(text: str, style: str = "") -> Text:
    """Shows control characters as escapes."""
    return Text(printable(text), style=style)


def to_type(text: str) -> Text:
    """A line to copy: only the terminal may wrap it."""
    return Text.assemble("   -> ", plain(text, "cyan"), no_wrap=True, overflow="ignore")


def hanging(text: Text, width: int, indent: int) -> list[Text]:
    """Folds the text to the width, and indents all lines but the first."""
    first = text.wrap(_FOLDING, width, overflow="fold")[0]
    start = len(first)
    while text.plain[start : start + 1] == " ":
        start += 1
    lines = [first]
    if start < len(text):
        more = text[start:].wrap(_FOLDING, max(8, width - indent), overflow="fold")
        lines += [Text(" " * indent) + line for line in more]
    for line in lines:
        line.rstrip()
    return lines


#: Used for folding only: nothing is printed to it.
_FOLDING = Console(file=StringIO(), width=80)


def many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or f'{one}s'}"


def state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))


def ago(now: datetime, then: datetime | None) -> str:
    return "" if then is None else f"{lasting((now - then).total_seconds())} ago"

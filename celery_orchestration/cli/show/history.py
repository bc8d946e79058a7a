"""Histories of runs, and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import console_to, many, plain, print_to, state
from celery_orchestration.cli.show.grid import wrapped
from celery_orchestration.ledger.records import FIGURES
from celery_orchestration.operate.clock import clock, lasting, took
from celery_orchestration.operate.models import Change, Ended

#: Most characters of an entry's name.
_ENTRY = 80


def print_history(runs: Sequence[Ended], file: IO[str]) -> None:
    """Prints two lines or more for each, as ids are long and must not be cut."""
    console = console_to(file)
    lines = [line for run in runs for line in (_run if run.made_run else _no_run)(run, console.width)]
    console.print(Group(*lines) if lines else Text("no such run has ended yet"))


def _run(run: Ended, width: int) -> list[Text]:
    texts = [run.worker or "not started"]
    texts += [f"key {run.key!r}"] if run.key else []
    texts += [f"fence {run.fence}"] if run.fence is not None else []
    texts += [many(run.retries, "retry", "retries")] if run.retries else []
    texts += [many(count, FIGURES[name].one, FIGURES[name].many) for name, count in run.figures().items() if count]
    texts += [f"took {took(run.seconds)}"] if run.seconds is not None else []
    texts.append(f"waited {lasting(run.waited_seconds)}" + (f" for {run.waited_for}" if run.waited_for else ""))
    texts += _fire(run)
    return [
        Text.assemble(plain(f"{run.id}  {clock(run.ended)}  "), state(run.outcome)),
        *_filled(texts, width),
        *(wrapped(plain(run.error, "red"), width, 4, 4) if run.error else ()),
    ]


def _no_run(fires: Ended, width: int) -> list[Text]:
    some = f"{fires.fires} fires" if fires.fires > 1 else "a fire"
    of = f" of entry {_entry(fires)}" if fires.entry not in (None, fires.job) else ""
    return [
        Text.assemble(plain(f"{'no run':36}  {clock(fires.ended)}  "), state(fires.outcome)),
        *wrapped(plain(f"{some}{of} {fires.outcome}: {fires.error or 'no reason is known'}"), width, 4, 4),
    ]


def _fire(run: Ended) -> list[str]:
    """The entry; and the due time, if the run came late."""
    texts = [f"fired by {_entry(run)}"] if run.entry not in (None, run.job) else []
    late = run.due is not None and (run.arrived - run.due).total_seconds() >= 1
    return [*texts, f"due {clock(run.due)}"] if run.due is not None and late else texts


def _entry(run: Ended) -> str:
    name = run.entry or ""
    return name if len(name) <= _ENTRY else f"{name[:_ENTRY]}…"


def _filled(parts: Sequence[str], width: int) -> list[Text]:
    """Puts as many of them on a line as fit."""
    lines: list[Text] = []
    for part in map(plain, parts):
        if lines and lines[-1].cell_len + 2 + part.cell_len <= width:
            lines[-1] = Text("  ").join([lines[-1], part])
        else:
            lines += wrapped(part, width, 4, 4)
    return lines


def print_audit(changes: Sequence[Change], file: IO[str]) -> None:
    lines = [
        plain(f"{clock(one.at)}  {one.who}  {f'{one.what} {one.about}'.strip()}" + (f": {one.why}" if one.why else ""))
        for one in changes
    ]
    print_to(Group(*lines) if lines else Text("nobody has changed anything"), file)

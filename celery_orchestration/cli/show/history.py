"""How runs ended, and who changed what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import clock, duration, plain, print_to, state
from celery_orchestration.operate.models import (
    Change,
    Ended,
)


def print_history(runs: Sequence[Ended], file: IO[str]) -> None:
    """Two lines each: ids are long, and are needed whole."""
    lines = []
    for run in runs:
        if not run.made_run:
            lines += _no_run(run)
            continue
        took = "" if run.seconds is None else f"  took {run.seconds:.1f} s"
        waited = f"  waited {duration(run.waited_seconds)}" + (f" for {run.waited_for}" if run.waited_for else "")
        lines.append(Text.assemble(plain(f"{run.id}  {clock(run.ended)}  "), state(run.outcome)))
        lines.append(plain(f"    {run.worker or 'not started'}{took}{waited}{_fire(run)}"))
        if run.error:
            lines.append(plain(f"    {run.error}", "red"))
    print_to(Group(*lines) if lines else Text("no run has ended yet"), file)


def _no_run(fires: Ended) -> list[Text]:
    many = f"{fires.fires} fires" if fires.fires > 1 else "a fire"
    of = f" of entry {fires.entry}" if fires.entry not in (None, fires.job) else ""
    return [
        Text.assemble(plain(f"{'no run':36}  {clock(fires.ended)}  "), state(fires.outcome)),
        plain(f"    {many}{of} {fires.outcome}: {fires.error or 'nobody knows why'}"),
    ]


def _fire(run: Ended) -> str:
    """Where it does not go without saying: the entry, and the due time of a run that came late."""
    entry = f"  fired by {run.entry}" if run.entry not in (None, run.job) else ""
    late = run.due is not None and (run.arrived - run.due).total_seconds() >= 1
    return entry + (f"  due {clock(run.due)}" if run.due is not None and late else "")


def print_audit(changes: Sequence[Change], file: IO[str]) -> None:
    lines = [
        plain(f"{clock(one.at)}  {one.who}  {one.what} {one.about}" + (f": {one.why}" if one.why else ""))
        for one in changes
    ]
    print_to(Group(*lines) if lines else Text("nobody has changed anything"), file)

"""What the doctor says; health in one line."""

from __future__ import annotations

from typing import IO

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from celery_orchestration.cli.show.base import plain, print_to, to_type
from celery_orchestration.operate.diagnosis import Check, Diagnosis, Health
from celery_orchestration.policy import printable

_MARKS = {"fine": ("ok", "green"), "unknown": ("??", "yellow"), "problem": ("!!", "bold red")}


def print_diagnosis(diagnosis: Diagnosis, file: IO[str]) -> None:
    print_to(render(diagnosis), file)


def render(diagnosis: Diagnosis) -> Group:
    problems = sum(check.state == "problem" for check in diagnosis.checks)
    unknown = sum(check.state == "unknown" for check in diagnosis.checks)
    said = [f"{problems} problem{'s' if problems != 1 else ''}" if problems else "no problem"]
    if unknown:
        said.append(f"{unknown} unknown")
    end = Text(", ".join(said), style="bold red" if problems else "bold green")
    # What is wrong comes last: there one looks first.
    checks = sorted(diagnosis.checks, key=lambda check: list(_MARKS).index(check.state))
    return Group(*(part for check in checks for part in _check(check)), end)


def _check(check: Check) -> list[RenderableType]:
    """What is fine is one line; the rest says why, and what to do. Nothing that could be copied is cut."""
    mark, style = _MARKS[check.state]
    head = Text.assemble((mark, style), " ", (printable(check.name), "bold"), ": ", plain(check.found), overflow="fold")
    parts: list[RenderableType] = [head]
    if check.state != "fine":
        parts.append(Padding(plain(check.why, "dim"), (0, 0, 0, 3)))
    if check.mend:
        parts.append(to_type(check.mend))
    return parts


def health_line(health: Health) -> str:
    if health.problem is not None:
        return printable(health.problem)
    said = [f"{health.workers} worker{'s live' if health.workers != 1 else ' lives'}"]
    if health.worker is not None:
        said.insert(0, f"the lease of {health.worker} holds for {health.lease_seconds:.0f} s")
    if health.leader is not None:
        said.append(f"{health.leader} leads")
    return printable(f"ok: {', '.join(said)}")

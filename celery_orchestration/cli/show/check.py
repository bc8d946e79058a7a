"""The results of ``doctor`` and ``health``."""

from __future__ import annotations

from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import console_to, hanging, many, plain, print_to, to_type
from celery_orchestration.job.text import printable
from celery_orchestration.operate.doctor.models import Check, Diagnosis, Health

_MARKS = {"fine": ("ok", "green"), "unknown": ("??", "yellow"), "problem": ("!!", "bold red")}


def print_diagnosis(diagnosis: Diagnosis, file: IO[str]) -> None:
    print_to(Group(*diagnosis_lines(diagnosis, console_to(file).width)), file)


def diagnosis_lines(diagnosis: Diagnosis, width: int) -> list[Text]:
    problems = sum(check.state == "problem" for check in diagnosis.checks)
    unknown = sum(check.state == "unknown" for check in diagnosis.checks)
    parts = [many(problems, "problem") if problems else "no problem"]
    if unknown:
        parts.append(f"{unknown} unknown")
    end = Text(", ".join(parts), style="bold red" if problems else "bold green")
    # Problems come last: the end of the output is seen first.
    checks = sorted(diagnosis.checks, key=lambda check: list(_MARKS).index(check.state))
    return [*(line for check in checks for line in _check(check, width)), end]


def _check(check: Check, width: int) -> list[Text]:
    """One line if the check passed; else also why it matters, and how to fix it. Commands to copy are never cut."""
    mark, style = _MARKS[check.state]
    head = Text.assemble((mark, style), " ", (printable(check.name), "bold"), ": ", plain(check.found))
    lines = hanging(head, width, 3)
    if check.state != "fine":
        lines += hanging(Text("   ") + plain(check.why, "dim"), width, 3)
    if check.fix:
        lines.append(to_type(check.fix))
    return lines


def health_line(health: Health) -> str:
    if health.problem is not None:
        return printable(health.problem)
    parts = [f"{health.workers} worker{'s live' if health.workers != 1 else ' lives'}"]
    if health.worker is not None:
        parts.insert(0, f"the lease of {health.worker} holds for {health.lease_seconds:.0f} s")
    if health.leader is not None:
        parts.append(f"{health.leader} leads")
    return printable(f"ok: {', '.join(parts)}")

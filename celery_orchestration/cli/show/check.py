"""What the doctor says; health in one line."""

from __future__ import annotations

from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import console_to, hanging, many, plain, print_to, to_type
from celery_orchestration.job.policy import printable
from celery_orchestration.operate.doctor.models import Check, Diagnosis, Health

_MARKS = {"fine": ("ok", "green"), "unknown": ("??", "yellow"), "problem": ("!!", "bold red")}


def print_diagnosis(diagnosis: Diagnosis, file: IO[str]) -> None:
    print_to(Group(*diagnosis_lines(diagnosis, console_to(file).width)), file)


def diagnosis_lines(diagnosis: Diagnosis, width: int) -> list[Text]:
    problems = sum(check.state == "problem" for check in diagnosis.checks)
    unknown = sum(check.state == "unknown" for check in diagnosis.checks)
    said = [many(problems, "problem") if problems else "no problem"]
    if unknown:
        said.append(f"{unknown} unknown")
    end = Text(", ".join(said), style="bold red" if problems else "bold green")
    # What is wrong comes last: there one looks first.
    checks = sorted(diagnosis.checks, key=lambda check: list(_MARKS).index(check.state))
    return [*(line for check in checks for line in _check(check, width)), end]


def _check(check: Check, width: int) -> list[Text]:
    """What is fine is one line; the rest says why, and what to do. Nothing that could be copied is cut."""
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
    said = [f"{health.workers} worker{'s live' if health.workers != 1 else ' lives'}"]
    if health.worker is not None:
        said.insert(0, f"the lease of {health.worker} holds for {health.lease_seconds:.0f} s")
    if health.leader is not None:
        said.append(f"{health.leader} leads")
    return printable(f"ok: {', '.join(said)}")

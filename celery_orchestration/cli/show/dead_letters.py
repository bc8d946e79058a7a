"""Dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import plain, print_to, rest
from celery_orchestration.operate.clock import clock
from celery_orchestration.operate.models import (
    DeadLetter,
    Letter,
)


def print_letters(letters: Sequence[DeadLetter], total: int, file: IO[str]) -> None:
    """Prints two lines for each, as ids are long and must not be cut."""
    lines = []
    for letter in letters:
        lines += [
            plain(f"{letter.id}  {clock(letter.at)}  {letter.job}"),
            plain(f"    {letter.error}", "red"),
        ]
    print_to(Group(*lines, *rest(total, len(letters))) if lines else Text("there are no dead letters"), file)


def print_letter(letter: Letter, file: IO[str]) -> None:
    shown = letter.model_dump(mode="json", exclude={"traceback", "headers"})
    lines = [plain(f"{name:17} {value}") for name, value in shown.items() if value not in (None, "")]
    lines += [plain(line) for line in letter.traceback.splitlines()]
    print_to(Group(*lines), file)

"""The graph in a terminal: jobs without dependencies first, their dependents below them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import console_to, plain, state
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, Drawn
from celery_orchestration.operate.graph.tree import DEEPEST, Line, tree

#: How many of the jobs that a job never runs with are named.
NAMED = 3
#: How many jobs of a cycle are named.
_CYCLE = 20
_ELSEWHERE = {"above": "  ↑ see above", "below": "  ↓ see below"}


def print_graph(relations: DependencyGraph, file: IO[str]) -> None:
    console = console_to(file)
    lines = graph_lines(relations, console.width)
    console.print(Group(*lines) if relations.jobs else Text("there are no jobs"))


def graph_lines(relations: DependencyGraph, width: int) -> list[Text]:
    jobs = {one.name: one for one in relations.jobs}
    conditions = relations.conditions()
    against = _against(relations)
    circular = {name for cycle in relations.cycles for name in cycle}
    found = [_head(relations)]
    for line in tree(relations, max(2, min(DEEPEST, width // 6))):
        parts = conditions.get((line.under or "", line.job), "")
        text = Text(_branch(line), "dim", no_wrap=False, overflow="fold")
        text.append_text(_job(jobs[line.job], line, parts, line.job in circular))
        marks = _marks(against.get(line.job)) if line.drawn == "here" else Text()
        if marks and text.cell_len + marks.cell_len > width:
            found += [text, Text(_branch(line, below=True), "dim", overflow="fold") + marks]
        else:
            found.append(text + marks)
    found += [plain(f"! these wait for each other: {_cycle(cycle)}", "bold red") for cycle in relations.cycles]
    return found


def _head(relations: DependencyGraph) -> Text:
    parts = [f"{len(relations.jobs)} job{'s' * (len(relations.jobs) != 1)}"]
    parts += ["below each job those that wait for it"] if relations.dependencies else []
    parts += ["✕ never at the same time"] if relations.conflicts or relations.groups else []
    return plain(f"{relations.namespace}: {'; '.join(parts)}", "bold")


def _branch(line: Line, below: bool = False) -> str:
    """`below`: the branch of a line below the job, instead of the job's own."""
    if not line.lasts:
        return "   " if below else ""
    *before, last = ("   " if one else "│  " for one in line.lasts)
    turn = last + "   " if below else "└─ " if line.lasts[-1] else "├─ "
    return "".join(before) + turn


def _job(job: Drawn, line: Line, condition: str, circular: bool) -> Text:
    elsewhere = line.drawn != "here"
    text = plain(job.name)
    text.stylize("dim" if elsewhere else state(job.state).style or "bold")
    if condition:
        text.append(f" ({condition})", "cyan")
    if circular:
        text.append(" ↻", "bold red")
    if elsewhere:
        return text.append(_ELSEWHERE[line.drawn], "dim")
    if job.state == "unknown":
        text.append("  unknown to the ledger", "dim")
    elif job.state != "idle":
        text.append("  ").append_text(state(job.state))
    if job.failed:
        text.append("  last run failed", "red")
    return text


@dataclass
class _Others:
    """The jobs that a job never runs with: the first of them, and their number."""

    first: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, names: Sequence[str], count: int) -> None:
        self.first += names[: NAMED - len(self.first)]
        self.count += count


def _against(relations: DependencyGraph) -> Mapping[str, _Others]:
    found: defaultdict[str, _Others] = defaultdict(_Others)
    for pair in relations.conflicts:
        found[pair.one].add([pair.other], 1)
        found[pair.other].add([pair.one], 1)
    for group in relations.groups:
        for job in group.jobs:
            found[job].add([other for other in group.jobs[: NAMED + 1] if other != job], len(group.jobs) - 1)
    return found


def _marks(others: _Others | None) -> Text:
    if others is None:
        return Text()
    more = f" and {others.count - len(others.first)} more" if others.count > len(others.first) else ""
    return plain(f"  ✕ {', '.join(others.first)}{more}", "magenta")


def _cycle(cycle: Sequence[str]) -> str:
    half = _CYCLE // 2
    if len(cycle) <= _CYCLE:
        return " → ".join(cycle)
    return " → ".join([*cycle[:half], f"… {len(cycle) - _CYCLE} more …", *cycle[-half:]])

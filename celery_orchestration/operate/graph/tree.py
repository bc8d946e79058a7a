"""The graph as lines of a tree. Pure, and bounded: 10,000 jobs in a row, or in a cycle, are fine."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, edges

#: Levels that fit into a window.
DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A line: a job below one that it waits for, or at the head of a tree."""

    job: str
    #: The job above it; None: it heads a tree.
    under: str | None
    #: For each level down to this one: whether it is the last below its job.
    lasts: tuple[bool, ...]
    #: Where the jobs that wait for it are drawn.
    drawn: Literal["here", "above", "below"]


def tree(relations: DependencyGraph, deepest: int = DEEPEST) -> list[Line]:
    """Trees from the jobs without dependencies down to their dependents. Each dependency is one line, and so is each
    head.

    A job with several dependencies is drawn where it comes first, and only named elsewhere. Jobs deeper than `deepest`
    are drawn as a tree of their own further down. In a cycle the first job by name is the head.
    """
    waits = {one.job for one in relations.dependencies}
    free = [one.name for one in relations.jobs if one.name not in waits]
    in_circles = [cycle[0] for cycle in relations.cycles]
    work = _Work(edges((one.needs, one.job) for one in relations.dependencies), deepest)
    for head in (*free, *in_circles, *(one.name for one in relations.jobs)):
        work.draw(head)
        while work.put_off:
            work.draw(work.put_off.popleft())
    return work.lines


@dataclass
class _Work:
    below: Mapping[str, Sequence[str]]
    deepest: int
    lines: list[Line] = field(default_factory=list)
    drawn: set[str] = field(default_factory=set)
    put_off: deque[str] = field(default_factory=deque)

    def draw(self, head: str) -> None:
        todo: list[tuple[str, str | None, tuple[bool, ...]]] = [(head, None, ())] if head not in self.drawn else []
        while todo:
            job, under, lasts = todo.pop()
            children = self.below.get(job, ())
            if job in self.drawn:
                self.lines.append(Line(job, under, lasts, "above"))
            elif children and len(lasts) >= self.deepest:
                self.lines.append(Line(job, under, lasts, "below"))
                self.put_off.append(job)
            else:
                self.lines.append(Line(job, under, lasts, "here"))
                self.drawn.add(job)
                todo += [(child, job, (*lasts, child == children[-1])) for child in reversed(children)]

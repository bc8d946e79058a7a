"""The graph of jobs: which jobs depend on each other, and which must never run at the same time. Pure.

``Graph.build`` is called when a process starts, after every module is imported and names can be resolved; it reports
all problems at once. ``merge`` returns the policies that apply while several releases of the code are live. Nothing
recurses: a chain of 10,000 jobs is fine.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import islice
from typing import Any, TypeVar

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.options import LEDGER_OPTIONS, ordered
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.text import show, suggest

Edges = Mapping[str, Collection[str]]
Document = dict[str, Any]
Problem = TypeVar("Problem")


@dataclass(frozen=True)
class Graph:
    """The jobs of one app by full name. Each mapping has every job, and the external jobs that they name."""

    dependencies: dict[str, tuple[str, ...]]
    dependents: dict[str, tuple[str, ...]]
    #: Jobs that ``blocks`` relates, in both directions.
    conflicts: dict[str, tuple[str, ...]]
    #: The jobs of each group that ``exclusive`` names.
    groups: dict[str, tuple[str, ...]]

    @classmethod
    def build(cls, policies: Mapping[str, Policy], known: Collection[str] = (), plain: Collection[str] = ()) -> "Graph":
        """Resolve all names and check them together, or raise one error that names all problems.

        ``known`` are the ledger's jobs of other services; ``plain`` are registered tasks that are no jobs: naming one
        is an error with its own message.
        """
        dependencies, blocks = _edges(policies)
        lines = [*misnamed(policies, known, plain), *circular(policies)]
        if lines:
            raise ConfigurationError("\n".join(lines))
        return cls(
            dependencies=dependencies,
            dependents={job: _sorted(names) for job, names in _reversed(dependencies).items()},
            conflicts=conflicts(blocks),
            groups={group: _sorted(jobs) for group, jobs in groups(policies).items()},
        )

    def never_beside(self, job: str) -> tuple[str, ...]:
        """The jobs that never run at the same time as this one."""
        shared = [other for jobs in self.groups.values() if job in jobs for other in jobs if other != job]
        return _sorted([*self.conflicts[job], *shared])

    def order(self) -> list[str]:
        """The app's jobs, dependencies first, otherwise by name."""
        sorter = TopologicalSorter(self.dependencies)
        sorter.prepare()
        order: list[str] = []
        while sorter.is_active():
            ready = sorted(sorter.get_ready())
            sorter.done(*ready)
            order += (job for job in ready if job in self.dependencies)
        return order


def misnamed(policies: Mapping[str, Policy], known: Collection[str] = (), plain: Collection[str] = ()) -> Iterator[str]:
    """Problems with the names in ``depends_on`` and ``blocks``, except cycles; see ``Graph.build``."""
    dependencies, blocks = _edges(policies)
    yield from _unknown(policies, blocks, known, plain)
    yield from _selfish(dependencies, blocks)
    yield from _ambiguous(policies)


def circular(policies: Mapping[str, Policy]) -> Iterator[str]:
    """A sentence for each dependency cycle."""
    return _report(_cycles(_without_loops(_edges(policies)[0])), _cycle_line)


def _edges(policies: Mapping[str, Policy]) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """The dependencies of each job, and the jobs that it blocks."""
    dependencies = {job: _sorted(d.name for d in policy.depends_on) for job, policy in policies.items()}
    return dependencies, {job: policy.blocked for job, policy in policies.items()}


def conflicts(blocks: Edges) -> dict[str, tuple[str, ...]]:
    """Make ``blocks`` symmetric: a job also blocks the jobs that block it."""
    others = _reversed(blocks)
    return {job: _sorted([*blocks.get(job, ()), *others[job]]) for job in others}


def groups(policies: Mapping[str, Policy]) -> dict[str, list[str]]:
    """The jobs of each group that ``exclusive`` names."""
    found: dict[str, list[str]] = {}
    for job, policy in policies.items():
        if policy.exclusive is not None:
            found.setdefault(policy.exclusive, []).append(job)
    return found


def cliques(conflicts: Edges) -> list[set[str]]:
    """Find jobs that all block each other: three or more that have the same conflicts, themselves included.

    Other cliques may be larger, but are hard to find. People usually write the same list of jobs on each of them.
    """
    alike: dict[frozenset[str], set[str]] = {}
    for job, others in conflicts.items():
        if len(others) >= 2:
            alike.setdefault(frozenset([job, *others]), set()).add(job)
    return [jobs for jobs in alike.values() if len(jobs) >= 3]


def cycles(documents: Mapping[str, Document]) -> list[list[str]]:
    """A dependency cycle for each strongly connected part of ``documents``, closed: ``["a", "b", "a"]``.

    Releases without cycles can have one when they are merged; their jobs then wait for each other until the older
    release is gone.
    """
    return _cycles({job: [dep["job"] for dep in document["depends_on"]] for job, document in documents.items()})


def merge(releases: Sequence[Mapping[str, Document]]) -> dict[str, Document]:
    """The policies that apply while several releases are live, oldest first: for each job the stricter one.

    Blocks, groups and dependencies add up. How other options are merged is part of their declaration
    (``ledger_option.py``). The newest release that has it decides everything else, options that this version does not
    know included.
    """
    merged: dict[str, Document] = {}
    for release in releases:
        for job, document in release.items():
            merged[job] = _stricter(merged.get(job, document), document)
    return merged


def _stricter(older: Document, newer: Document) -> Document:
    caps = [doc for doc in (older, newer) if doc.get("max_running") is not None]
    options = {option: mark.merge(older.get(option), newer.get(option)) for option, mark in LEDGER_OPTIONS.items()}
    return {
        **{name: value for name, value in older.items() if name not in LEDGER_OPTIONS},
        **newer,
        **{option: value for option, value in options.items() if value is not None},
        "keyed": bool(caps) and all(doc["keyed"] for doc in caps),
        "depends_on": ordered([*older["depends_on"], *newer["depends_on"]]),
        "blocks": sorted({*older["blocks"], *newer["blocks"]}),
        "exclusive": sorted({*older.get("exclusive", ()), *newer.get("exclusive", ())}),
    }


def _unknown(
    policies: Mapping[str, Policy],
    blocks: Edges,
    known: Collection[str],
    plain: Collection[str],
) -> Iterator[str]:
    names = {*policies, *known}
    tasks = set(plain) - names
    unknown = [
        (job, option, name)
        for job, policy in policies.items()
        for option, written in (
            ("depends_on", [d.name for d in policy.depends_on]),
            ("blocks", blocks[job]),
        )
        for name in written
        if name not in names and name not in policy.external
    ]

    def line(problem: tuple[str, str, str]) -> str:
        job, option, name = problem
        if name in tasks:
            return f"job {show(job)}: {option} names {show(name)}, a task without base=OrchestratedTask"
        hint = suggest(name, names) or "; for a job of another service write External('…')"
        return f"job {show(job)}: {option} names an unknown job {show(name)}{hint}"

    return _report(unknown, line)


def absent(policies: Mapping[str, Policy], known: Collection[str]) -> Iterator[str]:
    """Sentences about external jobs that no service has registered yet. They may come later."""
    names = {*known, *policies}
    unknown = [(job, name) for job, policy in policies.items() for name in policy.external if name not in names]

    def line(problem: tuple[str, str]) -> str:
        job, name = problem
        hint = suggest(name, names)
        return f"job {show(job)} names the external job {show(name)}, which no service has registered yet{hint}"

    return _report(sorted(unknown), line)


def _selfish(dependencies: Edges, blocks: Edges) -> Iterator[str]:
    yield from _report(
        [job for job, names in dependencies.items() if job in names],
        lambda job: f"job {show(job)}: depends_on names the job itself",
    )
    yield from _report(
        [job for job, names in blocks.items() if job in names],
        lambda job: f"job {show(job)}: blocks names the job itself: write max_running=1 instead",
    )


def _ambiguous(policies: Mapping[str, Policy]) -> Iterator[str]:
    """Refuse a dependency on success if any number of runs of that job may run at once, and so end in any order.

    A cap per key does not limit their number either.
    """
    return _report(
        [
            (job, dependency.name)
            for job, policy in policies.items()
            for dependency in policy.depends_on
            if dependency.on == "success"
            and dependency.name != job
            and (target := policies.get(dependency.name)) is not None
            and (target.max_running is None or target.key is not None)
        ],
        lambda pair: (
            f"job {show(pair[0])}: depends_on waits for the success of {show(pair[1])}, but any "
            "number of its runs may overlap: set max_running on that job (without key), "
            "or depend on it with Dependency(..., on='finish') or on='idle'"
        ),
    )


def _report(problems: Sequence[Problem], line: Callable[[Problem], str]) -> Iterator[str]:
    """A line for each of the first ten problems: each suggestion compares all names."""
    yield from map(line, islice(problems, 10))
    if len(problems) > 10:
        yield f"... and {len(problems) - 10} more"


def _cycle_line(cycle: Sequence[str]) -> str:
    names = [show(job)[1:-1] for job in cycle]
    if len(names) > 50:
        names[25:-25] = [f"... {len(names) - 50} more ..."]
    return f"dependency cycle: {' -> '.join(names)}"


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _without_loops(edges: Edges) -> Edges:
    return {job: [name for name in names if name != job] for job, names in edges.items()}


def _reversed(edges: Edges) -> dict[str, list[str]]:
    reverse: dict[str, list[str]] = {job: [] for job in edges}
    for job, names in edges.items():
        for name in names:
            reverse.setdefault(name, []).append(job)
    return reverse


def _cycles(edges: Edges) -> list[list[str]]:
    """Find one cycle in each strongly connected part: the shortest through its first job by name.

    There can be exponentially many cycles. One for each part takes linear time, and when people fix the reported ones,
    the others are reported next.
    """
    found = []
    for knot in _knots(edges):
        first = min(knot)
        came_from: dict[str, str] = {}
        queue = deque([first])
        while first not in came_from and queue:
            job = queue.popleft()
            for name in sorted(edges[job]):
                if name in knot and name not in came_from:
                    came_from[name] = job
                    queue.append(name)
        if first in came_from:
            cycle = [first]
            while len(cycle) == 1 or cycle[-1] != first:
                cycle.append(came_from[cycle[-1]])
            found.append(cycle[::-1])
    return sorted(found)


def _knots(edges: Edges) -> Iterator[set[str]]:
    """Yield the strongly connected parts (Kosaraju): reverse walks, last finished first."""
    reverse = _reversed(edges)
    left = set(edges)
    for root in reversed(_finished(edges)):
        if root in left:
            left.remove(root)
            knot, todo = {root}, [root]
            while todo:
                fresh = [name for name in reverse[todo.pop()] if name in left]
                left.difference_update(fresh)
                knot.update(fresh)
                todo += fresh
            yield knot


def _finished(edges: Edges) -> list[str]:
    """List the jobs in the order in which a depth-first walk leaves them."""
    finished: list[str] = []
    seen: set[str] = set()
    for root in edges:
        stack = [] if root in seen else [(root, iter(edges[root]))]
        seen.add(root)
        while stack:
            job, rest = stack[-1]
            step = next((name for name in rest if name in edges and name not in seen), None)
            if step is None:
                stack.pop()
                finished.append(job)
            else:
                seen.add(step)
                stack.append((step, iter(edges[step])))
    return finished

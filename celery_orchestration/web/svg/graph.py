"""The graph of jobs as layers from left to right: an arrow goes from a dependency to its dependent.

Every job is one layer after its last dependency. The order within a layer follows the neighbours, so that few arrows
cross. Cycles are allowed: an arrow that would close one is drawn backwards. Nothing recurses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, edges
from celery_orchestration.web.formatting import many, query, short
from celery_orchestration.web.svg import tag, text

#: Pixels.
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 208, 44, 84, 18, 12
_ROUNDS = 4


@dataclass(frozen=True)
class Node:
    name: str
    state: str
    running: int
    waiting: int


@dataclass(frozen=True)
class Placed:
    x: float
    y: float


def layers(names: Sequence[str], needs: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The layer of each job. In a cycle the first job by order counts as free."""
    waits = {name: {one for one in needs.get(name, ()) if one != name} for name in names}
    below = edges((one, name) for name in names for one in needs.get(name, ()))
    found: dict[str, int] = {}
    left = {name: len(waits[name] & waits.keys()) for name in names}
    ready = [name for name in names if left[name] == 0]
    pending = dict.fromkeys(names)
    while pending:
        if not ready:
            ready = [next(iter(pending))]
        name = ready.pop()
        if name not in pending:
            continue
        del pending[name]
        found[name] = max((found[one] + 1 for one in waits[name] if one in found), default=0)
        for other in below.get(name, ()):
            if other in pending:
                left[other] -= 1
                if left[other] <= 0:
                    ready.append(other)
    return found


def ordered(layer_of: Mapping[str, int], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The jobs of each layer from top to bottom, each near its neighbours."""
    rows: list[list[str]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for name in sorted(layer_of):
        rows[layer_of[name]].append(name)
    near = edges([*pairs, *((b, a) for a, b in pairs)])
    place = {name: float(at) for row in rows for at, name in enumerate(row)}
    for number in range(_ROUNDS):
        for row in rows if number % 2 == 0 else reversed(rows):
            middle = {
                name: sum(place[one] for one in near.get(name, [name])) / len(near.get(name, [name])) for name in row
            }
            row.sort(key=lambda name: (middle[name], name))
            place |= {name: at - (len(row) - 1) / 2 for at, name in enumerate(row)}
    return rows


def placed(rows: Sequence[Sequence[str]]) -> dict[str, Placed]:
    tallest = max((len(row) for row in rows), default=0)
    found = {}
    for across, row in enumerate(rows):
        above = (tallest - len(row)) * (HEIGHT + DOWN) / 2
        for down, name in enumerate(row):
            found[name] = Placed(MARGIN + across * (WIDTH + ACROSS), MARGIN + above + down * (HEIGHT + DOWN))
    return found


def graph(relations: DependencyGraph, nodes: Mapping[str, Node], prefix: str, chosen: str = "") -> Markup:
    """`nodes`: the jobs to draw. `chosen`: the selected job."""
    pairs = [(one.needs, one.job) for one in relations.dependencies if one.needs in nodes and one.job in nodes]
    needs = edges((job, need) for need, job in pairs)
    at = placed(ordered(layers(sorted(nodes), needs), pairs))
    conflicts = [(one.one, one.other) for one in relations.conflicts]
    conflicts += [pair for group in relations.groups for pair in zip(group.jobs, group.jobs[1:], strict=False)]
    labels = relations.conditions()
    lines = [_conflict(at[a], at[b]) for a, b in conflicts if a in at and b in at]
    lines += [
        _arrow(at[need], at[job], labels.get((need, job), ""), nodes[need].state in ("disabled", "failing"))
        for need, job in dict.fromkeys(pairs)
    ]
    boxes = [_node(nodes[name], at[name], prefix, name == chosen) for name in at]
    width = max((one.x for one in at.values()), default=0) + WIDTH + MARGIN
    height = max((one.y for one in at.values()), default=0) + HEIGHT + MARGIN
    arrow = tag("path", d="M0 0 8 4 0 8z", class_="arrow-head")
    marker = tag(
        "marker", arrow, id="arrow", viewBox="0 0 8 8", refX=7, refY=4, markerWidth=8, markerHeight=8, orient="auto"
    )
    return tag(
        "svg",
        tag("title", text(f"{many(len(nodes), 'job')} and what they wait for")),
        tag("defs", marker),
        *lines,
        *boxes,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        class_="graph",
        role="group",
    )


def _arrow(start: Placed, end: Placed, label: str, broken: bool) -> Markup:
    x1, y1, x2, y2 = start.x + WIDTH, start.y + HEIGHT / 2, end.x - 2, end.y + HEIGHT / 2
    bend = max(40.0, abs(x2 - x1) / 2)
    path = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    line = tag("path", d=path, class_="edge broken" if broken else "edge", fill="none", marker_end="url(#arrow)")
    if not label:
        return line
    return tag(
        "g", line, tag("text", text(label), x=(x1 + x2) / 2, y=(y1 + y2) / 2 - 5, text_anchor="middle", class_="axis")
    )


def _conflict(a: Placed, b: Placed) -> Markup:
    """The line between two jobs; around the right side if they are in the same layer."""
    if a.x == b.x:
        x, reach = a.x + WIDTH, 34
        y1, y2 = a.y + HEIGHT / 2 + 8, b.y + HEIGHT / 2 - 8
        path = f"M{x:.1f} {y1:.1f}C{x + reach:.1f} {y1:.1f} {x + reach:.1f} {y2:.1f} {x:.1f} {y2:.1f}"
    else:
        left, right = sorted((a, b), key=lambda one: one.x)
        x1, y1, x2, y2 = left.x + WIDTH, left.y + HEIGHT - 8, right.x, right.y + HEIGHT - 8
        path = f"M{x1:.1f} {y1:.1f}C{x1 + 40:.1f} {y1:.1f} {x2 - 40:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return tag("path", tag("title", text("never at the same time")), d=path, class_="edge conflict", fill="none")


def _node(node: Node, at: Placed, prefix: str, chosen: bool) -> Markup:
    counts = [many(node.running, "running", "running")] if node.running else []
    counts += [many(node.waiting, "waiting", "waiting")] if node.waiting else []
    below = (
        ", ".join([node.state] if node.state in ("disabled", "failing", "overdue", "unknown") or not counts else [])
        or ""
    )
    below = ", ".join(filter(None, [below, *counts]))
    return tag(
        "a",
        tag("title", text(f"{node.name}: {below}")),
        tag("rect", x=at.x, y=at.y, width=WIDTH, height=HEIGHT, rx=6, class_="box"),
        mark(node.state, at.x + 16, at.y + HEIGHT / 2),
        tag("text", text(short(node.name, prefix, 25)), x=at.x + 30, y=at.y + 19, class_="name"),
        tag("text", text(below), x=at.x + 30, y=at.y + 34, class_="axis"),
        href=f"job{query(name=node.name)}",
        class_=f"node state-{node.state}{' chosen' if chosen else ''}",
    )


#: The shapes of the states, centred at 0 0, as in the style sheet.
_SHAPES = {
    "running": "M-4-6 6 0-4 6z",
    "waiting": "M-5-6h3.5v12h-3.5zM1.5-6h3.5v12h-3.5z",
    "disabled": "M-5-5h10v10h-10z",
    "failing": "M0-6 6 0 0 6-6 0z",
    "overdue": "M0-6 6.5 5.5h-13z",
}


def mark(state: str, x: float, y: float) -> Markup:
    if state in _SHAPES:
        return tag("path", d=_SHAPES[state], transform=f"translate({x:g} {y:g})", class_="mark")
    return tag("circle", cx=x, cy=y, r=4.5, class_="mark hollow")

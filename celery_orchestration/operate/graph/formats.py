"""The graph as text for Mermaid and Graphviz. Pure.

Names come from users: nodes are numbered, and a name is only a label, in which every special character of the language
is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from celery_orchestration.job.text import printable
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, Exclusive

#: The fill and border colours of each state.
COLOURS = {
    "idle": ("#f4f4f5", "#71717a"),
    "running": ("#bbf7d0", "#15803d"),
    "waiting": ("#fef08a", "#a16207"),
    "disabled": ("#fecaca", "#b91c1c"),
    "unknown": ("#ffffff", "#a1a1aa"),
}


def _group_label(group: Exclusive) -> str:
    return f"one at a time: {group.name}" if group.name else "one at a time"


def mermaid(relations: DependencyGraph) -> str:
    return "\n".join(_mermaid(relations)) + "\n"


def _mermaid(relations: DependencyGraph) -> Iterator[str]:
    number = {one.name: f"n{at}" for at, one in enumerate(relations.jobs)}
    yield "flowchart TD"
    for one in relations.jobs:
        yield f'    {number[one.name]}["{_mermaid_text(one.name)}"]:::{one.state}'
    for (needs, job), parts in relations.conditions().items():
        label = f'|"{_mermaid_text(parts)}"|' if parts else ""
        yield f"    {number[needs]} -->{label} {number[job]}"
    for pair in relations.conflicts:
        yield f"    {number[pair.one]} -.- {number[pair.other]}"
    for at, group in enumerate(relations.groups):
        yield f'    g{at}(["{_mermaid_text(_group_label(group))}"])'
        yield from (f"    g{at} -.- {number[job]}" for job in group.jobs)
    for state, (fill, border) in COLOURS.items():
        dashed = ",stroke-dasharray:4" if state == "unknown" else ""
        yield f"    classDef {state} fill:{fill},stroke:{border},color:#18181b{dashed}"


#: Dots, underscores and spaces inside or between words are harmless; at the edge of a word they could be Markdown.
_PLAIN = re.compile(r"(?<=[^\W_])[._ ](?=[^\W_])|[^\W\d_]|(?<!^)\d")


def _mermaid_text(text: str) -> str:
    """Mermaid interprets entities, Markdown and HTML in labels: all but letters and digits is written as a number."""
    text = printable(text)
    return "".join(c if _PLAIN.match(text, at) else f"#{ord(c)};" for at, c in enumerate(text))


def dot(relations: DependencyGraph) -> str:
    return "\n".join(_dot(relations)) + "\n"


def _dot(relations: DependencyGraph) -> Iterator[str]:
    number = {one.name: f"n{at}" for at, one in enumerate(relations.jobs)}
    yield f'digraph "{_dot_text(relations.namespace)}" {{'
    yield '    node [shape=box, style="rounded,filled", fontname="sans-serif"];'
    yield '    edge [fontname="sans-serif", fontsize=10];'
    for one in relations.jobs:
        fill, border = COLOURS[one.state]
        style = ', style="rounded,dashed"' if one.state == "unknown" else ""
        look = f'class="{one.state}", fillcolor="{fill}", color="{border}"{style}'
        yield f'    {number[one.name]} [label="{_dot_text(one.name)}", {look}];'
    for (needs, job), parts in relations.conditions().items():
        label = f' [label="{_dot_text(parts)}"]' if parts else ""
        yield f"    {number[needs]} -> {number[job]}{label};"
    for pair in relations.conflicts:
        yield f"    {number[pair.one]} -> {number[pair.other]} [dir=none, style=dashed, constraint=false];"
    for at, group in enumerate(relations.groups):
        yield f'    g{at} [label="{_dot_text(_group_label(group))}", shape=ellipse, style=dashed];'
        yield from (f"    g{at} -> {number[job]} [dir=none, style=dashed, constraint=false];" for job in group.jobs)
    yield "}"


def _dot_text(text: str) -> str:
    """For use within quotes. Graphviz interprets entities and escapes in labels, too."""
    return printable(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')

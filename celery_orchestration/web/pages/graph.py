"""The graph of jobs: dependencies and conflicts, with the state of each job."""

from __future__ import annotations

from typing import Any

from celery_orchestration.operate.graph import dependency_graph
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph
from celery_orchestration.operate.status.urgency import by_urgency
from celery_orchestration.web.formatting import state_of
from celery_orchestration.web.pages import PageData, Query
from celery_orchestration.web.svg import graph
from celery_orchestration.web.svg.graph import Node

#: At most this many jobs are drawn, so that the drawing is readable.
MOST = 150


def view(data: PageData, asked: Query) -> dict[str, Any]:
    whole, chosen = data.snapshot.relations, asked.get("job", "")
    if whole is None:
        return {
            "drawing": None,
            "related": 0,
            "alone": [],
            "chosen": chosen,
            "left_out": 0,
            "problem": True,
            "cycles": [],
        }
    known = {job.name: job for job in data.status.jobs}
    relations = dependency_graph.about(whole, chosen) if any(one.name == chosen for one in whole.jobs) else whole
    nodes = {
        one.name: Node(one.name, state_of(known[one.name]), known[one.name].running, known[one.name].waiting)
        if one.name in known
        else Node(one.name, "unknown", 0, 0)
        for one in relations.jobs
    }
    related = _related(relations)
    drawn = {name: node for name, node in nodes.items() if name in related or name == chosen}
    left_out = max(0, len(drawn) - MOST)
    if left_out:
        drawn = {name: drawn[name] for name in _first(data, relations, drawn)}
    return {
        "drawing": graph.graph(relations, drawn, data.prefix, chosen) if drawn else None,
        "related": len(drawn),
        "alone": [node for name, node in sorted(nodes.items()) if name not in related and name != chosen][:MOST],
        "chosen": chosen,
        "left_out": left_out,
        "problem": False,
        "cycles": relations.cycles,
    }


def _related(relations: DependencyGraph) -> set[str]:
    found = {name for one in relations.dependencies for name in (one.needs, one.job)}
    found |= {name for one in relations.conflicts for name in (one.one, one.other)}
    return found | {name for group in relations.groups for name in group.jobs}


def _first(data: PageData, relations: DependencyGraph, drawn: dict[str, Node]) -> list[str]:
    """The jobs that need attention first, each with its neighbours."""
    found: dict[str, None] = {}
    pairs = [(one.needs, one.job) for one in relations.dependencies]
    near = dependency_graph.edges([*pairs, *((job, needs) for needs, job in pairs)])
    for job in by_urgency(data.status.jobs):
        for name in (job.name, *near.get(job.name, ())):
            if name in drawn and len(found) < MOST:
                found[name] = None
    return list(found)

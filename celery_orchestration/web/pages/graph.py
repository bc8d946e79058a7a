"""The graph of jobs: dependencies and conflicts, with the state of each job."""

from __future__ import annotations

from typing import Any

from celery_orchestration.operate.graph import dependency_graph as pictures
from celery_orchestration.operate.graph.dependency_graph import Picture
from celery_orchestration.operate.status.urgency import by_urgency
from celery_orchestration.web.formatting import state_of
from celery_orchestration.web.pages import Look, Query
from celery_orchestration.web.svg import graph
from celery_orchestration.web.svg.graph import Node

#: At most this many jobs are drawn, so that the drawing is readable.
MOST = 150


def view(look: Look, asked: Query) -> dict[str, Any]:
    whole, chosen = look.snapshot.picture, asked.get("job", "")
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
    known = {job.name: job for job in look.status.jobs}
    picture = pictures.about(whole, chosen) if any(one.name == chosen for one in whole.jobs) else whole
    nodes = {
        one.name: Node(one.name, state_of(known[one.name]), known[one.name].running, known[one.name].waiting)
        if one.name in known
        else Node(one.name, "unknown", 0, 0)
        for one in picture.jobs
    }
    related = _related(picture)
    drawn = {name: node for name, node in nodes.items() if name in related or name == chosen}
    left_out = max(0, len(drawn) - MOST)
    if left_out:
        drawn = {name: drawn[name] for name in _first(look, picture, drawn)}
    return {
        "drawing": graph.graph(picture, drawn, look.prefix, chosen) if drawn else None,
        "related": len(drawn),
        "alone": [node for name, node in sorted(nodes.items()) if name not in related and name != chosen][:MOST],
        "chosen": chosen,
        "left_out": left_out,
        "problem": False,
        "cycles": picture.cycles,
    }


def _related(picture: Picture) -> set[str]:
    found = {name for one in picture.dependencies for name in (one.needs, one.job)}
    found |= {name for one in picture.conflicts for name in (one.one, one.other)}
    return found | {name for group in picture.groups for name in group.jobs}


def _first(look: Look, picture: Picture, drawn: dict[str, Node]) -> list[str]:
    """The jobs that need attention first, each with its neighbours."""
    found: dict[str, None] = {}
    near = pictures.edges(pair for one in picture.dependencies for pair in ((one.needs, one.job), (one.job, one.needs)))
    for job in by_urgency(look.status.jobs):
        for name in (job.name, *near.get(job.name, ())):
            if name in drawn and len(found) < MOST:
                found[name] = None
    return list(found)

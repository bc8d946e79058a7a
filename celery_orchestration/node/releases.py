"""Releases: the policies of a worker's code, and those in force while several releases are live. Pure functions.

Every worker registers the policies of its code, as one document named by its content. While workers of several releases
are live, the stricter policy holds. :func:`merged` computes it; the first heartbeat that finds another set of live
releases installs it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_orchestration.job import graph
from celery_orchestration.job.policy import Policy
from celery_orchestration.ledger.keys import encode_job, named_group

#: Parts of a document that the ledger does not read, or has in another form: `blocks` and `exclusive` become
#: `conflicts` and `groups`.
_NOT_IN_LEDGER = ("blocks", "exclusive", "priority", "pool", "recurring")


@dataclass(frozen=True)
class Release:
    name: str
    document: str


@dataclass(frozen=True)
class Merged:
    jobs: dict[str, Any]
    cap: int | None
    cycles: list[list[str]]


def release(policies: Mapping[str, Policy], cap: int | None) -> Release:
    jobs = {name: policy.document() for name, policy in sorted(policies.items())}
    document = json.dumps({"max_running": cap, "jobs": jobs}, sort_keys=True, separators=(",", ":"))
    return Release(hashlib.sha256(document.encode()).hexdigest()[:16], document)


def merged(documents: Sequence[str]) -> Merged:
    """`documents`: those of the live releases, oldest first."""
    releases = [json.loads(document) for document in documents]
    caps = [one["max_running"] for one in releases if one["max_running"] is not None]
    jobs = graph.merge([one["jobs"] for one in releases])
    conflicts, groups = _conflicts(jobs)
    dependents: dict[str, set[str]] = {}
    for name, job in jobs.items():
        for dependency in job["depends_on"]:
            dependents.setdefault(dependency["job"], set()).add(name)
    # A job of another service that a job here depends on keeps its record, so that its outcome is known.
    return Merged(
        {
            encode_job(name): _entry(job, conflicts[name], groups[name], dependents.get(name, ()))
            for name, job in jobs.items()
        },
        min(caps, default=None),
        graph.cycles(jobs),
    )


def _conflicts(jobs: Mapping[str, Any]) -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """The jobs that each job conflicts with, and the groups that it is in.

    The cost of a group in the ledger does not grow with the number of its jobs, so jobs that all block each other
    become a group.
    """
    every = graph.conflicts({name: [one for one in job["blocks"] if one in jobs] for name, job in jobs.items()})
    conflicts = {name: set(others) for name, others in every.items()}
    groups = {name: [named_group(group) for group in job.get("exclusive", ())] for name, job in jobs.items()}
    for clique in graph.cliques(every):
        group = "-" + hashlib.sha256(json.dumps(sorted(clique)).encode()).hexdigest()[:12]
        for name in clique:
            conflicts[name] -= clique
            groups[name].append(group)
    return conflicts, groups


def _entry(job: Mapping[str, Any], conflicts: Any, groups: list[str], dependents: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {
        # An option that only a newer version knows stays in its policy.
        **{name: value for name, value in job.items() if name not in _NOT_IN_LEDGER},
        "conflicts": sorted(encode_job(name) for name in conflicts),
        "groups": groups,
        "depends_on": [{**dependency, "job": encode_job(dependency["job"])} for dependency in job["depends_on"]],
        "dependents": sorted(encode_job(name) for name in dependents),
    }
    entry["hash"] = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:12]
    return entry

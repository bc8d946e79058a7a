"""The graph of jobs: which job waits for which, which never run together, and the state of each.

Pure: built from the answer of ``read_graph.lua`` and the policies of the app's code. Nothing recurses, and cycles are
allowed: releases that are live together may form one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from celery_orchestration.job import graph
from celery_orchestration.job.policy import Policy
from celery_orchestration.ledger.keys import decode_job, name_of_group, named_group
from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.clock import when


class Drawn(Model):
    """A job in the graph."""

    name: str = Field(description="its full name")
    state: Literal["idle", "running", "waiting", "disabled", "unknown"] = Field(
        description="'unknown': the ledger does not know it, as no worker has registered it yet"
    )
    running: int = Field(default=0, description="runs that hold room")
    waiting: int = Field(default=0, description="waiting runs, and those that are not due yet")
    failed: bool = Field(default=False, description="its last run failed")


class Needs(Model):
    """A dependency. Different releases may have several between the same two jobs: all of them hold."""

    job: str = Field(description="the job that waits")
    needs: str = Field(description="the job that it waits for")
    on: Literal["success", "finish", "idle"] = Field(description="the outcome that its last run must have")
    max_age_seconds: float | None = Field(default=None, description="and the longest time since it ended")
    fresh: bool = Field(default=False, description="and it ended after the last start of the job that waits")

    @property
    def condition(self) -> str:
        """The condition in words; '' for the default: the last run succeeded."""
        parts: list[str] = [] if self.on == "success" else [self.on]
        if self.max_age_seconds is not None:
            parts.append(f"at most {self.max_age_seconds:g} s old")
        return ", ".join([*parts, "fresh"] if self.fresh else parts)


class Conflict(Model):
    """Two jobs that never run at the same time. Each pair is listed once."""

    one: str = Field(description="a job")
    other: str = Field(description="and another one")


class Exclusive(Model):
    """Jobs that never run at the same time."""

    name: str | None = Field(description="the name given by `exclusive`; null: jobs that all block each other")
    jobs: list[str] = Field(description="by name, two or more")


class DependencyGraph(Model):
    """All jobs and their relations, or those related to one job."""

    namespace: str = Field(description="of the ledger")
    at: datetime = Field(description="Redis's time")
    jobs: list[Drawn] = Field(description="by name")
    dependencies: list[Needs] = Field(description="which job waits for which")
    conflicts: list[Conflict] = Field(description="jobs that never run together, without those of one group")
    groups: list[Exclusive] = Field(description="groups of jobs that never run at the same time")
    cycles: list[list[str]] = Field(
        description="jobs that wait for each other while certain releases are live together: one cycle for each such "
        "group of jobs, closed (a, b, a)"
    )

    def conditions(self) -> dict[tuple[str, str], str]:
        """The conditions of each pair (dependency, job) that are not the default, in words. All of them hold."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.dependencies:
            found.setdefault((one.needs, one.job), []).append(one.condition)
        return {pair: "; ".join(filter(None, parts)) for pair, parts in found.items()}


def build_graph(namespace: str, found: Mapping[str, Any], policies: Mapping[str, Policy]) -> DependencyGraph:
    """`found`: the ledger's answer; `policies`: of the app's jobs, some of which the ledger may not know."""
    records = found["jobs"] or ()
    names = [decode_job(one["name"]) for one in records]
    drawn = {name: _drawn(name, one) for name, one in zip(names, records, strict=True)}
    needs = [_needs(name, dep) for name, one in zip(names, records, strict=True) for dep in one["depends_on"] or ()]
    pairs = {
        (name, decode_job(other)) for name, one in zip(names, records, strict=True) for other in one["conflicts"] or ()
    }
    groups: dict[str, set[str]] = {}
    for name, one in zip(names, records, strict=True):
        for group in one.get("groups") or ():
            groups.setdefault(group, set()).add(name)
    for name, policy in policies.items():
        if name not in drawn:
            document = policy.document()
            needs += [_needs(name, dep, decode=False) for dep in document["depends_on"]]
            pairs |= {(name, other) for other in document["blocks"]}
            for group in document["exclusive"]:
                groups.setdefault(named_group(group), set()).add(name)
    for name in (*policies, *(one.needs for one in needs), *(name for pair in pairs for name in pair)):
        drawn.setdefault(name, Drawn(name=name, state="unknown"))
    shared = [Exclusive(name=name_of_group(group), jobs=sorted(jobs)) for group, jobs in groups.items()]
    return _sorted_graph(namespace, when(found["now"]), drawn.values(), needs, pairs, shared)


def about(whole: DependencyGraph, job: str) -> DependencyGraph:
    """Keeps the jobs related to one job: all that it depends on, all that depend on it, and its conflicts."""
    up = edges((one.job, one.needs) for one in whole.dependencies)
    down = edges((one.needs, one.job) for one in whole.dependencies)
    kept = {*_reached(up, job), *_reached(down, job)}
    kept |= {name for one in whole.conflicts if job in (one.one, one.other) for name in (one.one, one.other)}
    kept |= {name for group in whole.groups if job in group.jobs for name in group.jobs}
    return _sorted_graph(
        whole.namespace,
        whole.at,
        [one for one in whole.jobs if one.name in kept],
        [one for one in whole.dependencies if one.job in kept and one.needs in kept],
        {(one.one, one.other) for one in whole.conflicts if one.one in kept and one.other in kept},
        [Exclusive(name=one.name, jobs=[job for job in one.jobs if job in kept]) for one in whole.groups],
    )


def _sorted_graph(
    namespace: str,
    at: datetime,
    jobs: Iterable[Drawn],
    needs: Sequence[Needs],
    pairs: Collection[tuple[str, str]],
    groups: Iterable[Exclusive],
) -> DependencyGraph:
    waits_for = edges((one.job, one.needs) for one in needs)
    every = sorted(jobs, key=lambda one: one.name)
    documents = {one.name: {"depends_on": [{"job": other} for other in waits_for.get(one.name, ())]} for one in every}
    return DependencyGraph(
        namespace=namespace,
        at=at,
        jobs=every,
        dependencies=sorted(
            dict.fromkeys(needs), key=lambda one: (one.needs, one.job, one.on, one.max_age_seconds or 0, one.fresh)
        ),
        conflicts=[Conflict(one=one, other=other) for one, other in sorted({tuple(sorted(pair)) for pair in pairs})],
        groups=sorted((one for one in groups if len(one.jobs) > 1), key=lambda one: (one.name or "", one.jobs)),
        cycles=graph.cycles(documents),
    )


def _drawn(name: str, found: Mapping[str, Any]) -> Drawn:
    state = "running" if found["running"] else "waiting" if found["waiting"] else "idle"
    return Drawn(
        name=name,
        state="disabled" if found["disabled"] else state,
        running=found["running"],
        waiting=found["waiting"],
        failed=found["failed"],
    )


def _needs(job: str, dep: Mapping[str, Any], decode: bool = True) -> Needs:
    return Needs(
        job=job,
        needs=decode_job(dep["job"]) if decode else dep["job"],
        on=dep["on"],
        max_age_seconds=dep.get("max_age_seconds"),
        fresh=dep["fresh"],
    )


def edges(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Without repetitions, in the same order."""
    found: dict[str, dict[str, None]] = {}
    for start, end in pairs:
        found.setdefault(start, {})[end] = None
    return {start: [*ends] for start, ends in found.items()}


def _reached(steps: Mapping[str, Sequence[str]], start: str) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        fresh = [name for name in steps.get(todo.pop(), ()) if name not in seen]
        seen.update(fresh)
        todo += fresh
    return seen

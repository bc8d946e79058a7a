"""The findings of a status: each root cause once, with all jobs that wait because of it. Pure.

``explain`` follows one job or run down to its root cause. This goes the other way: from each root cause up to all jobs
that it holds back, for somebody who does not know yet which job to ask about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from celery_orchestration.job.reasons import REASONS
from celery_orchestration.operate.explain.root_cause import LONG
from celery_orchestration.operate.graph.dependency_graph import DependencyGraph, edges
from celery_orchestration.operate.models import JobStatus, RunStatus, Status
from celery_orchestration.operate.status.urgency import is_disabled_by_failures, is_failing

#: The problem of a status that has a finding of its own.
PAUSED = REASONS["paused"].present

Kind = Literal[
    "paused", "problem", "disabled", "failing", "overdue", "timed_out", "dead_worker", "busy", "dead_letters"
]


@dataclass(frozen=True)
class Finding:
    """A root cause, or something else that a person should know."""

    kind: Kind
    #: In words, without the name of the job with which the sentence begins.
    text: str
    #: Somebody has to do something; else it may pass by itself.
    wrong: bool
    job: str | None = None
    #: The error, or the reason that a person gave.
    detail: str = ""
    #: The run or worker that causes it.
    target: str = ""
    since: datetime | None = None
    #: Other jobs that wait because of it; and the number of waiting runs, its own included.
    jobs: tuple[str, ...] = ()
    runs: int = 0


@dataclass(frozen=True)
class Findings:
    findings: list[Finding]
    #: For each job that waits because of another: the jobs down to the root cause.
    chains: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def wrong(self) -> list[Finding]:
        return [one for one in self.findings if one.wrong]


def find_root_causes(status: Status, relations: DependencyGraph | None) -> Findings:
    """`relations`: the graph of dependencies."""
    known = {job.name: job for job in status.jobs}
    up = _held_back(status, relations)
    roots = {
        job.name: _Reach(job.name, known, up) for job in status.jobs if job.disabled is not None or is_failing(job)
    }
    # A job that failed because of another root is no root.
    below = {name for root in roots.values() for name in root.parents if name != root.root}
    roots = {name: root for name, root in roots.items() if known[name].disabled is not None or name not in below}
    found = [*_paused(status, known), *_problems(status), *_roots(roots.values(), known)]
    found += _late(status, {name for root in roots.values() for name in root.parents})
    found += [*_past_limits(status), *_dead_workers(status), *_busy(status, known), *_letters(status)]
    chains: dict[str, tuple[str, ...]] = {}
    for root in roots.values():
        for name in root.waiting:
            chains.setdefault(name, root.chain(name))
    return Findings(sorted(found, key=_place), chains)


_ORDER: tuple[Kind, ...] = (
    *("paused", "disabled", "failing", "timed_out", "overdue", "problem"),
    *("dead_worker", "busy", "dead_letters"),
)
#: The beginnings of problems by which nothing runs: they come first.
_FIRST = ("No worker", "No scheduler", "No live worker", "Redis", "The ledger", "The broker")


def _place(one: Finding) -> tuple[bool, int, int]:
    first = one.kind == "problem" and one.text.startswith(_FIRST)
    return not one.wrong, -1 if first else _ORDER.index(one.kind), -one.runs


def _held_back(status: Status, relations: DependencyGraph | None) -> dict[str, list[str]]:
    """For each job, the jobs that may wait for it."""
    pairs = [(one.needs, one.job) for one in relations.dependencies] if relations else []
    pairs += [(run.waits_for, run.job) for run in status.waits if run.waits_for]
    return edges(pair for pair in pairs if pair[0] != pair[1])


class _Reach:
    """The jobs that wait because of a root: its dependents, their dependents, and so on."""

    def __init__(self, root: str, known: Mapping[str, JobStatus], up: Mapping[str, Sequence[str]]) -> None:
        self.root = root
        self.parents: dict[str, str | None] = {root: None}
        todo = deque([root])
        while todo:
            name = todo.popleft()
            for other in up.get(name, ()):
                job = known.get(other)
                # A job that has ended before and does not wait holds up nobody.
                if other not in self.parents and job is not None and (job.waiting or job.last_end is None):
                    self.parents[other] = name
                    todo.append(other)
        self.waiting = [name for name in self.parents if name != root and known[name].waiting]
        self.runs = sum(known[name].waiting for name in self.parents if name in known)

    def chain(self, name: str) -> tuple[str, ...]:
        found = [name]
        while (parent := self.parents[found[-1]]) is not None:
            found.append(parent)
        return tuple(found)


def _paused(status: Status, known: Mapping[str, JobStatus]) -> Iterator[Finding]:
    if not status.paused:
        return
    pause = status.pause
    text = "Everything is paused" + (f" by {pause.by}" if pause else "")
    jobs = tuple(name for name, job in known.items() if job.waiting)
    why, since = (pause.why, pause.at) if pause else ("", None)
    yield Finding("paused", text, wrong=True, detail=why, since=since, jobs=jobs, runs=status.waiting)


def _problems(status: Status) -> Iterator[Finding]:
    for text in status.problems:
        if text != PAUSED:
            yield Finding("problem", text[:1].upper() + text[1:], wrong=True)


def _roots(roots: Iterable[_Reach], known: Mapping[str, JobStatus]) -> Iterator[Finding]:
    for root in roots:
        found = _root(known[root.root], root)
        yield replace(found, jobs=tuple(root.waiting), runs=root.runs)


def _root(job: JobStatus, root: _Reach) -> Finding:
    if job.disabled is not None and is_disabled_by_failures(job):
        times = f" after {_many(job.failures, 'failure')}" if job.failures else " by failures"
        why = job.last_error or job.disabled.failures or job.disabled.why
        return Finding("disabled", f"is disabled{times}", True, job.name, why, since=job.disabled.at)
    if job.disabled is not None:
        # The person who did it knows, but perhaps not which runs it holds back.
        text = f"was disabled by {job.disabled.by}"
        return Finding("disabled", text, bool(root.runs), job.name, job.disabled.why, since=job.disabled.at)
    times = f"failed {_many(job.failures, 'time')} in a row" if job.failures > 1 else "failed the last time it ran"
    return Finding("failing", times, bool(root.waiting), job.name, job.last_error or "", since=job.last_end)


def _late(status: Status, explained: set[str]) -> Iterator[Finding]:
    for job in status.jobs:
        if job.overdue and job.disabled is None and job.name not in explained and not status.paused:
            text = (
                "is overdue: it never succeeded"
                if job.last_success is None
                else "is overdue: its last success is too old"
            )
            yield Finding(
                "overdue", text, True, job.name, job.last_error or "", since=job.last_success, runs=job.waiting
            )


def _past_limits(status: Status) -> Iterator[Finding]:
    for run in status.runs:
        if run.timed_out is not None:
            text = f"is past its time limit on {run.worker or 'a worker that is gone'}, and still runs"
            yield Finding("timed_out", text, True, run.job, target=run.id, since=run.timed_out)


def _dead_workers(status: Status) -> Iterator[Finding]:
    for worker in status.workers:
        if worker.state == "dead":
            runs = f"; its {_many(worker.running, 'run')} will be recovered" if worker.running else ""
            text = f"Worker {worker.name} is silent{runs}"
            yield Finding("dead_worker", text, False, target=worker.name, since=worker.last_beat)


def _busy(status: Status, known: Mapping[str, JobStatus]) -> Iterator[Finding]:
    """Long runs that other jobs wait for."""
    longest: dict[str, RunStatus] = {}
    for run in status.runs:
        if run.state == "running" and run.seconds > LONG and run.timed_out is None:
            longest[run.job] = max(longest.get(run.job, run), run, key=lambda one: one.seconds)
    for name, run in longest.items():
        jobs = tuple(dict.fromkeys(one.job for one in status.waits if one.waits_for == name and one.job != name))
        if jobs:
            runs = sum(known[job].waiting for job in jobs if job in known)
            text = f"has been running on {run.worker or 'a worker that is gone'}"
            yield Finding("busy", text, False, name, target=run.id, since=run.since, jobs=jobs, runs=runs)


def _letters(status: Status) -> Iterator[Finding]:
    if status.dead_letters:
        text = f"{_many(status.dead_letters, 'dead letter')}: runs that failed for good and are kept"
        yield Finding("dead_letters", text, False)


def _many(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"

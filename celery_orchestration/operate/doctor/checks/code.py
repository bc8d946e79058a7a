"""Checks of the app's code and of the releases that live workers have."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

from celery_orchestration.job import graph
from celery_orchestration.job.text import show
from celery_orchestration.ledger import BEAT
from celery_orchestration.node.releases import merged
from celery_orchestration.operate.clock import when
from celery_orchestration.operate.doctor.checks.facts import MOST, About, Facts, end, listed, many
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command

#: How long different releases may be live together.
DEPLOYING = timedelta(hours=1)

CODE = About("code", "a worker or scheduler with this code refuses to start")


def code(facts: Facts) -> Iterator[Check]:
    for line in (*facts.mistakes, *facts.misnamed):
        yield CODE.problem(line, "change it in the code")
    if not (facts.mistakes or facts.misnamed):
        yield CODE.fine(f"{many(len(facts.jobs), 'job')}, all options and names are valid")


def external(facts: Facts) -> Iterator[Check]:
    why = "while no service has registered an external job, jobs that depend on it wait, and blocks has no effect on it"
    about = About("services", why)
    found = list(graph.absent(facts.jobs, [job.name for job in facts.status.jobs]))
    for line in found:
        yield about.problem(line, "start that service, or correct the name in the code")
    if not found:
        named = any(job.external for job in facts.jobs.values())
        yield about.fine("every external job is known" if named else "this code names no job of another service")


def cycles(facts: Facts) -> Iterator[Check]:
    about = About("cycles", "jobs that depend on each other in a cycle wait forever")
    for line in facts.cycles:
        yield about.problem(f"this code has a {line}", "take one of these out of depends_on")
    found = merged([text for text in facts.releases.values() if text]).cycles
    for cycle in found[:MOST]:
        yield about.problem(*_installed_cycle(facts, cycle))
    yield from about.more(len(found), "cycles of that kind", command("graph"))
    if not (facts.cycles or found):
        yield about.fine("no job depends on itself through others")


def _installed_cycle(facts: Facts, cycle: Sequence[str]) -> tuple[str, str]:
    """The sentence and the fix: stop the oldest release that has a part of the cycle."""
    brought: dict[str, list[str]] = defaultdict(list)
    for release, text in facts.releases.items():
        jobs = json.loads(text)["jobs"] if text else {}
        for job, on in pairwise(cycle):
            if any(dep["job"] == on for dep in jobs.get(job, {}).get("depends_on", ())):
                brought[release].append(f"{show(job)} depends on {show(on)}")
    by = [f"{', '.join(part)} in release {release} ({_at(facts, release)})" for release, part in brought.items()]
    circle = " → ".join(show(job)[1:-1] for job in cycle)
    found = f"the releases that are live together have a dependency cycle: {circle}: {'; '.join(by)}"
    return found, _end(facts, next(iter(brought), ""))


def _of(facts: Facts, release: str) -> list[str]:
    return sorted(member.name for member in facts.nodes.nodes if member.release == release)


def _at(facts: Facts, release: str) -> str:
    return listed(_of(facts, release))


def _end(facts: Facts, release: str) -> str:
    names = [one.name for one in facts.nodes.nodes if one.release == release and one.kind != BEAT]
    if not names:
        return f"restart with the new code: {_at(facts, release)}"
    return f"{end(','.join(sorted(names)))}: the workers of release {release}"


def releases(facts: Facts) -> Iterator[Check]:
    about = About("releases", "while different releases are live together, the stricter policy of each job holds")
    if len(facts.releases) <= 1:
        yield about.fine("all live workers and schedulers have the same jobs")
        return
    brought: dict[str, set[str]] = defaultdict(set)
    for text in facts.releases.values():
        for job, document in (json.loads(text)["jobs"] if text else {}).items():
            brought[job].add(json.dumps(document, sort_keys=True))
    differ = sorted(job for job, documents in brought.items() if len(documents) > 1)
    live = f"{len(facts.releases)} releases are live"
    oldest, newest = next(iter(facts.releases)), list(facts.releases)[-1]
    since = min((one.since for one in facts.nodes.nodes if one.release == newest), default=0)
    if not differ:
        yield about.fine(f"{live}, which agree on the jobs that they share")
    elif facts.status.at - when(since) < DEPLOYING:
        yield about.fine(f"{live}, which differ in {listed(differ)}: a deploy is under way", _end(facts, oldest))
    else:
        long = f"{live} together for more than {DEPLOYING.total_seconds() / 3600:.0f} h, and differ in {listed(differ)}"
        yield about.problem(f"{long}; the oldest: {_at(facts, oldest)}", _end(facts, oldest))


def modes(facts: Facts) -> Iterator[Check]:
    about = About("modes", "a worker in observe mode starts everything at once, whatever other workers run")
    by: dict[str, list[str]] = defaultdict(list)
    for member in facts.nodes.nodes:
        by[member.mode].append(member.name)
    if facts.settings.mode == "off":
        yield about.problem("orchestration is off in this app's settings", "app.conf.orchestration_mode = 'enforce'")
    elif len(by) > 1:
        found = "; ".join(f"{mode}: {listed(sorted(names))}" for mode, names in sorted(by.items()))
        fix = "app.conf.orchestration_mode = 'enforce'  # and restart; see CELERY_ORCHESTRATION_MODE, too"
        yield about.problem(f"workers and schedulers are in different modes: {found}", fix)
    elif by:
        yield about.fine(f"all live workers and schedulers are in mode {next(iter(by))}")
    else:
        yield about.fine(f"this app is in mode {facts.settings.mode}")

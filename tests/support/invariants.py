"""What must hold after every fault, checked from what the runs recorded and from the state of the ledger.

- I1: no two executions overlap that the gate forbids; every start of a run has a higher fence than the one before.
- I2: every run that was sent has ended, or is listed as waiting with a reason.
- I3: one run for each entry and due time.
- I4: every run that may start has started: no run waits for a slot while slots are free.
- I5: when everything has ended, the ledger holds only its configuration, its live workers, history and done-markers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import redis
from celery import Celery
from celery.result import AsyncResult
from celery.states import READY_STATES

from celery_orchestration.job.app import read_settings
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.ledger.records import HistoryLine, key_of
from celery_orchestration.operate import Orchestration, Status
from support.history import History, Span
from support.wait import until

#: Keys (``lua/schema.lua``) that stay when all runs have ended: configuration and history.
CONFIGURATION = ("ledger", "jobs", "groups", "live", "releases", "release_order", "slots", "leases", "worker_names")
CONFIGURATION += ("dead_letters", "dead_workers", "audit", "services", "stopped_releases", "led_services")
CONFIGURATION += ("ordered_names", "installed", "entries", "added_entries", "changed_entries", "leader", "corrupt")
CONFIGURATION += ("disabled_jobs", "paused_entries", "decided", "supervisors")
CONFIGURATION_OF = ("job", "release_jobs", "release_slots", "worker", "observed", "done", "history", "dead_letter")
CONFIGURATION_OF += ("job_dead_letters", "entry", "task_runs", "totals", "minutes", "hours")
CONFIGURATION_OF += ("pool", "places", "pool_changes")


def prefix_of(app: Celery) -> str:
    return keys.prefix(read_settings(app).namespace)


def status_of(app: Celery) -> Status:
    with closing(Orchestration(app)) as client:
        return client.status(depths=False)


def waiting(app: Celery) -> int:
    return status_of(app).waiting


# -- I1


def forbidden_overlaps(
    app: Celery,
    history: History,
    *,
    deaths: Mapping[int, float] | None = None,
    void: Collection[str] = (),
) -> list[tuple[Span, ...]]:
    """Executions that overlapped although the jobs' policies forbid it.

    ``deaths`` ends executions that were killed. ``void`` names executions that had lost their lease: nobody can prevent
    their code from running on for a while.
    """
    jobs = jobs_of(app)
    running: list[Span] = []
    found: list[tuple[Span, ...]] = []
    for span in history.spans():
        policy = jobs.get(span.job)
        if policy is None or span.start.execution in void:
            continue
        running = [other for other in running if other.ended_at(deaths) > span.start.monotonic]
        same = [other for other in running if other.job == span.job]
        if policy.max_running is not None and len(same) >= policy.max_running:
            found.append((*same, span))
        found += [
            (other, span) for other in running if other.job in policy.blocked or span.job in jobs[other.job].blocked
        ]
        running.append(span)
    return found


def fences_out_of_order(history: History) -> list[tuple[Span, Span]]:
    """Starts of one run whose fence is not higher than that of the start before."""
    starts: dict[str, list[Span]] = defaultdict(list)
    for span in history.spans():
        if span.start.fence is not None:
            starts[span.run].append(span)
    found = []
    for spans in starts.values():
        found += [(a, b) for a, b in pairwise(spans) if a.start.fence >= b.start.fence]
    return found


# -- I2, I4


def vanished(app: Celery, sent: Iterable[AsyncResult]) -> list[str]:
    """Ids that have not ended and that the ledger does not list as waiting."""
    status = status_of(app)
    listed = {run.id for run in status.waits if run.reason} | {run.id for run in status.runs}
    return [result.id for result in sent if result.state not in READY_STATES and result.id not in listed]


def stuck(app: Celery) -> list[str]:
    """Runs that wait for a slot while all slots are free."""
    status = status_of(app)
    if any(worker.running for worker in status.workers):
        return []
    return [run.id for run in status.waits if run.reason and "free slot" in run.reason]


# -- I3


@dataclass(frozen=True)
class Fired:
    """A fire of an entry as the ledger's history has it: a run that ended, or the reason why there was none."""

    entry: str
    due: int  # ms; of several fires without a run, the last one's
    job: str
    run: str
    outcome: str
    made_a_run: bool
    count: int = 1


#: What the history has of a run that goes on.
_NOT_OVER = ("requeued", "released")


def fires_of(app: Celery) -> list[Fired]:
    """The fires by due time. The history has to be long enough for all of them."""
    found = []
    with closing(Ledger.of(app, read_settings(app))) as ledger:
        for job in jobs_of(app):
            for text in ledger.read_history(job, 100_000) or []:
                line = HistoryLine.read(text)
                if line.entry and line.outcome not in _NOT_OVER:
                    made_a_run = line.fires is None
                    found.append(
                        Fired(unquote(line.entry), line.due, job, line.id, line.outcome, made_a_run, line.fires or 1)
                    )
    return sorted(found, key=lambda fired: fired.due)


def fired_twice(app: Celery) -> list[tuple[Fired, ...]]:
    """Fires of one entry and due time that made more than one run."""
    runs = defaultdict(list)
    for fired in fires_of(app):
        if fired.made_a_run:
            runs[fired.entry, fired.due].append(fired)
    return [tuple(several) for several in runs.values() if len(several) > 1]


# -- I5


def leftovers(app: Celery, client: redis.Redis) -> dict[str, Any]:
    """Keys of the ledger beyond configuration, live workers and done-markers."""
    prefix = prefix_of(app)
    found: dict[str, Any] = {}
    for key in client.scan_iter(match=f"{prefix}*", count=1000):
        kind, _, rest = key.removeprefix(prefix).partition(":")
        if kind not in (CONFIGURATION_OF if rest else CONFIGURATION):
            found[key] = client.type(key)
        elif kind == "done" and client.ttl(key) < 0:
            found[key] = "a done-marker without an end"
    status = status_of(app)
    found |= {
        f"{job.name}: {job.running} running, {job.waiting} waiting": job.state
        for job in status.jobs
        if job.running or job.waiting
    }
    if status.running:
        found["room taken"] = status.running
    found |= dict(_counters(app, client))
    return found


def _counters(app: Celery, client: redis.Redis) -> Iterator[tuple[str, int]]:
    """Jobs that count as busy or as blocked."""
    prefix = prefix_of(app)
    for name in client.smembers(key_of(prefix, "jobs")):
        blocked = client.hget(key_of(prefix, "job", name), "blocked")
        if blocked not in (None, "0"):
            yield f"{name} is blocked", int(blocked)
    script = """local s = redis.call('HGET', KEYS[1], 'state'); return s and cmsgpack.unpack(s).busy or 0"""
    for name in client.smembers(key_of(prefix, "jobs")):
        if busy := client.eval(script, 1, key_of(prefix, "job", name)):
            yield f"{name} is busy", busy


def assert_ledger_is_clean(app: Celery, client: redis.Redis, timeout: float = 40) -> None:
    """Waits for this: Celery stores a result before the ledger hears of it."""
    last: dict[str, Any] = {}

    def clean() -> bool:
        last.clear()
        last.update(leftovers(app, client))
        return not last

    until(clean, timeout, lambda: f"left in the ledger: {last}", poll=0.1)


# -- all of it


def all_ended(results: Iterable[AsyncResult], timeout: float = 40) -> None:
    """Waits until every one has a final state, whatever it is. Asks the backend, because subscriptions may be lost."""
    open_ones = list(results)

    def ended() -> bool:
        open_ones[:] = [result for result in open_ones if result.state not in READY_STATES]
        return not open_ones

    def which() -> str:
        return f"{len(open_ones)} have not ended: {[(result.name, result.id) for result in open_ones[:10]]}"

    until(ended, timeout, which, poll=0.05)


def assert_all_well(
    app: Celery,
    client: redis.Redis,
    history: History,
    sent: Iterable[AsyncResult],
    *,
    deaths: Mapping[int, float] | None = None,
    void: Collection[str] = (),
    timeout: float = 40,
) -> None:
    """For a test in which every run was to end."""
    sent = list(sent)
    try:
        all_ended(sent, timeout)
    except AssertionError as error:
        raise AssertionError(f"{error}; vanished: {vanished(app, sent)}; stuck: {stuck(app)}") from None
    assert_ledger_is_clean(app, client, timeout)
    assert forbidden_overlaps(app, history, deaths=deaths, void=void) == []
    assert fences_out_of_order(history) == []

"""Metrics for Prometheus, read from the ledger for each scrape.

:data:`METRICS` declares each metric once; ``docs/metrics.md`` has the same table. If celery-exporter has a metric with
the same meaning, ours has its name, but not its label ``hostname``: a run may wait, be handed over and start again
anywhere. No label holds a room key, a run or a worker, so the number of series depends only on jobs and queues.

Counters come from the ledger: they survive restarts of workers and of the exporter, and start from 0 only if Redis is
emptied.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from celery_orchestration.job import queues
from celery_orchestration.ledger import BEAT, keys
from celery_orchestration.operate.history.statistics import ENDS
from celery_orchestration.operate.measurements import Measured
from celery_orchestration.operate.status import overdue
from celery_orchestration.operate.status.workers import worker_state

__all__ = ["CONTENT_TYPE_LATEST", "METRICS", "families", "text"]

Kind = Literal["counter", "gauge", "histogram", "summary"]
Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Spec:
    """One metric. The samples of a counter end with _total; other kinds follow Prometheus."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_OURS = "celery_orchestration"
_BY_NAME, _BY_QUEUE = ("name",), ("queue_name",)

METRICS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        # as celery-exporter has them
        Spec("celery_queue_length", "gauge", _BY_QUEUE, "Messages in a queue of the broker."),
        Spec("celery_active_worker_count", "gauge", _BY_QUEUE, "Live workers that serve a queue."),
        Spec("celery_active_process_count", "gauge", _BY_QUEUE, "Slots of the live workers that serve a queue."),
        Spec("celery_task_started", "counter", _BY_NAME, "Starts of runs; a retry is one more."),
        Spec("celery_task_succeeded", "counter", _BY_NAME, "Runs that succeeded."),
        Spec("celery_task_failed", "counter", _BY_NAME, "Runs that failed for good, crashes included."),
        Spec("celery_task_retried", "counter", _BY_NAME, "Attempts that ended with a retry."),
        Spec("celery_task_revoked", "counter", _BY_NAME, "Runs that were revoked or cancelled."),
        Spec("celery_task_rejected", "counter", _BY_NAME, "Runs that rejected their message."),
        Spec("celery_task_runtime", "histogram", _BY_NAME, "Seconds that the code of a run took."),
        # the state of jobs
        Spec(f"{_OURS}_running", "gauge", _BY_NAME, "Runs that hold room: running, or on their way to a worker."),
        Spec(f"{_OURS}_waiting", "gauge", _BY_NAME, "Runs that wait at the gate."),
        Spec(f"{_OURS}_delayed", "gauge", _BY_NAME, "Runs that are not due yet."),
        Spec(f"{_OURS}_disabled", "gauge", ("name", "by"), "1 if a job is disabled; by: failures or people."),
        Spec(f"{_OURS}_overdue", "gauge", _BY_NAME, "1 if the last success of a job is older than it should be."),
        Spec(f"{_OURS}_consecutive_failures", "gauge", _BY_NAME, "Failures of a job since its last success."),
        Spec(f"{_OURS}_last_success_timestamp_seconds", "gauge", _BY_NAME, "When a job succeeded last."),
        Spec(f"{_OURS}_dead_letters", "gauge", _BY_NAME, "Dead letters of a job."),
        # what jobs did
        Spec(f"{_OURS}_ended", "counter", ("name", "outcome"), "Runs that ended, by outcome."),
        Spec(f"{_OURS}_recoveries", "counter", _BY_NAME, "Runs whose process or worker died."),
        Spec(f"{_OURS}_fires", "counter", ("name", "result"), "Fires of the schedule: made, skipped or missed."),
        Spec(f"{_OURS}_job_wait_seconds", "summary", _BY_NAME, "Waits at the gate, of each job."),
        # how long all jobs waited
        Spec(f"{_OURS}_gate_wait_seconds", "histogram", ("reason",), "Waits at the gate, by what they were for first."),
        Spec(f"{_OURS}_queue_wait_seconds", "histogram", (), "From a call until a worker had a slot for it."),
        Spec(f"{_OURS}_requested_delay_seconds", "histogram", (), "Waits that were asked for: countdown, eta, retry."),
        Spec(f"{_OURS}_hand_over_seconds", "histogram", (), "From being handed over until a run started."),
        Spec(f"{_OURS}_fire_lateness_seconds", "histogram", (), "From a due time of the schedule until it was fired."),
        # the installation
        Spec(f"{_OURS}_up", "gauge", (), "1 if the ledger answers."),
        Spec(f"{_OURS}_paused", "gauge", (), "1 if everything is paused."),
        Spec(f"{_OURS}_gate_closed_seconds", "gauge", (), "Until the gate opens, after Redis lost data or moved."),
        Spec(f"{_OURS}_leader", "gauge", (), "Schedulers that lead; 0: nothing is fired."),
        Spec(f"{_OURS}_standby_schedulers", "gauge", (), "Schedulers that would take over."),
        Spec(f"{_OURS}_workers", "gauge", ("state",), "Workers by state: idle, busy, draining or dead."),
        Spec(f"{_OURS}_pool_workers", "gauge", ("pool",), "Live workers of a pool."),
        Spec(f"{_OURS}_pool_wanted_workers", "gauge", ("pool",), "Workers that a pool should have."),
        Spec(f"{_OURS}_pool_slots", "gauge", ("pool",), "Slots of the live workers of a pool."),
    )
}

#: How long all jobs waited: the metric, and the name in the ledger's statistics.
_WAITS = {
    f"{_OURS}_queue_wait_seconds": "queue",
    f"{_OURS}_requested_delay_seconds": "delay",
    f"{_OURS}_hand_over_seconds": "hand_over",
    f"{_OURS}_fire_lateness_seconds": "lateness",
}
_ENDED = {
    "celery_task_started": ("started",),
    "celery_task_succeeded": ("succeeded",),
    "celery_task_failed": ("failed", "crashed"),
    "celery_task_retried": ("retried",),
    "celery_task_revoked": ("revoked",),
    "celery_task_rejected": ("rejected",),
    f"{_OURS}_recoveries": ("recovered",),
}
#: The bucket limits (ms) that each job shows: all of them would be two thirds of the page.
_RUNTIMES = frozenset((100, 500, 1000, 5000, 10_000, 60_000, 300_000, 1_800_000, 3_600_000))
_RESULTS = {"fires": "made", "fires_skipped": "skipped", "fires_missed": "missed"}
_FAMILIES: dict[Kind, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "summary": SummaryMetricFamily,
}


class _Page:
    """The families of one answer, in the order of :data:`METRICS`."""

    def __init__(self) -> None:
        self._made = {name: _FAMILIES[spec.kind](name, spec.help, labels=spec.labels) for name, spec in METRICS.items()}

    def add(self, name: str, value: float, *labels: str) -> None:
        self._made[name].add_metric(labels, value)

    def add_sum(self, name: str, found: Numbers, size: int, *labels: str) -> None:
        """Count and sum of a duration, without its buckets."""
        count = sum(found.get(str(number), 0) for number in range(1, size + 1))
        self._made[name].add_metric(labels, count_value=count, sum_value=found.get("sum", 0) / 1000)

    def add_histogram(
        self, name: str, found: Numbers, limits: Sequence[int], *labels: str, shown: Collection[int] | None = None
    ) -> None:
        """`shown`: the limits that are shown, if not all."""
        counts = accumulate(found.get(str(number), 0) for number in range(1, len(limits) + 2))
        ends = (*(_number(ms / 1000) if shown is None or ms in shown else "" for ms in limits), "+Inf")
        buckets = [(end, count) for end, count in zip(ends, counts, strict=True) if end]
        self._made[name].add_metric(labels, buckets, found.get("sum", 0) / 1000)

    def families(self) -> Iterator[Metric]:
        return (family for family in self._made.values() if family.samples)


def families(facts: Measured | None) -> Iterator[Metric]:
    """Pure. None: the ledger does not answer."""
    page = _Page()
    page.add(f"{_OURS}_up", 0 if facts is None else 1)
    if facts is not None:
        _installation(page, facts.status)
        for pool, wanted in sorted(facts.wanted.items()):
            page.add(f"{_OURS}_pool_wanted_workers", wanted, pool)
        _queues(page, facts)
        for job in facts.status["jobs"] or ():
            _job(page, job, facts.status)
        _statistics(page, facts.statistics)
    return page.families()


def table() -> str:
    """The table of ``docs/metrics.md``."""
    rows = [
        f"| `{spec.name}{'_total' if spec.kind == 'counter' else ''}` | {spec.kind} "
        f"| {', '.join(f'`{label}`' for label in spec.labels) or '-'} | {spec.help} |"
        for spec in METRICS.values()
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def text(measured: Callable[[], Measured | None]) -> bytes:
    """Prometheus's text format. `measured` reads the ledger; None: it does not answer."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(measured))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, measured: Callable[[], Measured | None]) -> None:
        self._measured = measured

    def collect(self) -> Iterable[Metric]:
        return families(self._measured())

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise registering it would read the ledger


def _installation(page: _Page, status: Numbers) -> None:
    nodes = [(one, worker_state(one, status["now"])) for one in status["workers"] or ()]
    workers = [(one, state) for one, state in nodes if one["kind"] != BEAT]
    beats = [one for one, state in nodes if one["kind"] == BEAT and state != "dead"]
    page.add(f"{_OURS}_paused", int(status["paused"]))
    page.add(f"{_OURS}_gate_closed_seconds", (status.get("epoch") or {}).get("left", 0) / 1000)
    leaders = {one["who"] for one in status.get("leads") or ()}
    page.add(f"{_OURS}_leader", len(leaders))
    page.add(f"{_OURS}_standby_schedulers", sum(one["id"] not in leaders for one in beats))
    states = Counter(state for _, state in workers)
    for state in ("idle", "busy", "draining", "dead"):
        page.add(f"{_OURS}_workers", states[state], state)
    serving: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    for one, state in workers:
        pools = {pool for queue in one.get("queues") or () if (pool := queues.pool_of(queue))}
        for pool in pools if state != "dead" else ():
            serving[pool] += 1
            slots[pool] += one["slots"] or 0
    for pool in sorted(serving):
        page.add(f"{_OURS}_pool_workers", serving[pool], pool)
        page.add(f"{_OURS}_pool_slots", slots[pool], pool)


def _queues(page: _Page, facts: Measured) -> None:
    serving: Counter[str] = Counter()
    for one in facts.status["workers"] or ():
        if one["kind"] != BEAT and worker_state(one, facts.status["now"]) != "dead":
            serving.update(set(one.get("queues") or ()))
    slots = facts.status.get("slots") or {}
    for queue in sorted({*facts.depths, *serving}):
        if (depth := facts.depths.get(queue)) is not None:
            page.add("celery_queue_length", depth, queue)
        page.add("celery_active_worker_count", serving[queue], queue)
        page.add("celery_active_process_count", slots.get(queue, 0), queue)


def _job(page: _Page, job: Numbers, status: Numbers) -> None:
    name = keys.decode_job(job["name"])
    page.add(f"{_OURS}_running", job["running"], name)
    page.add(f"{_OURS}_waiting", job["waiting"], name)
    page.add(f"{_OURS}_delayed", job["later"], name)
    page.add(f"{_OURS}_consecutive_failures", job.get("failures") or 0, name)
    page.add(f"{_OURS}_dead_letters", job["dead_letters"], name)
    if off := job.get("disabled"):
        page.add(f"{_OURS}_disabled", 1, name, "failures" if json.loads(off)["by"] == "failures" else "people")
    if succeeded := job.get("succeeded_at"):
        page.add(f"{_OURS}_last_success_timestamp_seconds", succeeded / 1000, name)
    if entries := (status.get("fires") or {}).get(job["name"]):
        late = overdue.is_overdue(status["now"], entries, job.get("succeeded_at"), job.get("took"))
        page.add(f"{_OURS}_overdue", int(late), name)


def _statistics(page: _Page, found: Numbers) -> None:
    limits = found.get("limits", ())
    all_of: dict[str, Counter[str]] = {what: Counter() for what in _WAITS.values()}
    reasons: dict[str, Counter[str]] = {}
    for job in found["jobs"]:
        sums = job["sums"][0]
        for what, counts in all_of.items():
            counts.update(sums.get(what) or {})
        waits: Counter[str] = Counter()
        for reason, durations in (sums.get("gate") or {}).items():
            reasons.setdefault(reason, Counter()).update(durations)
            waits.update(durations)
        if job["name"]:
            _counted(page, keys.decode_job(job["name"]), sums, waits, limits)
    for metric, what in _WAITS.items():
        page.add_histogram(metric, all_of[what], limits)
    for reason, counts in sorted(reasons.items()):
        page.add_histogram(f"{_OURS}_gate_wait_seconds", counts, limits, reason)


def _counted(page: _Page, name: str, sums: Numbers, waits: Counter[str], limits: Sequence[int]) -> None:
    for metric, counters in _ENDED.items():
        if count := sum(sums.get(counter, 0) for counter in counters):
            page.add(metric, count, name)
    for outcome in ENDS:
        if outcome in sums:
            page.add(f"{_OURS}_ended", sums[outcome], name, outcome)
    for counter, result in _RESULTS.items():
        if counter in sums:
            page.add(f"{_OURS}_fires", sums[counter], name, result)
    if waits:
        page.add_sum(f"{_OURS}_job_wait_seconds", waits, len(limits) + 1, name)
    if "run" in sums:
        page.add_histogram("celery_task_runtime", sums["run"], limits, name, shown=_RUNTIMES)


def _number(value: float) -> str:
    """A number in Prometheus's format."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]

"""Statistics of jobs over time: counts by outcome, and how long runs waited and ran, in fixed buckets.

The ledger keeps them by the minute for 24 hours and by the hour for 30 days (``lua/lib/statistics.lua``). Pure, but for
:func:`read`, which asks the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from celery_orchestration.ledger import Ledger, keys
from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.clock import when

#: How many hours each unit is kept.
KEPT = {"minute": 24, "hour": 30 * 24}
#: The counters of ``lua/lib/statistics.lua``, by subject.
ENDS = (
    *("succeeded", "failed", "crashed", "revoked", "expired", "rejected", "ignored", "requeued", "released", "skipped"),
)
FIRES = ("fires", "fires_skipped", "fires_missed")
COUNTERS = ("started", "waited", "retried", "recovered", *ENDS, *FIRES)
DURATIONS = ("run", "queue", "delay", "hand_over", "lateness")

Unit = Literal["minute", "hour"]


class Durations(Model):
    """A histogram of durations."""

    count: int = Field(default=0, description="how many")
    seconds: float = Field(default=0.0, description="the sum of all durations")
    buckets: list[int] = Field(default=[], description="how many in each bucket; see `limits`")

    @property
    def mean(self) -> float | None:
        return self.seconds / self.count if self.count else None

    def quantile(self, share: float, limits: Sequence[float]) -> float | None:
        """The duration that this share of them did not exceed, interpolated within a bucket; None if there are none.
        Durations beyond the last limit count as that limit."""
        if not self.count:
            return None
        wanted, passed = share * self.count, 0
        for number, found in enumerate(self.buckets):
            if found and passed + found >= wanted:
                low = limits[number - 1] if number else 0.0
                high = limits[number] if number < len(limits) else low
                return low + (high - low) * max(0.0, wanted - passed) / found
            passed += found
        return limits[-1]


class Counts(Model):
    """The counts of a job in a minute, in an hour, or in all."""

    at: datetime | None = Field(default=None, description="when the minute or hour began; None: all time")
    counters: dict[str, int] = Field(
        default={},
        description=f"how often, without zeros: {', '.join(COUNTERS)}; `waited`: runs that the gate held back",
    )
    run: Durations = Field(default=Durations(), description="how long its code ran")
    queue: Durations = Field(
        default=Durations(), description="from the call until a worker had a slot for it, by the clocks of both"
    )
    delay: Durations = Field(default=Durations(), description="waits that were asked for: countdown, eta, retries")
    hand_over: Durations = Field(default=Durations(), description="from being handed over until it started")
    lateness: Durations = Field(default=Durations(), description="from a due time of the schedule until it was fired")
    gate: dict[str, Durations] = Field(
        default={}, description="waits at the gate, by their first reason: blocked, depends, room …"
    )


class JobStatistics(Model):
    job: str = Field(description="full name of the task")
    counts: list[Counts] = Field(description="in order of time; times without counts are left out")


class Statistics(Model):
    """Statistics of several jobs."""

    at: datetime = Field(description="Redis's time")
    unit: Literal["minute", "hour", "all"] = Field(description="the unit of time of each count")
    limits: list[float] = Field(description="upper ends of the buckets, in seconds; one more bucket has the rest")
    jobs: list[JobStatistics] = Field(description="in the order of the question")


def added(durations: Iterable[Durations]) -> Durations:
    """The sum of several histograms."""
    found = list(durations)
    longest = max((len(one.buckets) for one in found), default=0)
    buckets = [sum(one.buckets[i] if i < len(one.buckets) else 0 for one in found) for i in range(longest)]
    return Durations(count=sum(one.count for one in found), seconds=sum(one.seconds for one in found), buckets=buckets)


def summed(counts: Iterable[Counts]) -> Counts:
    """The sum of several counts."""
    found = list(counts)
    counters: dict[str, int] = {}
    for one in found:
        for name, count in one.counters.items():
            counters[name] = counters.get(name, 0) + count
    reasons = dict.fromkeys(reason for one in found for reason in one.gate)
    return Counts(
        at=found[0].at if found else None,
        counters=counters,
        gate={reason: added(one.gate[reason] for one in found if reason in one.gate) for reason in reasons},
        **{name: added(getattr(one, name) for one in found) for name in DURATIONS},
    )


def read(ledger: Ledger, jobs: Sequence[str], unit: Unit | Literal["all"], hours: float | None = None) -> Statistics:
    """`hours`: how far back; None: as far as the ledger keeps them."""
    encoded = [keys.encode_job(job) for job in jobs]
    if unit == "all":
        return statistics(ledger.read_statistics("all", encoded), "all")
    back = min(hours or KEPT[unit], KEPT[unit])
    not_before = int((ledger.time() - back * 3600) * 1000)
    points = round(back * (60 if unit == "minute" else 1))
    return statistics(ledger.read_statistics(f"{unit}s", encoded, not_before, points), unit)


def statistics(found: Mapping[str, Any], unit: Unit | Literal["all"]) -> Statistics:
    """From the answer of :meth:`Ledger.statistics`."""
    limits = [ms / 1000 for ms in found.get("limits", ())]
    size = len(limits) + 1
    return Statistics.model_construct(
        at=when(found.get("now", 0)),
        unit=unit,
        limits=limits,
        jobs=[
            JobStatistics.model_construct(
                job=keys.decode_job(one["name"]), counts=[_counts(sums, size) for sums in one["sums"]]
            )
            for one in found["jobs"]
        ],
    )


#: Shared, as models are immutable.
_NONE = Durations()


def _counts(sums: Mapping[str, Any], size: int) -> Counts:
    """Skips validation: there may be tens of thousands of counts."""
    durations: dict[str, Any] = {name: _durations(sums[name], size) if name in sums else _NONE for name in DURATIONS}
    return Counts.model_construct(
        at=when(sums["at"]) if sums["at"] else None,
        counters={name: sums[name] for name in COUNTERS if name in sums},
        gate={reason: _durations(one, size) for reason, one in sums["gate"].items()} if "gate" in sums else {},
        **durations,
    )


def _durations(found: Mapping[str, int], size: int) -> Durations:
    buckets = [0] * size
    for number, count in found.items():
        if number != "sum" and int(number) <= size:  # a later version may have more counters
            buckets[int(number) - 1] = count
    return Durations.model_construct(count=sum(buckets), seconds=found.get("sum", 0) / 1000, buckets=buckets)

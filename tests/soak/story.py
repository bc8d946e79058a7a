"""The story of a soak: its plan, the events that its runs recorded, its journal, and the state at the end. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from soak.plan import LEASE, Plan
from support.history import Span

READY = ("SUCCESS", "FAILURE", "REVOKED")
#: Answers of the ledger that mean that an outcome was accepted.
ACCEPTED = ("ok", "dead")

PLAIN = "plain"


@dataclass(frozen=True)
class Rule:
    """The limits that the gate enforces for a job."""

    cap: int | None = None
    keyed: bool = False
    blocks: frozenset[str] = frozenset()


@dataclass
class Story:
    """Everything that is known when a soak is at rest."""

    plan: Plan
    rules: Mapping[str, Rule]
    spans: list[Span]
    journal: list[dict[str, Any]]
    states: dict[str, str]
    results: dict[str, Any] = field(default_factory=dict)
    #: Runs that the ledger still has, each with the reason.
    listed: dict[str, str] = field(default_factory=dict)
    #: Runs whose message is in the broker.
    queued: set[str] = field(default_factory=set)
    leftovers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spans = sorted(self.spans, key=lambda span: span.start.monotonic)
        self.by_run: dict[str, list[Span]] = defaultdict(list)
        for span in self.spans:
            self.by_run[span.run].append(span)
        self.kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for entry in self.journal:
            self.kinds[entry["kind"]].append(entry)
        self.settled: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for entry in self.kinds["settled"]:
            self.settled[entry["run"], entry["fence"]].append(entry)
        self._deaths: dict[int, list[float]] = defaultdict(list)
        for entry in (*self.kinds["death"], *self.kinds["dies"]):
            self._deaths[entry["pid"]].append(entry["at"])
        self._seen = {entry["pid"]: entry["last"] for entry in self.kinds["seen"]}
        self.gone: dict[str, float] = {span.start.execution: self._gone(span) for span in self.spans}
        self.stops = list(self._stops())

    def killed(self, span: Span) -> bool:
        return any(at >= span.start.monotonic for at in self._deaths[span.start.pid])

    def _gone(self, span: Span) -> float:
        """When its code was gone; without an end, the death of its process, or when the process was last seen alive."""
        if span.end is not None:
            return span.end.monotonic
        deaths = [at for at in self._deaths[span.start.pid] if at >= span.start.monotonic]
        if deaths:
            return min(deaths)
        last = self._seen.get(span.start.pid, math.inf)
        return max(last, span.start.monotonic)

    def _stops(self) -> Iterator[tuple[str, float, float]]:
        """The workers that stood still, each with begin and end."""
        for stop in self.kinds["stopped"]:
            ends = [e["at"] for e in self.kinds["continued"] if e["worker"] == stop["worker"] and e["at"] > stop["at"]]
            yield stop["worker"], stop["at"], min(ends, default=math.inf)

    def accepted(self, span: Span) -> bool:
        fence = span.start.fence or 0
        return any(entry["answer"] in ACCEPTED for entry in self.settled[span.run, fence])

    def void_since(self, span: Span) -> float:
        """The time from which it may have lost its lease; never, if its outcome was accepted."""
        if self.accepted(span):
            return math.inf
        # A fence is Redis's time at the admission, in microseconds. That may be well before the function begins.
        start = span.start
        admitted = start.monotonic - max(0.0, start.wall - (start.fence or 0) / 1e6) if start.fence else start.monotonic
        # The last heartbeat may have been a third of a lease before.
        return min(
            (
                begin + LEASE / 2
                for worker, begin, end in self.stops
                if worker == start.worker
                and end - begin > LEASE / 2
                and end > admitted
                and begin < self.gone[start.execution]
            ),
            default=math.inf,
        )

    def stalled(self, begin: float, end: float) -> bool:
        """Whether the machine was too busy, at some point in that time, for a lease to be renewed."""
        return any(begin - LEASE < entry["at"] and entry["since"] < end for entry in self.kinds["stall"])

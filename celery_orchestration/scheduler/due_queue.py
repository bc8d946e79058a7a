"""Which entries there are, and when each is looked at next. Pure.

A heap orders them by that time, so that entries that are not due cost nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

from celery_orchestration.job.graph import Graph
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.times import Due


class DueQueue:
    def __init__(self, graph: Graph) -> None:
        self._levels = levels(graph)
        self._entries: dict[str, Entry] = {}
        #: Entries of continuous jobs.
        self._continuous: dict[str, Entry] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        #: The number of each entry's valid item in the heap; its other items are void.
        self._valid: dict[str, int] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        """False for an entry that was replaced."""
        return self._entries.get(entry.id) is entry

    def clear(self) -> None:
        self._entries, self._continuous, self._heap, self._valid = {}, {}, [], {}

    def add(self, entry: Entry) -> None:
        """Replaces an entry of the same name. It gets no time yet."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        if entry.gap_ms is not None:
            self._continuous[entry.id] = entry

    def remove(self, id: str) -> None:
        self._entries.pop(id, None)
        self._continuous.pop(id, None)
        self._valid.pop(id, None)

    def look_at(self, entry: Entry, at_ms: int) -> None:
        """Set the time of its next look; this replaces an earlier one."""
        if entry in self:
            number = next(self._numbers)
            self._valid[entry.id] = number
            heapq.heappush(self._heap, (at_ms, number, entry))

    def first(self) -> tuple[int, Entry] | None:
        """The next entry to look at, and its time."""
        while self._heap:
            at_ms, number, entry = self._heap[0]
            if self._valid.get(entry.id) == number:
                return at_ms, entry
            heapq.heappop(self._heap)
        return None

    def take(self, now: int) -> Iterator[Entry]:
        """Remove the entries whose time has come: the caller sets the next time of each."""
        while (found := self.first()) is not None and found[0] <= now:
            heapq.heappop(self._heap)
            yield found[1]

    def continuous(self) -> list[Entry]:
        return list(self._continuous.values())

    def in_order(self, found: Iterable[tuple[Entry, Due]]) -> list[tuple[Entry, Due]]:
        """The order in which they are dispatched: dependencies first, then by priority, then by due time."""

        def rank(one: tuple[Entry, Due]) -> tuple[int, int, int]:
            entry, due = one
            priority = 0 if entry.policy is None else int(entry.policy.priority)
            return self._levels.get(entry.call.task, 0), -priority, due.at

        return sorted(found, key=rank)


def levels(graph: Graph) -> dict[str, int]:
    """For each job the length of the longest chain of dependencies before it."""
    found: dict[str, int] = {}
    for job in graph.order():
        found[job] = 1 + max((found.get(other, 0) for other in graph.dependencies[job]), default=-1)
    return found

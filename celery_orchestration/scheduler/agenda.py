"""The agenda: which entries there are, and when each is to be looked at.

A heap holds each at its next due time, so that a look costs nothing for entries that are not due.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

from celery_orchestration.job.graph import Graph
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.times import Due


class Agenda:
    def __init__(self, graph: Graph) -> None:
        self._levels = levels(graph)
        self._entries: dict[str, Entry] = {}
        #: Those of continuous jobs.
        self._continuous: dict[str, Entry] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        #: Of each entry the number of its place in the heap; others are void.
        self._places: dict[str, int] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: Entry) -> bool:
        """Not one that another has taken the place of."""
        return self._entries.get(entry.id) is entry

    def clear(self) -> None:
        self._entries, self._continuous, self._heap, self._places = {}, {}, [], {}

    def add(self, entry: Entry) -> None:
        """In the place of one of the same name. It is not looked at yet."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        if entry.gap_ms is not None:
            self._continuous[entry.id] = entry

    def remove(self, id: str) -> None:
        self._entries.pop(id, None)
        self._continuous.pop(id, None)
        self._places.pop(id, None)

    def look(self, entry: Entry, at_ms: int) -> None:
        """Look at it then, and not at another time that was said before."""
        if entry in self:
            number = next(self._numbers)
            self._places[entry.id] = number
            heapq.heappush(self._heap, (at_ms, number, entry))

    def first(self) -> tuple[int, Entry] | None:
        """The next one to be looked at, and when."""
        while self._heap:
            at_ms, number, entry = self._heap[0]
            if self._places.get(entry.id) == number:
                return at_ms, entry
            heapq.heappop(self._heap)
        return None

    def take(self, now: int) -> Iterator[Entry]:
        """Those whose time has come: each has to be given another time to be looked at."""
        while (found := self.first()) is not None and found[0] <= now:
            heapq.heappop(self._heap)
            yield found[1]

    def continuous(self) -> list[Entry]:
        return list(self._continuous.values())

    def in_order(self, found: Iterable[tuple[Entry, Due]]) -> list[tuple[Entry, Due]]:
        """As they go out: dependencies first, then by priority."""

        def rank(one: tuple[Entry, Due]) -> tuple[int, int, int]:
            entry, due = one
            priority = 0 if entry.policy is None else int(entry.policy.priority)
            return self._levels.get(entry.call.task, 0), -priority, due.at

        return sorted(found, key=rank)


def levels(graph: Graph) -> dict[str, int]:
    """Of each job, how many others have to go before it, one after the other."""
    found: dict[str, int] = {}
    for job in graph.order():
        found[job] = 1 + max((found.get(other, 0) for other in graph.dependencies[job]), default=-1)
    return found

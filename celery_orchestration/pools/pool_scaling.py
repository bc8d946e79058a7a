"""One pool of a supervisor between two reads: the last decision, missing workers, and whose turn it is to add one."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from celery_orchestration.job.pool import Pool
from celery_orchestration.ledger import Ledger
from celery_orchestration.pools.decide import Decision, decide
from celery_orchestration.pools.pool_snapshot import HeldPlace, PoolSnapshot
from celery_orchestration.pools.table import differences, shared

#: A supervisor that has its share of a pool gives the others this many seconds to claim the rest.
YIELD_SECONDS = 2.0
#: A decision that changes nothing is recorded only this often.
RECORD_EVERY_SECONDS = 5.0


class PoolScaling:
    def __init__(self, name: str, pool: Pool) -> None:
        self.name = name
        #: The pool by this supervisor's own table.
        self.pool = pool
        self.snapshot: PoolSnapshot | None = None
        self.wanted = 0
        #: A sentence about what this machine lacks for another worker.
        self.lacks = ""
        #: Sentences about how the tables of other supervisors differ.
        self.differences: list[str] = []
        self._recorded_at = 0.0
        self._short_since: float | None = None

    @property
    def applied(self) -> Pool:
        """The pool as it applies: other supervisors may have stricter values."""
        return self.pool if self.snapshot is None else self.pool.model_copy(update=shared(self.snapshot.figures.pool))

    def seen(self, snapshot: PoolSnapshot, supervisor: str) -> list[str]:
        """Returns new differences to the tables of other supervisors, as sentences."""
        self.snapshot = snapshot
        others = {one.name: one.tables[self.name] for one in snapshot.supervisors if one.name != supervisor}
        before, self.differences = self.differences, differences(self.name, self.pool, others)
        return [text for text in self.differences if text not in before]

    def decide(self, ledger: Ledger, supervisor: str, now: float) -> tuple[str, bool]:
        """Decide, and record the decision if it changes something. Returns a message for people, and whether places
        were asked to stop."""
        snapshot = self.snapshot
        assert snapshot is not None
        found = decide(snapshot.figures)
        self.wanted = found.wanted
        staying = [place for place in snapshot.places if not place.leaving]
        changed, too_many = found.wanted != snapshot.wanted, len(staying) > found.wanted
        if not (changed or too_many or self._is_worth_recording(snapshot, found, now)):
            return "", False
        self._recorded_at = now
        was_taken = ledger.scale_pool(
            supervisor,
            self.name,
            snapshot.wanted,
            found.wanted,
            int(found.needed_at * 1000),
            int(snapshot.figures.oldest_wait_seconds * 1000),
            found.reason,
            _figures(snapshot, found),
            _idle_first(staying, snapshot) if too_many else [],
        )
        if not (changed and was_taken):
            return "", too_many
        workers = "1 worker" if found.wanted == 1 else f"{found.wanted} workers"
        before = "" if snapshot.wanted is None else f" instead of {snapshot.wanted}"
        return f"Pool {self.name!r} is to have {workers}{before}: {found.reason}", too_many

    def _is_worth_recording(self, snapshot: PoolSnapshot, found: Decision, now: float) -> bool:
        """Other supervisors need to know when a worker was needed last, and people how long runs wait."""
        if now - self._recorded_at < RECORD_EVERY_SECONDS:
            return False
        above_min = found.wanted > snapshot.figures.pool.min
        return snapshot.figures.ready_runs > 0 or (above_min and found.needed_at != snapshot.figures.needed_at)

    def missing(self, now: float) -> int:
        """How many places are missing and may be claimed."""
        snapshot = self.snapshot
        assert snapshot is not None
        missing = self.wanted - len([place for place in snapshot.places if not place.leaving])
        if missing <= 0 or snapshot.figures.in_new_epoch:
            self._short_since, self.lacks = None, ""
            return 0
        self._short_since = now if self._short_since is None else self._short_since
        return missing

    def is_our_turn(self, mine: int, now: float) -> bool:
        """Supervisors share a pool evenly if their machines allow: one that has its share lets the others go first."""
        assert self.snapshot is not None
        share = ceil(self.wanted / max(1, len(self.snapshot.supervisors)))
        return mine < share or now - (self._short_since or now) >= YIELD_SECONDS

    def on_host(self, host: str) -> set[tuple[str, int]]:
        """Places whose workers are on this machine, of any supervisor."""
        if self.snapshot is None:
            return set()
        here = {one.name for one in self.snapshot.supervisors if one.host == host}
        return {(self.name, place.number) for place in self.snapshot.places if place.by in here}


def _idle_first(places: Sequence[HeldPlace], snapshot: PoolSnapshot) -> list[tuple[int, str]]:
    """The order in which places are given up: without a live worker first, then idle ones, then the least busy."""
    running = {worker.name.partition("@")[0]: worker.running for worker in snapshot.workers if not worker.dead}
    ranked = sorted(places, key=lambda one: (running.get(f"{snapshot.name}-{one.number}", -1), -one.number))
    return [(place.number, place.fence) for place in ranked]


def _figures(snapshot: PoolSnapshot, found: Decision) -> dict[str, Any]:
    """The figures behind a decision, for people."""
    figures = snapshot.figures
    return {
        "ready": figures.ready_runs,
        "oldest_wait_seconds": round(figures.oldest_wait_seconds, 1),
        "busy_slots": figures.busy_slots,
        "workers": figures.workers,
        "needed": found.needed,
    }

"""Notices for the ledger whose delivery nobody waits for: the heartbeat's thread delivers them in its next round.

Every method may be called from any thread. Notices stay here until the ledger has taken them, even if it does not
answer for a while, or the heartbeat's thread hangs and is replaced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from celery_orchestration.ledger import Discarded, Outcome, Stray, TimedOut


class Notices:
    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake()` makes the heartbeat's thread deliver them now."""
        self._wake = wake
        #: The worker drains: nothing more is to be handed over to it.
        self.draining = False
        #: Task ids that were revoked.
        self.revoked: deque[str] = deque()
        self.discarded: deque[Discarded] = deque()
        #: Failed outcomes of runs that were handed over to this worker, and whose messages it cannot read.
        self.unreadable: deque[Outcome] = deque()
        #: Runs whose time limit has passed while their code goes on.
        self.timed_out: deque[TimedOut] = deque()
        #: Messages of jobs that this worker lacks, each with the function that gets the ledger's answer.
        self.strays: deque[tuple[Stray, Callable[[str], None]]] = deque()

    def drain(self) -> None:
        self.draining = True
        self._wake()

    def revoke(self, ids: list[str]) -> None:
        self.revoked.extend(ids)
        self._wake()

    def discard(self, message: Discarded) -> None:
        self.discarded.append(message)
        self._wake()

    def fail_unreadable(self, id: str, fence: str) -> None:
        self.unreadable.append(Outcome(id, fence, "failed"))
        self._wake()

    def time_out(self, run: TimedOut) -> None:
        self.timed_out.append(run)
        self._wake()

    def ask_for_stray(self, message: Stray, then: Callable[[str], None]) -> None:
        """`then(answer)` is called in the heartbeat's thread."""
        self.strays.append((message, then))
        self._wake()

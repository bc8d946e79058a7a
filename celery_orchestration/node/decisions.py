"""Remembers decisions of people and failures, in case the ledger forgets them.

The ledger may be emptied: by FLUSHALL, or by a restart of a Redis that keeps nothing. Or it fails over to a replica
that lacks the last writes. Runs that waited may be lost then, but no job may start that people had stopped: every
worker and scheduler remembers the pause, the disabled jobs and the entries that people added or paused, and restores
them in the epoch that begins then (``restore_decisions.lua``), before the gate opens and before its own scheduler fires
anything. After each sweep a node reads the decisions again if there are new ones. So no node may know
decisions of the last seconds (``sweep_interval_seconds``) before the loss.

Used in the heartbeat's thread only.
"""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_orchestration.ledger import Decisions, Ledger

logger = get_logger(__name__)

#: How many of each are remembered.
MOST_JOBS = MOST_ENTRIES = 1000


class RememberedDecisions:
    def __init__(self) -> None:
        self._known: Decisions | None = None

    def refresh(self, ledger: Ledger, number: int, epoch: str) -> None:
        """Reads the decisions again if there are new ones. `number`: the last decision in the ledger, in this epoch."""
        if self._known is None or (self._known.number, self._known.epoch) != (number, epoch):
            found = ledger.read_decisions(MOST_JOBS, MOST_ENTRIES)
            if found.epoch == epoch:  # else the ledger was emptied just now
                self._known = found

    def restore(self, ledger: Ledger, who: str, epoch: str) -> None:
        """Called in an epoch that began because the ledger was emptied, or moved to a Redis that may lack writes."""
        if self._known is not None:
            count = ledger.restore_decisions(who, epoch, self._known)
            if count:
                logger.warning("The ledger had forgotten %d decisions of people and failures: they are restored", count)

"""Epochs: what this worker does when the ledger may have forgotten something.

A Redis that was emptied, restarted or failed over begins a new epoch (``lua/lib/epoch.lua``). The heartbeat registers
again and installs the policies. Then the carrier's thread, between two turns, claims this worker's runs. Until that is
done the ledger takes no turn of this worker. Otherwise it would refuse outcomes of runs that it has only forgotten.

:meth:`Epoch.registered` is called in the heartbeat's thread, :meth:`Epoch.claim` in the carrier's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery.utils.log import get_logger

from celery_orchestration.ledger import FORGOTTEN, Disabled, Ledger, Registered
from celery_orchestration.worker.loop import InLoop
from celery_orchestration.worker.settlement import Settlement

logger = get_logger(__name__)


class Epoch:
    def __init__(
        self,
        worker: str,
        settlement: Settlement,
        in_loop: InLoop,
        jobs_disabled: Callable[[Sequence[Disabled]], None],
    ) -> None:
        """`worker`: its id."""
        self._worker = worker
        self._settlement = settlement
        self._in_loop = in_loop
        self._jobs_disabled = jobs_disabled
        #: The epoch in which this worker's runs were last claimed; '' before the first.
        self.name = ""
        self._registered: Registered | None = None

    def registered(self, found: Registered) -> None:
        """This worker is registered in this epoch, and its policies are installed."""
        self._registered = found
        if not self.name:
            self.name = found.epoch  # this worker is new: it has nothing to claim

    def can_claim(self, epoch: str) -> bool:
        """Whether this worker is registered in that epoch."""
        return self._registered is not None and self._registered.epoch == epoch

    def claim(self, ledger: Ledger) -> None:
        found = self._registered
        if found is None:
            return
        runs = self._settlement.claims()
        claimed = ledger.claim_runs(self._worker, found.epoch, list(self._settlement.reported), runs)
        self.name = found.epoch
        lost = [(one.id, one.fence) for one, answer in zip(runs, claimed.answers, strict=True) if answer != "ok"]
        logger.error(
            "The ledger at %s %s. A new epoch begins: nothing starts for %.0f s, while workers claim their runs. "
            "This worker: %d runs; void: %d; outcomes reported again: %d; no longer running: %d",
            ledger.address,
            FORGOTTEN.get(found.why, "may have forgotten something"),
            found.closed_ms / 1000,
            len(runs),
            len(lost),
            claimed.told_again,
            claimed.returned,
        )
        if claimed.disabled:
            self._jobs_disabled(claimed.disabled)
        if lost:
            self._in_loop(lambda: self._settlement.lease_lost(lost))

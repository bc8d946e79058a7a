"""Epochs: what this worker does when the ledger may have forgotten something.

A Redis that was emptied, restarted or failed over begins a new epoch (``lua/lib/epoch.lua``). The heartbeat registers
again and installs the policies; then the line, between two turns, claims what this worker runs. Until that is done
the ledger takes no turn of ours, so that no outcome is refused for a run that it has only forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.log import get_logger

from celery_orchestration.ledger import FORGOTTEN, Ledger, Registered

if TYPE_CHECKING:
    from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)


class Epoch:
    def __init__(self, runtime: WorkerRuntime) -> None:
        self._runtime = runtime
        #: The one in which our runs were claimed last; '' before the first.
        self.name = ""
        #: The highest fence seen.
        self.fence = ""
        self._registered: Registered | None = None

    def registered(self, found: Registered) -> None:
        """In the heartbeat: we are registered in this epoch, and its policies are installed."""
        self._registered = found
        if not self.name:
            self.name = found.epoch  # new here: there is nothing to claim

    def can_claim(self, epoch: str) -> bool:
        return self._registered is not None and self._registered.epoch == epoch

    def claim(self, ledger: Ledger) -> None:
        """In the line, between two turns."""
        found, gate = self._registered, self._runtime.gate
        if found is None:
            return
        runs = gate.claims()
        claimed = ledger.claim_runs(self._runtime.worker, found.epoch, list(gate.taken), runs)
        self.name = found.epoch
        void = [one.id for one, answer in zip(runs, claimed.answers, strict=True) if answer != "ok"]
        logger.error(
            "The ledger at %s %s. A new epoch begins: nothing starts for %.0f s, while the workers tell what they run. "
            "This one: %d runs; void: %d; outcomes told again: %d; back to their queues: %d",
            self._runtime.ledger.address,
            FORGOTTEN.get(found.why, "may have forgotten something"),
            found.closed_ms / 1000,
            len(runs),
            len(void),
            claimed.told_again,
            claimed.returned,
        )
        if claimed.disabled:
            self._runtime.disabled(claimed.disabled)
        if void:
            self._runtime.in_loop(lambda: gate.voided(void))

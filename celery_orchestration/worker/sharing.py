"""Shares a handed-over run with other workers when no slot here is free for it.

The run keeps its rank here, and a copy of its message goes back to the queue, for a worker that has a free slot sooner.
The first worker that asks the ledger starts the run; the ledger drops the other copy. While a handed-over run waits
here, this worker takes no more messages from the granted queues.

Everything here happens in the worker's event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.worker import internals
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.state import GateState

#: Seconds that a handed-over run waits for a slot here before it is shared.
SHARE_AFTER = 0.2


class GrantedQueues(Protocol):
    @property
    def granted(self) -> Sequence[str]:
        """The granted queues that this worker serves."""

    @property
    def consumers(self) -> list[Any]:
        """kombu's consumers of the present connection."""

    def take_granted(self, yes: bool) -> None:
        """Starts or stops taking messages from the granted queues."""


class Copies(Protocol):
    def copy(self, envelope: Envelope, queue: str, grant: str) -> None:
        """Publishes a copy of a handed-over message, under the same grant."""


class Sharing:
    def __init__(self, state: GateState, granted_queues: GrantedQueues, publisher: Copies) -> None:
        self._state = state
        self._granted_queues = granted_queues
        self._publisher = publisher
        #: Whether this worker takes no more handed-over runs, because one waits for a slot.
        self.active = False

    def share(self, request: OrchestratedRequest) -> None:
        """A handed-over run has waited for a slot for :data:`SHARE_AFTER` seconds, or has started meanwhile."""
        if request.stage != "reserved" or self._state.closed or self._state.stopping:
            return
        queue = internals.consumer.queue_of(request.message, self._granted_queues.consumers)
        if queue in self._granted_queues.granted:  # from the user's own queues Celery itself prefetches
            if not self.active:
                self.active = True
                self._granted_queues.take_granted(False)
            self._publisher.copy(request.envelope(), queue, request.grant)

    def end(self) -> None:
        """No handed-over run waits here any more."""
        self.active = False
        self._granted_queues.take_granted(True)

    def reconnected(self) -> None:
        """A new connection takes messages from the granted queues at first."""
        self.active = False

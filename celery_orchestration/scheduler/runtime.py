"""A scheduler process: a node without slots, and its threads."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from time import monotonic
from typing import Any

from celery import Celery
from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerError
from celery_orchestration.ledger import BEAT, FORGOTTEN, Presence, Registered
from celery_orchestration.node.heartbeat import Heartbeat
from celery_orchestration.node.left_stores import LeftStores, has_stores
from celery_orchestration.node.presence import Node
from celery_orchestration.node.publisher import Publisher
from celery_orchestration.scheduler.apply_entry import Applier
from celery_orchestration.scheduler.dispatcher import Dispatcher
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.leadership import Term

logger = get_logger(__name__)

#: Seconds that the threads may take to finish when the scheduler stops.
STOP_SECONDS = 5.0


class SchedulerHeartbeat(Heartbeat):
    """A scheduler has no runs, so it has nothing to claim in a new epoch."""

    def _last_claim(self) -> tuple[str, str]:
        return self.epoch, ""

    def _on_registered(self, found: Registered) -> None:
        if self.epoch and found.epoch != self.epoch:
            self._ledger.claim_runs(self._node.worker, found.epoch, [], [])
            logger.error(
                "The ledger at %s %s. A new epoch begins: nothing starts for %.0f s",
                self._node.ledger.address,
                FORGOTTEN.get(found.why, "may have forgotten something"),
                found.closed_ms / 1000,
            )

    def _on_new_epoch(self, epoch: str) -> None:
        self._registered = False

    def _renew_lease(self) -> None:
        self._ledger.heartbeat(self._node.worker, int(self._node.settings.lease_seconds * 1000), [])


class SchedulerRuntime(Node):
    def __init__(self, app: Celery, entries: Mapping[str, Entry], applier: Applier | None = None) -> None:
        super().__init__(app)
        self.applier = applier or Applier()
        self.name = f"beat-{os.getpid()}@{socket.gethostname()}"
        self.problem = ""
        self.publisher = Publisher(app, self.ledger, self.accept, self.send_event)
        self.left_stores = LeftStores(self) if has_stores(app) else None
        self.heartbeat = SchedulerHeartbeat(self, self.publisher, self.left_stores)
        self.dispatcher = Dispatcher(self, entries)
        self.term = Term(
            self.ledger.new_connection(),
            self.worker,
            self.name,
            self.settings.term_seconds,
            self.dispatcher.wake,
            self.dispatcher.silent_for,
        )

    def presence(self) -> Presence:
        return self.as_present(self.name, BEAT, 0, ())

    def give_up(self, why: str) -> None:
        self.problem = why

    def send_event(self, type: str, id: str, **fields: Any) -> None:
        """Does nothing: only workers send task events."""

    def start(self) -> None:
        for thread in (self.publisher, self.heartbeat, self.left_stores, self.dispatcher, self.term):
            if thread is not None:
                thread.start()

    def stop(self) -> None:
        deadline = monotonic() + STOP_SECONDS
        self.dispatcher.stop()
        self.dispatcher.join(STOP_SECONDS)
        self.term.stop()
        if self.left_stores is not None:
            self.left_stores.stop()
        self.heartbeat.stop()
        self.heartbeat.join(max(0.1, deadline - monotonic()))
        if not self.heartbeat.is_alive():
            try:
                self.publisher.publish(self.heartbeat.leave())
            except LedgerError as exc:
                logger.warning("The scheduler could not sign off from the ledger, its lease expires by itself: %s", exc)
        self.publisher.stop()
        self.publisher.join(max(0.1, deadline - monotonic()))
        self.publisher.give_up()
        self.ledger.close()

"""What the channels of one worker share: whose stores they open, and how much is to be fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.job import queues
from celery_orchestration.node.stores import Names
from celery_orchestration.worker.fetch.demand import Demand

logger = get_logger(__name__)


class Fetcher(Demand):
    def __init__(self, worker: str, name: str, names: Names, read_ahead: float, slots: Callable[[], int]) -> None:
        """`worker`, `name`: of the ledger. `slots`: how many the execution pool has or may get."""
        super().__init__(read_ahead, slots)
        self.worker = worker
        self.name = name
        self.names = names
        #: The stores that this process has open.
        self.open: set[str] = set()
        #: What was acknowledged in stores that could not be ended: they are ended later, without these messages.
        self.acknowledged: dict[str, list[str]] = {}
        #: Those that wait for messages, in the event loop or in a thread of their own.
        self.pollers: set[Any] = set()
        #: When a store of ours was last seen to be open, by the monotonic clock.
        self.confirmed_at = 0.0
        #: Why Redis does not tell us when messages come; '' if it does.
        self.refusal = ""

    def cannot_track(self, why: str) -> None:
        if not self.refusal:
            logger.warning(
                "Redis does not tell this worker when messages come (%s): it asks ten times a second instead. Allow "
                "it HELLO 3 and CLIENT TRACKING, or connect without a proxy that lacks them",
                why,
            )
        self.refusal = why

    def served_first(self, queue: str) -> bool:
        """Runs that were handed over do not stand behind a backlog."""
        return queues.is_granted(queue)

    def wake(self) -> None:
        """From any thread: there may be room for more messages."""
        for poller in list(self.pollers):
            poller.wake()

"""The state that the channels of one worker share: the owner of their stores, and how much to fetch."""

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
        """`worker`, `name`: the worker's id and name in the ledger. `names`: the keys of stores."""
        super().__init__(read_ahead, slots)
        self.worker = worker
        self.name = name
        self.names = names
        #: The stores that this process has open.
        self.open: set[str] = set()
        #: Acknowledged messages, by store, of stores that could not be ended. A store that is ended later does not give
        #: these messages back.
        self.acknowledged: dict[str, list[str]] = {}
        #: The pollers that wait for messages, in the event loop or in a thread of their own.
        self.pollers: set[Any] = set()
        #: When a store of ours was last seen to be open, by the monotonic clock.
        self.confirmed_at = 0.0
        #: Why Redis does not report new messages; '' if it does.
        self.refusal = ""

    def cannot_track(self, why: str) -> None:
        if not self.refusal:
            logger.warning(
                "Redis does not report new messages to this worker (%s): it asks ten times a second instead. Allow it "
                "HELLO 3 and CLIENT TRACKING, or connect without a proxy that lacks them",
                why,
            )
        self.refusal = why

    def served_first(self, queue: str) -> bool:
        """Granted queues are served first, so that handed-over runs do not wait behind a backlog."""
        return queues.is_granted(queue)

    def wake(self) -> None:
        """There may be room for more messages: the channels look now. From any thread."""
        for poller in list(self.pollers):
            poller.wake()

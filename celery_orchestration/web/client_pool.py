"""Clients of the ledger for threads: a client has one connection, and serves one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

import anyio
from anyio import to_thread
from celery import Celery

from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.acting_user import acting_as

T = TypeVar("T")

#: The number of clients that are used at the same time.
MOST_CLIENTS = 4


class ClientPool:
    def __init__(self, app: Celery) -> None:
        self._app = app
        self._idle: SimpleQueue[Orchestration] = SimpleQueue()
        self._limit: anyio.CapacityLimiter | None = None
        self._other: anyio.CapacityLimiter | None = None

    async def ask(self, question: Callable[[Orchestration], T], name: str | None = None) -> T:
        """Call `question` with a client, in a thread. `name`: who acts, for the audit."""
        if self._limit is None:
            self._limit = anyio.CapacityLimiter(MOST_CLIENTS)
        return await to_thread.run_sync(self._ask, question, name, limiter=self._limit)

    async def run(self, work: Callable[[], T]) -> T:
        """Run slow work that does not need the ledger in a thread, one at a time."""
        if self._other is None:
            self._other = anyio.CapacityLimiter(1)
        return await to_thread.run_sync(work, limiter=self._other)

    def _ask(self, question: Callable[[Orchestration], T], name: str | None) -> T:
        try:
            client = self._idle.get_nowait()
        except Empty:
            client = Orchestration(self._app)
        try:
            with acting_as(name):
                return question(client)
        finally:
            self._idle.put(client)

    def close(self) -> None:
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

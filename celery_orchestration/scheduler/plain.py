"""Sends fires of tasks that are no jobs of ours, as Celery's beat does.

It has a thread of its own: a broker that does not answer must not keep jobs from being fired.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic
from typing import Any

from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger

from celery_orchestration.ledger import Fire
from celery_orchestration.scheduler.entries import Entry
from celery_orchestration.scheduler.message import Call
from celery_orchestration.worker.publisher import UNREACHABLE

logger = get_logger(__name__)

#: Seconds until a broker that does not answer is tried again.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a fire: it is in the broker, or not before so many seconds, or cannot be."""

    entry: Entry
    fire: Fire
    again: float = 0.0
    error: Exception | None = None


class Sender(threading.Thread):
    def __init__(self, app: Celery, leads: Callable[[], bool], told: Callable[[], None]) -> None:
        """Nothing is sent unless it `leads`. `told` is called when there is something in `sent`."""
        super().__init__(name="orchestration-sender", daemon=True)
        self._app = app
        self._leads, self._told = leads, told
        self._fires: SimpleQueue[tuple[Entry, Fire] | None] = SimpleQueue()
        self._producer: Any = None
        self._wait, self._again_at = 0.0, 0.0
        self.sent: deque[Sent] = deque()

    def send(self, entry: Entry, fire: Fire) -> None:
        self._fires.put((entry, fire))

    def stop(self) -> None:
        """When those at hand are sent."""
        self._fires.put(None)

    def run(self) -> None:
        while (found := self._fires.get()) is not None:
            self.sent.append(self._try(*found))
            self._told()
        self._disconnect()

    def _try(self, entry: Entry, fire: Fire) -> Sent:
        down = self._again_at - monotonic()
        if down > 0 or not self._leads():
            return Sent(entry, fire, again=max(down, 0.5))
        logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
        try:
            self._put(entry.call, fire.id)
        except UNREACHABLE as exc:
            self._disconnect()
            self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
            self._again_at = monotonic() + self._wait
            logger.error("The broker does not take %s, again in %.0f s: %s", entry.shown, self._wait, exc)
            return Sent(entry, fire, again=self._wait)
        except Exception as exc:
            return Sent(entry, fire, error=exc)
        self._wait = 0.0
        return Sent(entry, fire)

    def _put(self, call: Call, id: str) -> None:
        app = self._app
        if self._producer is None:
            self._producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)
        args, kwargs = call.evaluated()
        task = app.tasks.get(call.task)
        options = {**call.options_of(id), "producer": self._producer}
        with denied_join_result():
            if task is not None:
                task.apply_async(args, kwargs, **options)
            else:
                app.send_task(call.task, args, kwargs, **options)

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.close()
            except Exception as exc:
                logger.debug("Closing the scheduler's connection: %r", exc)

"""Sends fires of tasks that are no jobs of ours, as Celery's beat does; and the events that say that fires were sent.

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

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Fire
from celery_orchestration.node.publisher import UNREACHABLE
from celery_orchestration.scheduler.apply import NOT_SENT, Applier
from celery_orchestration.scheduler.entries import Entry

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
    #: Why it was not sent, and will not be.
    refused: str = ""


class Sender(threading.Thread):
    def __init__(self, app: Celery, applier: Applier, leads: Callable[[], bool], told: Callable[[], None]) -> None:
        """Nothing is sent unless it `leads`. `told` is called when there is something in `sent`."""
        super().__init__(name="orchestration-sender", daemon=True)
        self._app, self._applier = app, applier
        self._leads, self._told = leads, told
        #: Fires to send; without an entry, one of a job that became a run: an event says so.
        self._fires: SimpleQueue[tuple[Entry | None, Fire] | None] = SimpleQueue()
        self._producer: Any = None
        self._wait, self._again_at = 0.0, 0.0
        self.sent: deque[Sent] = deque()

    def send(self, entry: Entry, fire: Fire) -> None:
        self._fires.put((entry, fire))

    def announce(self, fire: Fire) -> None:
        """The fire of a job became a run: ``task-sent``, if the app sends such events."""
        if self._app.conf.task_send_sent_event:
            self._fires.put((None, fire))

    def stop(self) -> None:
        """When those at hand are sent."""
        self._fires.put(None)

    def run(self) -> None:
        while (found := self._fires.get()) is not None:
            entry, fire = found
            if entry is None:
                self._send_event(fire)
            else:
                self.sent.append(self._try(entry, fire))
                self._told()
        self._disconnect()

    def _try(self, entry: Entry, fire: Fire) -> Sent:
        down = self._again_at - monotonic()
        if down > 0 or not self._leads():
            return Sent(entry, fire, again=max(down, 0.5))
        try:
            is_sent = self._put(entry, fire.id)
        except UNREACHABLE as exc:
            self._disconnect()
            self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
            self._again_at = monotonic() + self._wait
            logger.error("The broker does not take %s, again in %.0f s: %s", entry.shown, self._wait, exc)
            return Sent(entry, fire, again=self._wait)
        except Exception as exc:
            return Sent(entry, fire, error=exc)
        self._wait = 0.0
        return Sent(entry, fire, refused="" if is_sent else NOT_SENT)

    def _put(self, entry: Entry, id: str) -> bool:
        """Whether it was sent: always, unless other code decides that."""
        producer = self._connected()
        if self._applier.is_needed:
            return self._applier.apply(entry, id, producer)
        app, call = self._app, entry.call
        logger.info("Scheduler: Sending due task %s (%s)", entry.shown, call.task)
        args, kwargs = call.evaluated()
        task = app.tasks.get(call.task)
        options = {**call.options_of(id), "producer": producer}
        with denied_join_result():
            if task is not None:
                task.apply_async(args, kwargs, **options)
            else:
                app.send_task(call.task, args, kwargs, **options)
        return True

    def _send_event(self, fire: Fire) -> None:
        """As Celery does when it sends a task. Nobody tries again: events are for those who watch now."""
        if monotonic() < self._again_at:
            return
        envelope = Envelope.unpack(fire.message)
        headers = envelope.headers
        fields = {name: headers.get(name) for name in ("root_id", "parent_id", "retries", "eta", "expires")}
        fields |= {"uuid": fire.id, "name": headers.get("task"), "queue": fire.queue}
        fields |= {"args": headers.get("argsrepr"), "kwargs": headers.get("kwargsrepr")}
        fields |= {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
        try:
            self._app.events.Dispatcher(enabled=False).publish("task-sent", fields, self._connected())
        except Exception as exc:
            self._disconnect()
            logger.warning("The event that says that run %s was sent is lost: %s", fire.id, exc)

    def _connected(self) -> Any:
        app = self._app
        if self._producer is None:
            self._producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)
        return self._producer

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.close()
            except Exception as exc:
                logger.debug("Closing the scheduler's connection: %r", exc)

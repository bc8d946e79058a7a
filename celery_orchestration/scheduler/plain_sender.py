"""Sends the fires of plain tasks as Celery's beat does, and the ``task-sent`` events of jobs' fires.

It has its own thread: a broker that does not answer must not delay the dispatch of jobs.
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
from celery_orchestration.scheduler.apply_entry import NOT_SENT, Applier
from celery_orchestration.scheduler.entries import Entry

logger = get_logger(__name__)

#: Seconds until a broker that does not answer is tried again.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Sent:
    """The result for a fire: the broker has it, or it is tried again later, or it failed, or it was refused."""

    entry: Entry
    fire: Fire
    #: Try again in this many seconds; 0: do not.
    retry_seconds: float = 0.0
    error: Exception | None = None
    #: Why other code decided not to send it.
    refused: str = ""


class PlainSender(threading.Thread):
    def __init__(self, app: Celery, applier: Applier, leads: Callable[[], bool], changed: Callable[[], None]) -> None:
        """Nothing is sent unless `leads()` is true. `changed()` is called after each addition to `sent`."""
        super().__init__(name="orchestration-sender", daemon=True)
        self._app, self._applier = app, applier
        self._leads, self._changed = leads, changed
        #: Fires to send. Without an entry: the fire of a job that became a run, for which only an event is sent.
        self._fires: SimpleQueue[tuple[Entry | None, Fire] | None] = SimpleQueue()
        self._producer: Any = None
        self._wait, self._again_at = 0.0, 0.0
        self.sent: deque[Sent] = deque()

    def send(self, entry: Entry, fire: Fire) -> None:
        self._fires.put((entry, fire))

    def announce(self, fire: Fire) -> None:
        """The fire of a job became a run: send ``task-sent``, if the app sends such events."""
        if self._app.conf.task_send_sent_event:
            self._fires.put((None, fire))

    def stop(self) -> None:
        """Stops after the fires that are queued now."""
        self._fires.put(None)

    def run(self) -> None:
        while (found := self._fires.get()) is not None:
            entry, fire = found
            if entry is None:
                self._send_event(fire)
            else:
                self.sent.append(self._try(entry, fire))
                self._changed()
        self._disconnect()

    def _try(self, entry: Entry, fire: Fire) -> Sent:
        down = self._again_at - monotonic()
        if down > 0 or not self._leads():
            return Sent(entry, fire, retry_seconds=max(down, 0.5))
        try:
            is_sent = self._put(entry, fire.id)
        except UNREACHABLE as exc:
            self._disconnect()
            self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
            self._again_at = monotonic() + self._wait
            logger.error(
                "The broker is unavailable: entry %s is sent again in %.0f s: %s", entry.shown, self._wait, exc
            )
            return Sent(entry, fire, retry_seconds=self._wait)
        except Exception as exc:
            return Sent(entry, fire, error=exc)
        self._wait = 0.0
        return Sent(entry, fire, refused="" if is_sent else NOT_SENT)

    def _put(self, entry: Entry, id: str) -> bool:
        """Whether it was sent: always, unless other code decides otherwise."""
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
        """As Celery does when it sends a task. A failed event is not sent again: only current watchers need it."""
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
            logger.warning("The task-sent event of run %s is lost: %s", fire.id, exc)

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
                logger.debug("The connection of the sender could not be closed: %r", exc)

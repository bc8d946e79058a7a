"""The publisher: sends handed-over runs to the broker, and reports runs that ended before they started to Celery.

It has a thread and a broker connection of its own, so that a slow broker or result backend never blocks the worker's
event loop. If it ends before its errands are done, the next sweep gives them to another node. Methods
without an underscore may be called from any thread.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, PriorityQueue
from time import monotonic
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery, signals
from celery.app.task import Context
from celery.exceptions import NotRegistered, WorkerLostError
from celery.utils.log import get_logger
from kombu import Queue
from kombu.exceptions import KombuError
from kombu.utils.encoding import safe_repr
from redis.exceptions import RedisError

from celery_orchestration.errors import LedgerError
from celery_orchestration.job import queues
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Ending, Grant, Ledger, keys
from celery_orchestration.node.backoff import Backoff

logger = get_logger(__name__)

#: Errors that pass when the broker, the result backend or the ledger is available again.
UNREACHABLE = (LedgerError, OSError, KombuError, RedisError, AMQPError)
#: How often an errand is tried if it fails for another reason.
MOST_TRIES = 3
#: How many runs are published before the ledger hears of it.
MOST_AT_ONCE = 64
#: With more errands than these, it is behind.
MANY_ERRANDS = 256
#: Seconds without a finished errand after which it counts as stuck.
STUCK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Copy:
    """A message to publish unchanged, with the grant number that it has."""

    envelope: Envelope = field(repr=False)
    queue: str
    grant: str


@dataclass(frozen=True, slots=True)
class LostRetry:
    """A retry whose message got lost."""

    id: str


@dataclass(frozen=True, slots=True)
class FindQueues:
    """Asks which of these queues the broker has, and calls `found` with them."""

    queues: list[str]
    found: Callable[[list[str]], None]


Errand = Grant | Ending | Copy | LostRetry | FindQueues


class Publisher(threading.Thread):
    def __init__(self, app: Celery, ledger: Ledger, accept: Any, send_event: Callable[..., None]) -> None:
        """`accept`: content types that may be read. `send_event(type, id, **fields)` sends one of Celery's events."""
        super().__init__(name="orchestration-publisher", daemon=True)
        self._app = app
        self._ledger = ledger.new_connection()
        self._accept = accept
        self._send_event = send_event
        self._errands: PriorityQueue[tuple[int, int, Errand | None]] = PriorityQueue()
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait)
        self._done_at = 0.0
        self._producer: Any = None
        #: Queues by name, bound to the producer's channel: otherwise each message would bind its queue again.
        self._queues: dict[str, Queue] = {}
        self._connection: Any = None

    @property
    def is_behind(self) -> bool:
        """Whether others should wait before they add errands: a run that is not published in time is granted again.
        False if it is stuck: waiting would not help."""
        return self._errands.qsize() > MANY_ERRANDS and monotonic() - self._done_at < STUCK_SECONDS

    def publish(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._add_errand(0, grant)

    def copy(self, envelope: Envelope, queue: str, grant: str) -> None:
        self._add_errand(1, Copy(envelope, queue, grant))

    def retry(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._add_errand(1, LostRetry(id))

    def look_for(self, queues: list[str], found: Callable[[list[str]], None]) -> None:
        self._add_errand(2, FindQueues(queues, found))

    def end(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            self._add_errand(2, ending)

    def stop(self) -> None:
        """Ends the thread when the errands at hand are done."""
        self._add_errand(3, None)

    def give_up(self) -> None:
        """No longer waits for a broker or a ledger that does not answer."""
        self._stopped.set()

    def _add_errand(self, rank: int, errand: Errand | None) -> None:
        """The lowest rank goes first. Runs that may start come before endings: reporting to Celery takes longer, and
        no run waits for it."""
        self._errands.put((rank, next(self._numbers), errand))

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            *_, errand = self._errands.get()
            if errand is None:
                break
            if isinstance(errand, Grant):
                self._hand_over([errand, *self._more_grants()])
            else:
                self._try_until_done(errand)
        self._disconnect()
        self._ledger.close()

    def _more_grants(self) -> Iterator[Grant]:
        for _ in range(MOST_AT_ONCE - 1):
            try:
                rank, number, errand = self._errands.get_nowait()
            except Empty:
                return
            if not isinstance(errand, Grant):
                self._errands.put((rank, number, errand))
                return
            yield errand

    def _hand_over(self, grants: list[Grant]) -> None:
        published = self._publish_together(grants) if len(grants) > 1 and not self._stopped.is_set() else None
        if published is None:
            published = [grant for grant in grants if self._try_until_done(grant)]
        self._confirm(published)

    def _publish_together(self, grants: list[Grant]) -> list[Grant] | None:
        """Makes one call to the ledger and, if kombu can, one write to the broker. None if that failed: then they are
        published one by one, so that an error with one does not affect the others. A message that is published twice
        starts its run once."""
        try:
            found = zip(grants, self._ledger.read_all_granted(grants), strict=True)
            messages = [(Envelope.unpack(one[1]), one[0], grant) for grant, one in found if one is not None]
            producer = self._connected()
            with producer.batch(MOST_AT_ONCE) if hasattr(producer, "batch") else nullcontext():
                for envelope, queue, grant in messages:
                    self._send(envelope, queue, grant.number)
        except Exception as exc:
            logger.debug("Runs could not be published together, they are published one by one: %r", exc)
            self._disconnect()
            return None
        self._done_at = monotonic()
        return [grant for *_, grant in messages]

    def _try_until_done(self, errand: Errand) -> bool:
        """Tries until it is done, or no longer needed, or the node stops. An errand that fails although all servers can
        be reached is given up after some tries, because others wait behind it."""
        tries = 0
        while not self._stopped.is_set():
            try:
                done = self._try(errand)
            except Exception as exc:
                self._disconnect()
                tries += not isinstance(exc, UNREACHABLE)
                if tries >= MOST_TRIES:
                    return self._give_up_on(errand, exc)
                self._backoff.failed(lambda _, exc=exc: _log_failure(exc))  # type: ignore[misc]
            else:
                self._backoff.succeeded()
                self._done_at = monotonic()
                return done
        return False

    def _give_up_on(self, errand: Errand, exc: Exception) -> bool:
        self._backoff.succeeded()
        if isinstance(errand, FindQueues):
            logger.error("The broker cannot be asked for the queues %s: %r", ", ".join(errand.queues), exc)
            return False
        if not isinstance(errand, Ending):
            logger.error("%s cannot be published, and is left to the next sweep: %r", errand, exc, exc_info=exc)
            return False
        logger.error("Run %s ended (%s), but Celery was not notified: %r", errand.id, errand.why, exc, exc_info=exc)
        try:
            found = self._ledger.pending_end(errand.id)
            if found is not None:
                self.publish(self._ledger.confirm_end([(errand.id, found[1])]))
        except LedgerError as trouble:
            logger.error("The ledger update failed too, the next sweep tries again: %s", trouble)
        return False

    def _try(self, errand: Errand) -> bool:
        if isinstance(errand, Ending):
            return self._report_to_celery(errand)
        if isinstance(errand, Copy):
            return self._send(errand.envelope, errand.queue, errand.grant)
        if isinstance(errand, LostRetry):
            return self._retry(errand)
        if isinstance(errand, FindQueues):
            return self._find_queues(errand)
        found = self._ledger.read_granted(errand)
        if found is None:
            return False  # it was granted again meanwhile, or has ended
        queue, message = found
        return self._send(Envelope.unpack(message), queue, errand.number)

    def _retry(self, errand: LostRetry) -> bool:
        """Sends the message of the attempt before. Other arguments that `retry()` was given are lost with its message.
        If the lost message still comes, the ledger drops the later of the two."""
        found = self._ledger.read_retry(errand.id)
        if found is None:
            return False
        queue, attempt, message = found
        logger.warning("The retry of run %s did not arrive: it is sent again", errand.id)
        return self._send(Envelope.unpack(message).retried(keys.retries(attempt + 1)), queue, "")

    def _find_queues(self, errand: FindQueues) -> bool:
        self._connected()
        found = [name for name in errand.queues if _has_queue(self._connection, name)]
        if found:
            errand.found(found)
        return True

    def _send(self, envelope: Envelope, queue: str, grant: str) -> bool:
        producer = self._connected()
        if queue not in self._queues:
            self._queues[queue] = queues.declared(self._app, queue).bind(producer.channel)
        envelope.publish(producer, self._queues[queue], grant)
        return True

    def _connected(self) -> Any:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer

    def _confirm(self, published: list[Grant]) -> None:
        if not published:
            return
        try:
            self._ledger.confirm_published(published)
        except LedgerError as exc:
            logger.warning(
                "%d runs were published, but the ledger could not be notified; a sweep may publish them again: %s",
                len(published),
                exc,
            )

    def _disconnect(self) -> None:
        connection, self._producer, self._connection, self._queues = self._connection, None, None, {}
        if connection is not None:
            try:
                connection.close()
            except Exception as exc:
                logger.debug("Closing the publisher's connection: %r", exc)

    # -- runs that end without having run -----------------------------------------------------------

    def _report_to_celery(self, ending: Ending) -> bool:
        """Does what Celery does when a task ends: result, callbacks, chord, signals, events."""
        found = self._ledger.pending_end(ending.id)
        if found is None:
            return False
        why, attempt, message = found
        envelope = Envelope.unpack(message)
        headers, embed = self._read(envelope)
        id = headers.get("id") or ending.id  # a run may have an id of its own
        task = self._app.tasks.get(headers.get("task"))
        backend = task.backend if task is not None else self._app.backend
        delivered = {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
        reply_to = envelope.properties.get("reply_to")
        context = Context({**headers, **(embed or {}), "reply_to": reply_to, "delivery_info": delivered})
        context.correlation_id = envelope.properties.get("correlation_id")
        ignored = headers.get("ignore_result")
        ignored = getattr(task, "ignore_result", False) if ignored is None else ignored
        store = not ignored or bool(getattr(task, "store_errors_even_if_ignored", False))
        if why in ("crashed", "unregistered"):
            exc: Exception = WorkerLostError(f"The worker of run {ending.id} died before the run ended")
            if why == "unregistered":
                exc = NotRegistered(headers.get("task"))
            backend.mark_as_failure(id, exc, request=context, store_result=store)
            signals.task_failure.send(
                sender=task, task_id=id, exception=exc, args=context.args, kwargs=context.kwargs, einfo=None
            )
            self._send_event("task-failed", id, exception=safe_repr(exc), traceback=None)
        else:
            backend.mark_as_revoked(id, why, request=context, store_result=store)
            signals.task_revoked.send(task, request=context, terminated=False, signum=None, expired=why == "expired")
            self._send_event("task-revoked", id, terminated=False, signum=None, expired=why == "expired")
        logger.info("Run %s of job %s ended before it started: %s", ending.id, headers.get("task"), why)
        self.publish(self._ledger.confirm_end([(ending.id, attempt)]))
        return True

    def _read(self, envelope: Envelope) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Headers, and the callbacks and chord of the body, read as Celery's worker would read them."""
        try:
            payload = envelope.as_message(self._accept).payload
        except Exception as exc:
            if "task" not in envelope.headers:
                raise
            # A caller that waits for the result still gets it.
            headers = envelope.headers
            logger.error("The callbacks of run %s are not called, its message cannot be read: %s", headers["id"], exc)
            return headers, None
        if "task" in envelope.headers:
            args, kwargs, embed = payload
            return {**envelope.headers, "args": args, "kwargs": kwargs}, embed
        return dict(payload), {key: payload.get(key) for key in ("callbacks", "errbacks", "chord")}


def _log_failure(exc: Exception) -> None:
    logger.error("Cannot hand over runs, the broker or the ledger does not answer; trying again: %r", exc)


def _has_queue(connection: Any, name: str) -> bool:
    """Whether the broker has that queue. With Redis, whether it has messages."""
    channel = connection.channel()  # RabbitMQ closes it if there is no such queue
    try:
        channel.queue_declare(name, passive=True)
    except connection.channel_errors:
        return False
    finally:
        with suppress(Exception):
            channel.close()
    return True

"""The publisher: puts handed-over runs into the broker, and tells Celery how runs ended that never ran.

It has a thread and a broker connection of its own, so that a slow broker or result backend never blocks the worker's
event loop. Nothing is lost with it: what it does not get done, the next sweep gives to somebody else.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, PriorityQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AMQPError
from celery import signals
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
from celery_orchestration.ledger import Ending, Grant, keys
from celery_orchestration.node.backoff import Backoff

if TYPE_CHECKING:
    from celery_orchestration.node.presence import Node

logger = get_logger(__name__)

#: Errors that pass when the broker, the result backend or the ledger is back.
UNREACHABLE = (LedgerError, OSError, KombuError, RedisError, AMQPError)
#: How often an errand is tried that fails for another reason.
MOST_TRIES = 3
#: How many runs are asked for and published before the ledger is told.
MOST_AT_ONCE = 64
#: With more errands than these at hand it is behind; so many seconds without one done, it gets nothing done.
MANY, STUCK = 256, 0.5


@dataclass(frozen=True, slots=True)
class Copy:
    """A message to be put into a queue as it is, with the grant number it has."""

    envelope: Envelope = field(repr=False)
    queue: str
    grant: str


@dataclass(frozen=True, slots=True)
class Again:
    """A retry whose message got lost."""

    id: str


@dataclass(frozen=True, slots=True)
class Look:
    """Which of these queues does the broker have?"""

    queues: list[str]
    found: Callable[[list[str]], None]


Errand = Grant | Ending | Copy | Again | Look


class Publisher(threading.Thread):
    def __init__(self, node: Node) -> None:
        super().__init__(name="orchestration-publisher", daemon=True)
        self._node = node
        self._ledger = node.ledger.new_connection()
        self._errands: PriorityQueue[tuple[int, int, Errand | None]] = PriorityQueue()
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self._backoff = Backoff(self._stopped.wait)
        self._done_at = 0.0
        self._producer: Any = None
        #: Queues by name, bound to the producer's channel: else each message would bind its queue once more.
        self._queues: dict[str, Queue] = {}
        self._connection: Any = None

    @property
    def is_behind(self) -> bool:
        """Whether others do well to wait for it: what lies here too long is granted again. One that gets nothing done
        is not waited for."""
        return self._errands.qsize() > MANY and monotonic() - self._done_at < STUCK

    def publish(self, grants: Sequence[Grant]) -> None:
        for grant in grants:
            self._put_errand(0, grant)

    def copy(self, envelope: Envelope, queue: str, grant: str) -> None:
        self._put_errand(1, Copy(envelope, queue, grant))

    def retry(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._put_errand(1, Again(id))

    def look_for(self, queues: list[str], found: Callable[[list[str]], None]) -> None:
        self._put_errand(2, Look(queues, found))

    def end(self, endings: Sequence[Ending]) -> None:
        for ending in endings:
            self._put_errand(2, ending)

    def stop(self) -> None:
        """When the errands at hand are done."""
        self._put_errand(3, None)

    def give_up(self) -> None:
        """Trouble with the broker or the ledger is not waited for any longer."""
        self._stopped.set()

    def _put_errand(self, rank: int, errand: Errand | None) -> None:
        """Runs that may start go before those that end: telling Celery of an end takes longer, and nobody waits."""
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
                self._do(errand)
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
        published = self._at_once(grants) if len(grants) > 1 and not self._stopped.is_set() else None
        if published is None:
            published = [grant for grant in grants if self._do(grant)]
        self._confirm(published)

    def _at_once(self, grants: list[Grant]) -> list[Grant] | None:
        """In one question and, where kombu can, in one write. None if that did not go well: what went wrong is met
        again one by one, where trouble with one is not the others'. A message that comes twice starts its run once."""
        try:
            found = zip(grants, self._ledger.read_all_granted(grants), strict=True)
            messages = [(Envelope.unpack(one[1]), one[0], grant) for grant, one in found if one is not None]
            producer = self._connected()
            with producer.batch(MOST_AT_ONCE) if hasattr(producer, "batch") else nullcontext():
                for envelope, queue, grant in messages:
                    self._put(envelope, queue, grant.number)
        except Exception as exc:
            logger.debug("Handing over one by one: %r", exc)
            self._disconnect()
            return None
        self._done_at = monotonic()
        return [grant for *_, grant in messages]

    def _do(self, errand: Errand) -> bool:
        """Tries until it is done, or not needed any more, or the worker stops. What fails for another reason than that
        somebody cannot be reached is not tried for ever: others stand behind it."""
        tries = 0
        while not self._stopped.is_set():
            try:
                done = self._try(errand)
            except Exception as exc:
                self._disconnect()
                tries += not isinstance(exc, UNREACHABLE)
                if tries >= MOST_TRIES:
                    return self._set_aside(errand, exc)
                self._backoff.failed(lambda _, exc=exc: logger.error("Cannot hand over: %r", exc))  # type: ignore[misc]
            else:
                self._backoff.succeeded()
                self._done_at = monotonic()
                return done
        return False

    def _set_aside(self, errand: Errand, exc: Exception) -> bool:
        self._backoff.succeeded()
        if isinstance(errand, Look):
            logger.error("The broker cannot be asked for the queues %s: %r", ", ".join(errand.queues), exc)
            return False
        if not isinstance(errand, Ending):
            logger.error("%s cannot be published, and is left to the next sweep: %r", errand, exc, exc_info=exc)
            return False
        logger.error("Run %s ended (%s), but Celery could not be told: %r", errand.id, errand.why, exc, exc_info=exc)
        try:
            found = self._ledger.pending_end(errand.id)
            if found is not None:
                self.publish(self._ledger.confirm_end([(errand.id, found[1])]))
        except LedgerError as trouble:
            logger.error("Nor the ledger: %s", trouble)  # a sweep gives it to somebody again
        return False

    def _try(self, errand: Errand) -> bool:
        if isinstance(errand, Ending):
            return self._carry_out(errand)
        if isinstance(errand, Copy):
            return self._put(errand.envelope, errand.queue, errand.grant)
        if isinstance(errand, Again):
            return self._retry(errand)
        if isinstance(errand, Look):
            return self._look(errand)
        found = self._ledger.read_granted(errand)
        if found is None:
            return False  # granted again since, or over
        queue, message = found
        return self._put(Envelope.unpack(message), queue, errand.number)

    def _retry(self, again: Again) -> bool:
        """With the message of the attempt before, whatever `retry()` was given: that is all there is. Should the
        other one still come, the later of the two is dropped."""
        found = self._ledger.read_retry(again.id)
        if found is None:
            return False
        queue, attempt, message = found
        logger.warning("The retry of run %s did not arrive: it is sent again", again.id)
        return self._put(Envelope.unpack(message).retried(keys.retries(attempt + 1)), queue, "")

    def _look(self, look: Look) -> bool:
        self._connected()
        found = [name for name in look.queues if _has_queue(self._connection, name)]
        if found:
            look.found(found)
        return True

    def _put(self, envelope: Envelope, queue: str, grant: str) -> bool:
        producer = self._connected()
        if queue not in self._queues:
            self._queues[queue] = queues.declared(self._node.app, queue).bind(producer.channel)
        envelope.publish(producer, self._queues[queue], grant)
        return True

    def _connected(self) -> Any:
        if self._producer is None:
            self._connection = self._node.app.connection_for_write()
            self._producer = self._node.app.amqp.Producer(self._connection, auto_declare=False)
        return self._producer

    def _confirm(self, published: list[Grant]) -> None:
        if not published:
            return
        try:
            self._ledger.confirm_published(published)
        except LedgerError as exc:
            logger.warning("%d runs were published, but the ledger does not know: %s", len(published), exc)

    def _disconnect(self) -> None:
        connection, self._producer, self._connection, self._queues = self._connection, None, None, {}
        if connection is not None:
            try:
                connection.close()
            except Exception as exc:
                logger.debug("Closing the publisher's connection: %r", exc)

    # -- runs that end without having run -----------------------------------------------------------

    def _carry_out(self, ending: Ending) -> bool:
        found = self._ledger.pending_end(ending.id)
        if found is None:
            return False
        why, attempt, message = found
        envelope = Envelope.unpack(message)
        headers, embed = self._read(envelope)
        id = headers.get("id") or ending.id  # a run may have an id of its own
        task = self._node.app.tasks.get(headers.get("task"))
        backend = task.backend if task is not None else self._node.app.backend
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
            self._node.send_event("task-failed", id, exception=safe_repr(exc), traceback=None)
        else:
            backend.mark_as_revoked(id, why, request=context, store_result=store)
            signals.task_revoked.send(task, request=context, terminated=False, signum=None, expired=why == "expired")
            self._node.send_event("task-revoked", id, terminated=False, signum=None, expired=why == "expired")
        logger.info("Run %s of job %s ended before it started: %s", ending.id, headers.get("task"), why)
        self.publish(self._ledger.confirm_end([(ending.id, attempt)]))
        return True

    def _read(self, envelope: Envelope) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Headers and what is embedded in the body (callbacks, chord), read as Celery's worker would read it."""
        try:
            payload = envelope.as_message(self._node.accept).payload
        except Exception as exc:
            if "task" not in envelope.headers:
                raise
            # Who waits for the result hears of it all the same.
            headers = envelope.headers
            logger.error("The callbacks of run %s are not called, its content cannot be read: %s", headers["id"], exc)
            return headers, None
        if "task" in envelope.headers:
            args, kwargs, embed = payload
            return {**envelope.headers, "args": args, "kwargs": kwargs}, embed
        return dict(payload), {key: payload.get(key) for key in ("callbacks", "errbacks", "chord")}


def _has_queue(connection: Any, name: str) -> bool:
    """Whether the broker has that queue; Redis: whether there are messages in it."""
    channel = connection.channel()  # RabbitMQ closes it if there is no such queue
    try:
        channel.queue_declare(name, passive=True)
    except connection.channel_errors:
        return False
    finally:
        with suppress(Exception):
            channel.close()
    return True

"""Strays: messages of jobs that this worker's code lacks.

While two releases are live side by side on a queue, a message may come to a worker of the one that lacks its job.
Celery would discard it. The ledger knows which releases have the job, so it keeps the message, and gives it to a worker
that has the job, which takes it in as if the broker had delivered it there. A message of a job that nobody knows is
discarded as Celery does it, and kept as a dead letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601

from celery_orchestration.job import queues
from celery_orchestration.job.envelope import HEADER, Envelope
from celery_orchestration.job.options import Priority
from celery_orchestration.ledger import Stray, keys
from celery_orchestration.worker import internals
from celery_orchestration.worker.loop import Loop
from celery_orchestration.worker.request import publication_of

if TYPE_CHECKING:
    from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)

#: Seconds until the ledger is asked again that could not say yet what to do with a message.
LATER = 1.0


class Strays:
    """In the worker's event loop."""

    def __init__(self, runtime: WorkerRuntime, loop: Loop) -> None:
        self._runtime = runtime
        self._loop = loop

    def came(self, message: Any, discard: Callable[[], None]) -> None:
        """`discard()`: as Celery does it. Until the ledger has answered the message stays unacknowledged."""
        try:
            stray = self._read(message)
        except Exception as exc:
            logger.error("A message of an unknown task cannot be kept, and is discarded: %r", exc)
            return discard()
        return self._ask(stray, message, discard)

    def _read(self, message: Any) -> Stray:
        headers = message.headers or {}
        said = headers if "task" in headers else message.payload
        ours: Any = headers.get(HEADER)
        ours = ours if isinstance(ours, dict) else {}
        origin = {part: ours.get(part) for part in ("exchange", "routing_key")} if ours.get("grant") else None
        publication, anonymous = publication_of(message, ours)
        queue = (origin or {}).get("routing_key") or internals.queue_of(message, self._runtime.consuming.consumers)
        id, expires = str(said["id"]), maybe_iso8601(said.get("expires"))
        for text in (id, queue):
            text.encode()
        return Stray(
            id=id,
            attempt=keys.attempt(said.get("replaced_task_nesting") or 0, said.get("retries") or 0),
            job=keys.encode_job(said["task"]),
            priority=int(Priority.NORMAL),  # whoever takes it in knows better
            grant=ours.get("grant", ""),
            expires_ms=int(expires.timestamp() * 1000) if expires else None,
            queue=queue,
            granted_queue=queues.granted_queue_for(queue, self._runtime.default_queue),
            message=Envelope.of(message, origin, publication).pack(),
            publication=publication,
            anonymous=anonymous,
        )

    def _ask(self, stray: Stray, message: Any, discard: Callable[[], None]) -> None:
        self._runtime.heartbeat.stray(
            stray, lambda answer: self._runtime.in_loop(lambda: self._answered(answer, stray, message, discard))
        )

    def _answered(self, answer: str, stray: Stray, message: Any, discard: Callable[[], None]) -> None:
        job = keys.decode_job(stray.job)
        if answer == "nobody":
            logger.error("No live worker has job %s: run %s becomes a dead letter", job, stray.id)
            discard()
        elif answer in ("wait", "drop"):
            logger.info("Run %s came to this worker, which lacks job %s: %s", stray.id, job, answer)
            message.ack_log_error(logger, self._runtime.connection_errors)
        elif not self._runtime.gate.stopping:
            self._loop.later(LATER, lambda: self._ask(stray, message, discard))

    def take_in(self, messages: Iterable[bytes], consumer: Any) -> None:
        """As if the broker had delivered them here. The ledger has them until their runs are admitted."""
        for packed in messages:
            try:
                message, payload = Envelope.unpack(packed).as_message(self._runtime.accept), None
                if "task" not in message.headers:
                    payload = message.payload
                task = (payload or message.headers)["task"]
                consumer.strategies[task](message, payload, noop, noop, consumer.on_task_message)
            except Exception:
                logger.exception("A run whose message came to another worker cannot be taken in")

"""Strays: messages of jobs that this worker's code lacks.

While workers of two releases serve a queue, a message may come to a worker whose release lacks its job. Celery would
discard it. The ledger knows which releases have the job. So it keeps the message, and gives it to a worker that has the
job. That worker takes it in as if the broker had delivered it. If no live worker has the job, the message is discarded
as Celery does it, and the ledger keeps it as a dead letter.

Everything here happens in the worker's event loop, except :meth:`Strays.take_in`, which any thread may call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.utils.time import maybe_iso8601

from celery_orchestration.job import queues
from celery_orchestration.job.envelope import HEADER, Envelope
from celery_orchestration.job.options import Priority
from celery_orchestration.ledger import Stray, keys
from celery_orchestration.worker import internals
from celery_orchestration.worker.loop import InLoop, Loop
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.publications import publication_of
from celery_orchestration.worker.state import GateState

logger = get_logger(__name__)

#: Seconds until the ledger is asked again if it could not decide yet about a message.
ASK_AGAIN_SECONDS = 1.0


class Strays:
    def __init__(
        self,
        state: GateState,
        loop: Loop,
        in_loop: InLoop,
        consumer: Any,
        consumers: Callable[[], list[Any]],
        notices: Notices,
        default_queue: str,
        accept: Any,
    ) -> None:
        """`consumer`: Celery's consumer. `consumers()`: kombu's consumers of the present connection. `accept`: content
        types that may be read."""
        self._state = state
        self._loop = loop
        self._in_loop = in_loop
        self._consumer = consumer
        self._consumers = consumers
        self._notices = notices
        self._default_queue = default_queue
        self._accept = accept

    def message_came(self, message: Any, discard: Callable[[], None]) -> None:
        """`discard()` discards it as Celery does. The message stays unacknowledged until the ledger has answered."""
        try:
            stray = self._read(message)
        except Exception as exc:
            logger.error("A message of an unknown task cannot be kept, and is discarded: %r", exc)
            return discard()
        return self._ask(stray, message, discard)

    def _read(self, message: Any) -> Stray:
        headers = message.headers or {}
        described = headers if "task" in headers else message.payload
        ours: Any = headers.get(HEADER)
        ours = ours if isinstance(ours, dict) else {}
        origin = {part: ours.get(part) for part in ("exchange", "routing_key")} if ours.get("grant") else None
        publication, anonymous = publication_of(message, ours)
        queue = (origin or {}).get("routing_key") or internals.consumer.queue_of(message, self._consumers())
        id, expires = str(described["id"]), maybe_iso8601(described.get("expires"))
        for text in (id, queue):
            text.encode()
        return Stray(
            id=id,
            attempt=keys.attempt(described.get("replaced_task_nesting") or 0, described.get("retries") or 0),
            job=keys.encode_job(described["task"]),
            priority=int(Priority.NORMAL),  # the worker that takes it in sends the job's own priority
            grant=ours.get("grant", ""),
            expires_ms=int(expires.timestamp() * 1000) if expires else None,
            queue=queue,
            granted_queue=queues.granted_queue_for(queue, self._default_queue),
            message=Envelope.of(message, origin, publication).pack(),
            publication=publication,
            anonymous=anonymous,
        )

    def _ask(self, stray: Stray, message: Any, discard: Callable[[], None]) -> None:
        self._notices.ask_for_stray(
            stray, lambda answer: self._in_loop(lambda: self._answered(answer, stray, message, discard))
        )

    def _answered(self, answer: str, stray: Stray, message: Any, discard: Callable[[], None]) -> None:
        job = keys.decode_job(stray.job)
        if answer == "nobody":
            logger.error("No live worker has job %s: run %s becomes a dead letter", job, stray.id)
            discard()
        elif answer in ("wait", "drop"):
            why = "the ledger keeps it" if answer == "wait" else "the ledger knows it already"
            logger.info("Run %s came to this worker, which lacks job %s: %s", stray.id, job, why)
            message.ack_log_error(logger, self._consumer.connection_errors)
        elif not self._state.stopping:
            self._loop.later(ASK_AGAIN_SECONDS, lambda: self._ask(stray, message, discard))

    def take_in(self, messages: Sequence[bytes]) -> None:
        """From any thread: messages that came to workers without their job are taken in here, as if the broker had
        delivered them. The ledger has them until their runs are admitted."""
        if messages:
            self._in_loop(lambda: self._deliver(messages))

    def _deliver(self, messages: Sequence[bytes]) -> None:
        consumer = self._consumer
        for packed in messages:
            try:
                message, payload = Envelope.unpack(packed).as_message(self._accept), None
                if "task" not in message.headers:
                    payload = message.payload
                task = (payload or message.headers)["task"]
                consumer.strategies[task](message, payload, noop, noop, consumer.on_task_message)
            except Exception:
                logger.exception("A run whose message came to another worker cannot be taken in; the ledger keeps it")

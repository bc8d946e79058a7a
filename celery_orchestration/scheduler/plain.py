"""Sends fires of tasks that are no jobs of ours: as Celery's beat does."""

from __future__ import annotations

from time import monotonic
from typing import Any

from celery import Celery
from celery.result import denied_join_result
from celery.utils.log import get_logger

from celery_orchestration.scheduler.message import Call
from celery_orchestration.worker.publisher import UNREACHABLE

logger = get_logger(__name__)

#: Seconds until a broker that does not answer is tried again.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


class Sender:
    """One connection to the broker. While that does not answer, nothing is tried for a while."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._producer: Any = None
        self._wait, self._again_at = 0.0, 0.0

    def seconds_down(self) -> float:
        """How long nothing will be sent."""
        return max(0.0, self._again_at - monotonic())

    def send(self, call: Call, id: str) -> bool:
        """False if the broker does not answer; what is wrong with the call itself is raised."""
        try:
            self._put(call, id)
        except UNREACHABLE as exc:
            self.close()
            self._wait = min(LONGEST_WAIT, 2 * self._wait or FIRST_WAIT)
            self._again_at = monotonic() + self._wait
            logger.error("The broker does not take %s, again in %.0f s: %s", call.task, self._wait, exc)
            return False
        self._wait = 0.0
        return True

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

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.close()
            except Exception as exc:
                logger.debug("Closing the scheduler's connection: %r", exc)

"""Gives runs that may start to the execution pool, and makes requests for runs that were handed over.

Everything here happens in the worker's event loop, with one exception: a pool of threads or greenlets reports the end
of a run from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.exceptions import TaskRevokedError
from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.worker.request import create_request_cls
from celery.worker.state import task_reserved
from celery.worker.strategy import proto1_to_proto2

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Start
from celery_orchestration.worker import internals
from celery_orchestration.worker.arrivals import Jobs
from celery_orchestration.worker.custom import request_class
from celery_orchestration.worker.deadline import Deadline
from celery_orchestration.worker.loop import Loop, guarded
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.slots import Slots
from celery_orchestration.worker.state import GateState

logger = get_logger(__name__)

#: Seconds between looks at whether a killed process is gone.
GONE_INTERVAL = 0.02


class Execution:
    def __init__(
        self,
        state: GateState,
        loop: Loop,
        slots: Slots,
        consumer: Any,
        app: Celery,
        accept: Any,
        jobs: Jobs,
        notices: Notices,
        deadline: Deadline | None,
    ) -> None:
        """`consumer`: Celery's consumer. `accept`: content types that messages may have. `deadline`: for runs that stop
        when their worker's lease is lost; None if no job asks for that."""
        self._state = state
        self._loop = loop
        self._slots = slots
        self._consumer = consumer
        self._app = app
        self._accept = accept
        self._jobs = jobs
        self._notices = notices
        self._deadline = deadline
        self._request_classes: dict[str, type[OrchestratedRequest]] = {}
        #: Handed-over runs that Celery's rate limit holds back.
        self._rate_limited: set[OrchestratedRequest] = set()

    def reconnected(self) -> list[OrchestratedRequest]:
        """There is a new connection to the broker. Returns runs that the rate limit held back: Celery forgot them with
        the old connection."""
        self._request_classes = {}
        return self.take_rate_limited()

    def take_rate_limited(self) -> list[OrchestratedRequest]:
        limited, self._rate_limited = self._rate_limited, set()
        return list(limited)

    # -- a run starts -------------------------------------------------------------------------------

    def waits_for_rate_limit(self, request: OrchestratedRequest) -> bool:
        """A run that was handed over has not passed Celery's rate limit yet: if there is one, the run goes there."""
        bucket = self._consumer.task_buckets[request.task.name] if request.message.channel is None else None
        if bucket:
            self._rate_limited.add(request)
            self._consumer._limit_task(request, bucket, 1)
        return bool(bucket)

    def execute(self, request: OrchestratedRequest) -> None:
        """Executes a run that has started and has a slot."""
        request.in_slot = True
        self._rate_limited.discard(request)
        if self._deadline is not None and request.stops_with_lease() and self._deadline.has_passed():
            # Its process would be ended at once. It goes back after a second: at once it might be handed over to us
            # again.
            self._slots.not_used()
            return self._loop.later(1.0, lambda: request.settle("returned"))
        if request.problem is not None:
            self._slots.not_used()
            return guarded(request.fail, request.problem)
        try:
            result = request.execute_now(self._consumer.pool)
        except Exception as exc:
            self._slots.not_used()
            return guarded(self._not_taken, request, exc)
        if result is None and request.time_start is None and not request.settled:
            self._slots.not_used()  # the pool is closing
            return request.settle("returned")
        # Threads and gevent may drop a run that they accepted, without a callback.
        if hasattr(result, "f"):
            request.pool_result = result
            result.f.add_done_callback(lambda _: self._left_the_pool(request))
        elif hasattr(result, "link"):
            request.pool_result = result
            result.link(lambda _: self._left_the_pool(request))
        return None

    @staticmethod
    def _not_taken(request: OrchestratedRequest, exc: Exception) -> None:
        if isinstance(exc, TaskRevokedError):
            request.settle("revoked")
        elif isinstance(exc, RuntimeError | OSError):
            logger.error(
                "Run %s of job %s could not be given to the execution pool, and waits again: %r",
                request.run_id,
                request.task.name,
                exc,
            )
            request.settle("returned")
        else:  # another worker's execution pool would refuse it, too
            request.fail(exc)

    @staticmethod
    def _left_the_pool(request: OrchestratedRequest) -> None:
        if not request.settled:
            request.settle("crashed" if request.time_start else "returned")

    # -- runs that were handed over -----------------------------------------------------------------

    def request_of(self, start: Start) -> OrchestratedRequest | None:
        """A request for a run that the ledger handed over to this worker; None if its message cannot be read."""
        try:
            request = self._new_request(start)
        except Exception:
            logger.exception("Run %s was handed over, but its message cannot be read: the run fails", start.id)
            self._notices.fail_unreadable(start.id, start.fence)
            return None
        task_reserved(request)
        if not request.received:  # the run of a fire may never have been a message
            request.send_received()
        return request

    def _new_request(self, start: Start) -> OrchestratedRequest:
        consumer, app = self._consumer, self._app
        message = Envelope.unpack(start.message).as_message(self._accept)
        headers, body, decoded, utc = message.headers, message.body, False, app.uses_utc_timezone()
        if "task" not in headers:
            body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
        task = app.tasks[headers["task"]]
        request = self._class_for(task)(
            message,
            on_ack=noop,
            on_reject=noop,
            app=app,
            hostname=consumer.hostname,
            eventer=consumer.event_dispatcher,
            task=task,
            connection_errors=consumer.connection_errors,
            body=body,
            headers=headers,
            decoded=decoded,
            utc=utc,
        )
        if task.orchestration.key is not None:
            _, request.problem = self._jobs.room_key(task.name, request.args, request.kwargs)
        return request

    def _class_for(self, task: Any) -> type[OrchestratedRequest]:
        if task.name not in self._request_classes:
            self._request_classes[task.name] = create_request_cls(
                request_class(task),
                task,
                self._consumer.pool,
                self._consumer.hostname,
                self._consumer.event_dispatcher,
                app=self._app,
            )
        return self._request_classes[task.name]

    # -- a run's process ----------------------------------------------------------------------------

    def process_of(self, request: OrchestratedRequest) -> Any:
        return internals.pool.process_of(self._consumer.pool, request.worker_pid)

    def when_gone(self, process: Any, then: Callable[[], None]) -> None:
        """Calls `then` when the process is gone. A time limit is announced before the child is killed, but room is
        freed only when the code is gone."""
        if process is None or internals.pool.is_gone(process) or self._state.stopping:
            return then()
        return self._loop.later(GONE_INTERVAL, lambda: self.when_gone(process, then))

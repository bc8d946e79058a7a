"""Where Celery's worker starts and stops us: two bootsteps, added by the first job that an app binds."""

from __future__ import annotations

from typing import Any

from celery import bootsteps
from celery.utils.log import get_logger

from celery_orchestration.job import queues
from celery_orchestration.job.app import settings_of
from celery_orchestration.worker import internals, remote  # noqa: F401  (a command of remote control)
from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)


class Boot(bootsteps.StartStopStep):  # type: ignore[misc]
    """In the worker's blueprint: set up before all other steps, stopped after the execution pool."""

    label = "Orchestration"

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        worker.orchestration = None
        super().__init__(worker, **kwargs)

    def include_if(self, worker: Any) -> bool:
        settings = settings_of(worker.app)
        if settings.mode != "off":
            return True
        # Producers may still send to our queues, so a worker without a gate serves them like any other queue.
        if not internals.consumer.queues_were_chosen(worker.app):
            for name in (queues.granted_name(queues.DEFAULT_POOL), *queues.pool_queues(queues.DEFAULT_POOL)):
                if queues.can_be_used(worker.app, name):
                    worker.app.amqp.queues.select_add(queues.declared(worker.app, name))
        logger.warning("Orchestration is off: jobs run as plain tasks")
        return False

    def create(self, worker: Any) -> None:
        internals.verify()
        worker.orchestration = WorkerRuntime(worker)
        worker.orchestration.check_ledger()
        worker.orchestration.log_defaults()

    def include(self, worker: Any) -> bool:
        included, self.obj = self._should_include(worker)
        if included:
            # Steps are stopped in reverse order: outcomes come in until the pool is down.
            worker.steps.insert(0, self)
        return bool(included)

    def start(self, worker: Any) -> None:
        pass

    def close(self, worker: Any) -> None:
        worker.orchestration.close()

    def stop(self, worker: Any) -> None:
        worker.orchestration.stop()

    terminate = stop


class GateStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """In the consumer's blueprint: started with every connection to the broker."""

    label = "Gate"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        return getattr(consumer.controller, "orchestration", None) is not None

    def create(self, consumer: Any) -> None:
        consumer.controller.orchestration.before_connecting(consumer)

    def start(self, consumer: Any) -> None:
        consumer.controller.orchestration.connected(consumer)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        consumer.controller.orchestration.register_with_hub()

    def stop(self, consumer: Any) -> None:
        consumer.controller.orchestration.disconnect()

    def terminate(self, consumer: Any) -> None:
        consumer.controller.orchestration.disconnect()

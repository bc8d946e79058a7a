"""Coordination for the background jobs of a Celery project, on stock Celery workers.

A **job** is one orchestrated task; a **run** is one execution of it. This is a run's life, and the modules in the
order in which it meets them:

1. A job is declared: ``task`` is its base class, ``policy`` checks and completes its options, ``graph`` looks at
   how jobs depend on and block each other. ``queues`` routes its messages by pool and priority.
2. A message arrives at a worker; on a Redis broker ``worker.fetch`` keeps it safe until it is acknowledged. Its
   ``worker.request`` does not go to the execution pool at once: ``worker.admission`` gives it a slot, and
   ``worker.turns`` asks the ledger (``ledger``, verb ``turn``) whether the run may start: the **gate**. If the worker's
   code lacks the job, ``worker.strays`` leaves the message to a worker that has it.
3. It may: it holds **room** under its worker's **lease** and a **fence**, and ``worker.execution`` gives it to the
   execution pool. It may not: its whole message is kept in the ledger (``envelope``), the broker's copy is
   acknowledged, and the run **waits**; ``worker.timers`` wakes the worker when a run is due.
4. A run ends: ``worker.request`` hears it, ``worker.settlement`` keeps its outcome until the next turn has reported it,
   and the room goes to the waiting runs that may start. They are **handed over**: started in the slot that just came
   free, or published by ``node.publisher``; ``worker.sharing`` shares those that no slot is free for. While it runs it
   may report its ``progress``. ``limits`` and ``worker.limits`` enforce time limits where the execution pool cannot.
5. ``worker.heartbeat`` (``worker.watchdog`` replaces it if it hangs) renews the lease, and sweeps: runs of dead workers
   go back to their queues, due runs go to the gate, lost messages are published again, expired runs end.
   If it cannot renew, ``worker.deadline`` ends runs of ``on_lease_lost="stop"`` before the lease can expire.
6. A worker stops: ``worker.drain`` tells the ledger, and after ``drain_seconds`` ends the runs that go on there; they
   go back to their queues.
7. Redis is emptied, restarted or fails over: ``worker.epoch`` claims this worker's runs, and nothing starts for one
   lease. ``node.eviction`` refuses a Redis that would delete parts of the ledger.
8. Runs also come from the schedule: ``scheduler`` is Celery's beat, any number of processes of which one leads. A fire
   is dispatched in the ledger (verb ``dispatch``), where it is granted, or waits without ever having been a message.

``pools`` runs groups of workers of the right size, on any number of machines; ``worker.supervised`` is their side.

``operate`` shows all this to people and their scripts, ``cli`` on the terminal.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_orchestration.job.options import Dependency, External, Priority
    from celery_orchestration.job.pool import Pool
    from celery_orchestration.job.task import OrchestratedTask
    from celery_orchestration.operate import Orchestration
    from celery_orchestration.pools.autoscaler import QueueAutoscaler
    from celery_orchestration.scheduler import OrchestratedScheduler

__version__ = "0.1.0.dev0"
__all__ = [
    "Dependency",
    "External",
    "OrchestratedScheduler",
    "OrchestratedTask",
    "Orchestration",
    "Pool",
    "Priority",
    "QueueAutoscaler",
]

#: Where the public names are: loaded when they are asked for, because every ``celery`` command loads this package for
#: its plugin, and tasks need neither the operators' client nor the scheduler.
_MODULES = {
    "Dependency": "job.options",
    "External": "job.options",
    "OrchestratedScheduler": "scheduler",
    "OrchestratedTask": "job.task",
    "Orchestration": "operate",
    "Pool": "job.pool",
    "Priority": "job.options",
    "QueueAutoscaler": "pools.autoscaler",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found  # once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

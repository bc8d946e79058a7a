"""Coordination for the background jobs of a Celery project, on stock Celery workers.

A **job** is one orchestrated task; a **run** is one execution of it. This is a run's life, and the modules in the
order in which it meets them:

1. A job is declared. ``job.task`` is its base class, ``job.options`` reads its options, ``job.policy`` fills in the
   defaults, and ``job.graph`` checks how jobs depend on and block each other. ``job.queues`` routes its messages by
   pool and priority.
2. A message arrives at a worker. On a Redis broker ``worker.fetch`` keeps it safe until it is acknowledged. If the
   worker's code lacks the job, ``worker.strays`` leaves the message to a worker that has it. ``worker.request`` sends
   the run to the gate instead of the execution pool: ``worker.admission`` gives it a slot, and ``worker.turns`` asks
   the ledger (``ledger``, verb ``turn``) whether it may start. That decision is the **gate**.
3. If it may start, it holds **room** under its worker's **lease** with a **fence**, and ``worker.execution`` gives it
   to the execution pool. If it may not, the ledger keeps its whole message (``job.envelope``), the broker's copy is
   acknowledged, and the run **waits**. ``worker.timers`` wakes the worker when a run is due.
4. While it runs, it may report its progress (``job.progress``). ``job.limits`` and ``worker.limits`` enforce time
   limits where the execution pool cannot.
5. The run ends. ``worker.request`` learns of it, ``worker.settlement`` keeps the outcome until a turn has reported it,
   and the ledger gives the room to waiting runs that may start. They are **handed over**: they start in the slot that
   became free, or ``node.publisher`` publishes them. ``worker.sharing`` shares those for which no slot is free.

Beside this path:

- ``node.heartbeat`` is the thread that renews the lease and sweeps; ``worker.heartbeat`` adds what only workers do.
  In a sweep, runs of dead workers wait again, due runs go to the gate, lost messages are published again,
  and expired runs end. ``worker.watchdog`` replaces a heartbeat that hangs. If the lease cannot be renewed,
  ``worker.deadline`` ends runs of ``on_lease_lost="stop"`` before it can expire.
- ``worker.drain`` stops a worker: after ``drain_seconds`` it ends the runs that are left, which go back to their
  queues.
- ``worker.epoch`` claims this worker's runs after Redis was emptied, restarted or replaced; nothing starts for one
  lease. ``node.eviction`` refuses a Redis that would delete parts of the ledger.
- ``scheduler`` is Celery's beat. Any number of processes may run it, and one leads. A fire is dispatched in the ledger
  (verb ``dispatch``), where its run is granted, or waits without ever having been a message.
- ``pools`` runs groups of workers of the right size, on any number of machines; ``worker.supervised`` is the part in
  the worker.
- ``operate`` shows all this to people and their scripts, ``cli`` on the terminal, ``web`` in the browser.
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

"""The beat scheduler: any number of processes, one leads.

In the order of a fire: ``entries`` says what fires, ``documents`` what people added to that, ``times`` when; ``term``
is who leads; ``dispatcher`` looks in its ``agenda`` what is due, makes the ``fires`` with their ``message`` and asks
the ledger (verb ``dispatch``); ``plain`` sends tasks that are no jobs. ``side`` holds them together, ``beat`` is the
class that Celery's beat makes.
"""

from celery_orchestration.scheduler.beat import OrchestratedScheduler

__all__ = ["OrchestratedScheduler"]

"""The beat scheduler: any number of processes, one leads.

In the order of a fire: ``entries`` says what fires, ``times`` when; ``term`` is who leads; ``dispatcher`` looks what is
due, makes its ``message`` and asks the ledger (verb ``dispatch``). ``side`` holds them together, ``beat`` is the class
that Celery's beat makes.
"""

from celery_orchestration.scheduler.beat import OrchestratedScheduler

__all__ = ["OrchestratedScheduler"]

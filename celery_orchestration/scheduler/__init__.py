"""The beat scheduler: any number of processes, one leads.

In the order of a fire: ``entries`` reads the schedule from the code, ``entry_documents`` the entries that people added
at run time, ``times`` computes due times. ``leadership`` holds the term of the leader. ``dispatcher`` is the leader's
loop: ``entry_table`` adopts the entries in the ledger, ``due_queue`` orders them by time, ``fire_factory`` makes fires
with their ``message``, and the ledger decides about them (verb ``dispatch``). ``plain_sender`` sends plain tasks, which
are not jobs. ``hooks`` detects code that patches the sending of tasks; ``apply_entry`` then sends fires through
Celery's method of that name. ``runtime`` holds these parts together; ``beat`` has the class that ``celery beat``
creates.
"""

from celery_orchestration.scheduler.beat import OrchestratedScheduler

__all__ = ["OrchestratedScheduler"]

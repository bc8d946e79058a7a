"""The worker's part of the orchestration.

In the order in which a run meets them: ``bootsteps`` (Celery starts us), ``runtime`` (owns the parts), ``fetch`` (takes
messages from a Redis broker), ``request`` (a job's request), ``gate`` (asks the ledger, starts, settles), ``turns``
(carries the questions), ``heartbeat`` (renews the lease, sweeps), ``drain`` (the worker stops). ``remote`` answers
``celery inspect``. ``slots`` and ``loop`` hold the differences between execution pools, ``internals`` every reach into
Celery's internals. What a worker shares with a scheduler is in ``celery_orchestration.node``.
"""

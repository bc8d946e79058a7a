"""The gate in the worker.

In the order in which a run meets them: ``steps`` (Celery starts us), ``side`` (owns the parts), ``request`` (a job's
request), ``gate`` (asks the ledger, starts, settles), ``line`` (carries the questions), ``keeper`` (leases and sweeps),
``publisher`` (hands over), ``drain`` (the worker stops). ``remote`` is what it says when it is asked. ``slots`` and
``loop`` are the differences between execution pools, ``policies`` those between releases, ``internals`` every reach
into Celery's inside.
"""

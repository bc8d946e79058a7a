"""The worker's part of the orchestration.

Celery starts us through ``bootsteps``; ``runtime`` builds the parts and connects them. ``fetch`` takes messages from a
Redis broker, ``prefetch`` bounds what RabbitMQ sends, ``consuming`` serves the queues.

A run's path: ``request`` (Celery's request for a job), ``admission`` (slots, in the order of rank), ``turns`` (a round
trip to the ledger) with its ``carrier``, ``execution`` (the execution pool), ``settlement`` (the run ends). ``gate``
connects these parts, and opens and closes the gate; ``timers`` and ``sharing`` are beside it.

``heartbeat`` renews the lease, sweeps and delivers ``notices``; ``watchdog`` replaces it if it hangs; ``epoch`` claims
our runs when the ledger may have forgotten them. ``drain`` stops the worker. ``remote`` and ``reports`` answer ``celery
inspect``. ``slots`` and ``loop`` hold the differences between execution pools, ``internals`` every use of Celery's
internals. Code that workers and schedulers share is in ``celery_orchestration.node``.
"""

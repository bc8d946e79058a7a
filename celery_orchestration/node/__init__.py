"""What workers and schedulers share. Both are nodes: they take part in the ledger with the jobs of their code.

``presence`` (the node itself), ``heartbeat`` (renews the lease, sweeps), ``releases`` (policies of all live releases),
``publisher`` (publishes handed-over runs), ``decisions`` (remembers decisions of people), ``stores`` (messages that
workers fetched from a Redis broker), ``left_stores`` (gives back stores of dead workers), ``eviction`` (refuses a Redis
that evicts keys), ``backoff`` (waits between tries).
"""

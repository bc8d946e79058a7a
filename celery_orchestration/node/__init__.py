"""Nodes: workers and schedulers, which take part in the ledger with the jobs of their code. What both need is here.

``presence`` (the node itself), ``heartbeat`` (renews the lease, sweeps), ``releases`` (policies of all live releases),
``publisher`` (publishes handed-over runs), ``decisions`` (remembers decisions of people), ``stores`` (messages that
workers fetched from a Redis broker), ``recovery`` (gives back those of dead workers), ``eviction`` (refuses a Redis
that evicts keys), ``backoff`` (waits between tries).
"""

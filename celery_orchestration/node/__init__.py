"""What workers and schedulers share: processes that take part in the ledger with the jobs of their code.

``presence`` (who they are), ``heartbeat`` (renews the lease, sweeps), ``releases`` (their policies),
``publisher`` (publishes handed-over runs), ``decisions`` (remembers what people decided), ``stores`` (messages that
workers fetched from a Redis broker), ``eviction`` (refuses a Redis that evicts), ``backoff``.
"""

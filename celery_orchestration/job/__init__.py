"""A job as its code declares it.

``task`` (the base class), ``policy`` (options and settings), ``graph`` (who depends on and blocks whom), ``rules`` (the
gate's decision, pure), ``queues`` (routing), ``envelope`` (a message in the ledger), ``limits``, ``progress`` and
``tracing``.
"""

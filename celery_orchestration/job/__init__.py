"""A job as its code declares it.

``task`` is the base class, ``options`` the options that people write on it, ``policy`` their values with all defaults.
``pool`` and ``settings`` hold the settings of the app, which ``app`` reads. ``graph`` relates jobs to each other,
``rules`` is the gate's decision (pure), ``queues`` routes messages. A run that executes uses ``current_run``,
``limits``, ``progress`` and ``tracing``; ``envelope`` is a message that the ledger keeps.
"""

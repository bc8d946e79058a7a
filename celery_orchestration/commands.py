"""The names of our remote control commands."""

#: ``celery inspect orchestration``.
INSPECT = "orchestration"
#: Makes a worker serve a queue of the default pool.
SERVE = "orchestration_serve"
#: Makes a worker sweep at once, because the ledger has something to do.
SWEEP = "orchestration_sweep"

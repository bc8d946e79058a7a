"""The names of our remote control commands, for those who send them and those who answer."""

#: ``celery inspect orchestration``.
INSPECT = "orchestration"
#: A worker begins to serve a queue of the default pool.
SERVE = "orchestration_serve"
#: A worker sweeps now: somebody left something in the ledger to be carried out.
SWEEP = "orchestration_sweep"

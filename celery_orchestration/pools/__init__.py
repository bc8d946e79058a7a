"""Pools: groups of worker processes with their own queues, kept at the right size on any number of machines.

``backlog`` reads the broker's queues, ``pool_snapshot`` combines them with the ledger's records, ``decide`` computes
how many workers a pool needs (pure), ``places`` shares them among machines. ``supervisor`` runs the workers of one
machine: ``pool_scaling`` is one pool, ``place_worker`` one place and its worker, ``worker_process`` one process,
``machine`` the processors and memory that are left. ``up`` runs everything on one machine.
"""

"""Pools: groups of worker processes with queues of their own, kept at the right size on any number of machines.

``figures`` gathers what a pool has to do, ``decide`` says how many workers that needs (pure), ``places`` shares them
among the machines, ``supervisor`` starts and stops them on one machine (``worker_process``: one of them; ``machine``:
how much of it is left).
"""

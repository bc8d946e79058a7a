"""The soak: a load of mixed jobs while children, workers and Redis are killed at random; then I1 to I5 are checked.

``make soak SEED=7 SECONDS=120``. The modules in the order in which a soak uses them:

- ``plan``: from a seed, the calls and the faults with their times. Pure.
- ``journal``: events besides the executions themselves: sends, faults, deliveries, outcomes and the ledger's answers.
- ``crew``: real servers and workers, and the faults that happen to them.
- ``run``: carries out the plan on them, until nothing is left to do.
- ``story``: everything that was recorded. ``checks``: what must hold (I1 to I5), derived from the story alone. Pure.
- ``report``: what was done and what was found, for people.

The same seed gives the same plan. The operating system may schedule it differently each time: a repeated plan has the
same faults at the same moments of the load, but they may interrupt the code at another instruction.
"""

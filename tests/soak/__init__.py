"""The soak: a load of mixed jobs while children, workers and Redis are killed at random; then I1 to I5 are checked.

``make soak SEED=7 SECONDS=120``. In the order in which a soak meets them:

- ``plan``: from a seed, what is sent and what is broken, and when. Pure.
- ``journal``: what happened besides the executions themselves: sends, faults, deliveries, outcomes and their answers.
- ``crew``: real servers and workers, and what befalls them.
- ``run``: carries the plan out on them, until everything came to rest.
- ``story``: all that is known afterwards; ``checks``: what must hold (I1 to I5), found out from the story alone. Pure.
- ``report``: what was done and what was found, for people.

The same seed gives the same plan. What the operating system makes of it differs each time: a replay meets the same
faults at the same moments of the load, and perhaps another instant of the code.
"""

"""What the extension costs, compared with plain Celery and with common recipes that do without the extension.

``python -m bench`` (``make bench``) runs these parts, each with servers and workers of its own:

- ``throughput`` (a): empty tasks on a stock worker: plain, celery-singleton, ours
- ``exclusive`` (b): runs that must not overlap, on two workers: ours and two recipes with a Redis lock
- ``ledger`` (c): the scripts alone, with few and with many waiting runs, and how much of Redis's memory a run takes
- ``times`` (d): runs with a start time
- ``schedule`` (e): schedulers: Celery's own, celery-redbeat, ours
- ``plugin`` (f): how much longer any ``celery`` command takes with the extension installed
- ``commands`` (g): ``status`` and other commands on a large ledger, and Celery's own commands
- ``pools`` (h): groups of workers that are scaled, isolated and killed; and an idle supervisor
- ``idle`` (i): idle workers
- ``scale`` (j): a large installation, simulated
- ``kills`` (k): workers that are killed
- ``dashboard`` (l): the dashboard

``apps``, ``pool_apps`` and ``crowd`` hold the tasks that are measured, ``fill`` queues them, ``stage`` has the servers
and workers, ``figures`` has the goal of each figure, and ``report`` shows the figures. A missed goal does not change
the exit code: a figure is a fact about a machine, not a test.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

# Servers and workers are started with the helpers of the tests, which leave no process behind.
if str(PROJECT / "tests") not in sys.path:
    sys.path.append(str(PROJECT / "tests"))

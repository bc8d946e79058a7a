"""What the extension costs, measured against plain Celery and against what people do without it.

``python -m bench`` (``make bench``) runs these parts, each with servers and workers of its own:

- ``throughput``: empty tasks through a stock worker: plain, celery-singleton, ours
- ``exclusive``: runs that must not overlap, over two workers: ours and two recipes with a Redis lock
- ``ledger``: the scripts alone, with few and with many waiting runs, and what a run takes of Redis's memory
- ``times``: runs that are not to start at once
- ``schedule``: the scheduler: Celery's own, celery-redbeat, ours
- ``plugin``: what any ``celery`` command takes longer with the extension installed
- ``pools``: groups of workers that are scaled, kept apart, killed; and an idle supervisor
- ``look``: what an operator waits for: ``status`` and other commands on a large ledger, beside Celery's own

``apps`` and ``crowd`` hold the tasks that are measured, ``fill`` queues them, ``figures`` says what each figure must
reach and ``report`` shows them. Nothing here judges by its exit code: a figure is a fact of a machine, not a test.
"""

import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

# Servers and workers are started with the means of the tests, which leave no process behind.
if str(PROJECT / "tests") not in sys.path:
    sys.path.append(str(PROJECT / "tests"))

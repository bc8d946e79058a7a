"""An app whose schedule a test chooses: TEST_SCHEDULE is a JSON object.

``jobs``: names and options of jobs; ``plain``: names of tasks that are no jobs; ``entries``: of ``beat_schedule``;
``conf``: Celery's settings. A call says how long a task lasts, and ``until`` names a file that ends it. For fires, a
job's own ``seconds`` and ``until`` count. TEST_CHAIN adds this many hourly jobs, each of which depends on the one
before.

TEST_STRIKE stops or ends the process at a given call (:mod:`support.strikes`), TEST_CLOCK moves its clock
(:mod:`support.clocks`).
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.beat import BeatLazyFunc

from celery_orchestration import OrchestratedTask
from support import clocks, strikes
from support.history import recorded
from support.wait import until as wait_until

written: dict[str, Any] = json.loads(os.environ.get("TEST_SCHEDULE", "{}"))

app = Celery(
    os.environ.get("TEST_MAIN", "scheduled"),
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
app.conf.orchestration_lease_seconds = float(os.environ.get("TEST_LEASE", "3"))
app.conf.orchestration_sweep_seconds = float(os.environ.get("TEST_SWEEP", "0.5"))
app.conf.orchestration_term_seconds = float(os.environ.get("TEST_TERM", "1.5"))
app.conf.orchestration_history = 10_000
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.update(written.get("conf", {}))


def work(self: Task, seconds: float, note: Any, until: str | None) -> Any:
    with recorded(self, note=note):
        if until is None:
            time.sleep(seconds)
        else:
            path = Path(os.environ["TEST_SCRATCH"]) / until
            wait_until(path.exists, 60, f"{path} is there", poll=0.01)
    return note


def _task(name: str, lasts: float = 0, held: str | None = None, **options: Any) -> Any:
    def function(self: Task, note: Any = None, seconds: float = lasts, until: str | None = held) -> Any:
        return work(self, seconds, note, until)

    return app.task(bind=True, name=name, **options)(function)


def _job(name: str, seconds: float = 0, until: str | None = None, **options: Any) -> Any:
    return _task(name, seconds, until, base=OrchestratedTask, **options)


tasks = {name: _task(name) for name in written.get("plain", [])}
tasks |= {name: _job(name, **options) for name, options in written.get("jobs", {}).items()}

for number in range(int(os.environ.get("TEST_CHAIN", "0"))):
    before = [f"chain.{number - 1}"] if number else []
    tasks[f"chain.{number}"] = _job(f"chain.{number}", interval_seconds=3600, depends_on=before)

_calls = itertools.count(1)
app.conf.beat_schedule = {
    name: {
        **entry,
        **({"args": (BeatLazyFunc(lambda: next(_calls)),)} if entry.get("args") == "lazy" else {}),
    }
    for name, entry in written.get("entries", {}).items()
}

if clocks.VARIABLE in os.environ:
    clocks.follow(os.environ[clocks.VARIABLE])
if "TEST_STRIKE" in os.environ:
    strikes.install(os.environ["TEST_STRIKE"])

"""Jobs whose policies differ from release to release: TEST_POLICIES is a JSON object of job names and their options."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.history import recorded
from support.wait import until

app = Celery(
    "releases",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
)
app.conf.broker_connection_retry_on_startup = True
app.conf.orchestration_lease_seconds = 3.0
app.conf.orchestration_sweep_seconds = 0.5
if "TEST_CAP" in os.environ:
    app.conf.orchestration_max_running = int(os.environ["TEST_CAP"])


def _job(name: str, options: dict[str, Any]) -> Any:
    def held(self: Task, until_there: str) -> str:
        """Runs until the test makes a file of this name."""
        path = Path(os.environ["TEST_SCRATCH"]) / until_there
        with recorded(self, note=until_there):
            until(path.exists, 60, f"{path} is there", poll=0.01)
        return until_there

    return app.task(base=OrchestratedTask, bind=True, name=name, **options)(held)


jobs = {name: _job(name, options) for name, options in json.loads(os.environ.get("TEST_POLICIES", "{}")).items()}

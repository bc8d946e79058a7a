"""A small pipeline: data is fetched, then processed, and cleaned up while it is not being processed.

celery -A examples.pipeline worker
celery -A examples.pipeline beat
celery -A examples.pipeline orchestration status

Start as many workers and beats as you like. With PIPELINE_PACE=20 in their environment a minute takes three seconds.
PIPELINE_SOURCE names a file to fetch from, PIPELINE_CLEANUP_SECONDS says how long cleaning up takes: for breaking it on
purpose, see docs/troubleshooting.md.
"""

import os
import time
from pathlib import Path

from celery import Celery

from celery_orchestration import OrchestratedTask

PACE = float(os.environ.get("PIPELINE_PACE", "1"))
SOURCE = os.environ.get("PIPELINE_SOURCE")
CLEANUP_SECONDS = float(os.environ.get("PIPELINE_CLEANUP_SECONDS", "2"))

app = Celery("pipeline", broker=os.environ.get("PIPELINE_REDIS", "redis://localhost:6379/0"))
app.conf.result_backend = app.conf.broker_url
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_term_seconds = max(1.0, 10 / PACE)
app.conf.orchestration_history = 10_000


@app.task(base=OrchestratedTask, interval_seconds=60 / PACE, timeout_seconds=30, priority="high")
def fetch_data():
    """Never runs twice at the same time: a recurring job has max_running=1."""
    if SOURCE and not Path(SOURCE).exists():
        raise ConnectionError(f"{SOURCE} cannot be reached")
    time.sleep(1.5)
    return "fetched"


@app.task(base=OrchestratedTask, interval_seconds=120 / PACE, depends_on=[fetch_data])
def process_data():
    """Waits while fetch_data runs, and until it has succeeded."""
    time.sleep(1.0)
    return "processed"


@app.task(
    base=OrchestratedTask, interval_seconds=3600 / PACE, priority="low", blocks=["examples.pipeline.process_data"]
)
def cleanup():
    """Never runs at the same time as process_data, whichever of them came first."""
    time.sleep(CLEANUP_SECONDS)
    return "cleaned up"

"""The layout of Celery's own tutorial: the app names the modules with its tasks."""

import os

from celery import Celery

app = Celery(
    "proj",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
    include=["proj.tasks"],
)
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"

if __name__ == "__main__":
    app.start()

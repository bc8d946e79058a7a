"""A project that Sentry or OpenTelemetry monitors; the data that they would send go to a file."""

import importlib
import os

from celery import Celery
from celery.schedules import crontab

app = Celery("watch", broker=os.environ["WATCH_REDIS"], backend=os.environ["WATCH_REDIS"], include=["watch.tasks"])
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.beat_schedule = {
    "plain": {"task": "watch.tasks.plain_tick", "schedule": crontab()},
    "broken": {"task": "watch.tasks.broken_plain_tick", "schedule": crontab()},
}

importlib.import_module(f"watch.with_{os.environ['WATCH_MONITOR']}")

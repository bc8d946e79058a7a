"""Settings of a small shop. The tests choose the rest through ``SHOP_*`` variables."""

import json
import os
from pathlib import Path

from celery.schedules import crontab

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "of the tests"
DEBUG = False
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_celery_beat",
    "django_celery_results",
    "company",
    "orders",
    "mailing",
    "reports",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "OPTIONS": {"timeout": 30},
    }
}

CELERY_BROKER_URL = os.environ["SHOP_REDIS"]
CELERY_RESULT_BACKEND = os.environ.get("SHOP_RESULTS", os.environ["SHOP_REDIS"])
CELERY_TIMEZONE = TIME_ZONE
CELERY_TASK_TRACK_STARTED = True
CELERY_BEAT_SCHEDULE = {
    "heartbeat": {"task": "reports.tasks.heartbeat", "schedule": 1.0, "args": ["beat_schedule"]},
    "once a year": {"task": "reports.tasks.nightly_report", "schedule": crontab(0, 3, day_of_month=1, month_of_year=1)},
}
CELERY_BEAT_SCHEDULER = os.environ.get("SHOP_BEAT", "celery_orchestration:OrchestratedScheduler")
globals().update(json.loads(os.environ.get("SHOP_SETTINGS", "{}")))

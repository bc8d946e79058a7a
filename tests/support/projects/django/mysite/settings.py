import os

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["orders"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}

CELERY_BROKER_URL = os.environ.get("TEST_BROKER", "memory://")
CELERY_RESULT_BACKEND = os.environ.get("TEST_BACKEND", "cache+memory://")
CELERY_BEAT_SCHEDULER = "celery_orchestration:OrchestratedScheduler"

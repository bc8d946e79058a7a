"""The layout of Celery's guide to Django: tasks are found in the installed apps."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")

app = Celery("mysite", task_cls="celery_orchestration.django:OrchestratedTask")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

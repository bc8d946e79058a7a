"""The layout of Celery's page on Django, with the one line that adopts the package."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop", task_cls=os.environ.get("SHOP_TASK_CLASS", "celery_orchestration.django:OrchestratedTask"))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

"""Jobs of a Django project, which send each other when a transaction is committed."""

from __future__ import annotations

import os

from celery import Celery, Task, shared_task
from django.db import transaction

from support.history import recorded

app = Celery(
    "django_shop",
    broker=os.environ.get("TEST_BROKER", "memory://"),
    backend=os.environ.get("TEST_BACKEND", "cache+memory://"),
    task_cls="celery_orchestration.django:OrchestratedTask",
)
app.conf.broker_connection_retry_on_startup = True


@shared_task(bind=True, max_running=1)
def ship(self: Task, number: int) -> None:
    with recorded(self, note=[number, self.request.delivery_info["routing_key"]]):
        pass


@shared_task(bind=True)
def order(self: Task, number: int, paid: bool) -> int:
    with transaction.atomic():
        ship.apply_async_on_commit((number,), priority="high")
        ship.delay_on_commit(number)
        if not paid:
            raise ValueError("not paid")
    return number

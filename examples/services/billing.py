"""The billing service: it writes invoices, and closes the books.

celery -A examples.services.billing worker -n billing@%h -Q billing.normal
celery -A examples.services.billing beat --pidfile billing.pid
"""

import os
import time

from celery import Celery

from celery_orchestration import External, OrchestratedTask

PACE = float(os.environ.get("SERVICES_PACE", "1"))

app = Celery("billing", broker=os.environ.get("SERVICES_REDIS", "redis://localhost:6379/0"))
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_namespace = "company"


class Job(OrchestratedTask):
    """Every job of this service runs on this service's own workers."""

    abstract = True
    pool = "billing"


@app.task(base=Job, name="billing.invoice", interval_seconds=60 / PACE)
def invoice():
    time.sleep(0.5)
    return "invoiced"


@app.task(base=Job, name="billing.close_books", max_running=1, blocks=[External("shop.export")])
def close_books(seconds=5.0):
    """Never at the same time as the shop's export."""
    time.sleep(seconds)
    return "closed"

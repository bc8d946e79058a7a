"""The shop: it ships what billing has invoiced, and exports its orders.

celery -A examples.services.shop worker -n shop@%h -Q shop.normal
celery -A examples.services.shop beat --pidfile shop.pid
"""

import os
import time

from celery import Celery

from celery_orchestration import External, OrchestratedTask

PACE = float(os.environ.get("SERVICES_PACE", "1"))

app = Celery("shop", broker=os.environ.get("SERVICES_REDIS", "redis://localhost:6379/0"))
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_namespace = "company"


class Job(OrchestratedTask):
    """Every job of this service runs on this service's own workers."""

    abstract = True
    pool = "shop"


@app.task(base=Job, name="shop.ship", interval_seconds=60 / PACE, depends_on=[External("billing.invoice")])
def ship():
    """Waits while billing.invoice runs, and until it has succeeded."""
    time.sleep(0.5)
    return "shipped"


@app.task(base=Job, name="shop.export", max_running=1)
def export():
    """Waits while billing.close_books runs, which names it in ``blocks``."""
    return "exported"

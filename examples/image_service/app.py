"""The app: where its Redis is, and its table of pools."""

import os

from celery import Celery

from celery_orchestration import Pool

#: Where the jobs write their files, and where mail and webhooks go: see world.py.
OUTPUT = os.environ.get("IMAGE_SERVICE_OUTPUT", ".orchestration/image_service")
WORLD = os.environ.get("IMAGE_SERVICE_WORLD", "127.0.0.1")
SMTP_PORT = int(os.environ.get("IMAGE_SERVICE_SMTP_PORT", "8025"))
WEBHOOK_PORT = int(os.environ.get("IMAGE_SERVICE_WEBHOOK_PORT", "8026"))

app = Celery("examples.image_service", broker=os.environ.get("IMAGE_SERVICE_REDIS", "redis://localhost:6379/0"))
app.conf.include = ["examples.image_service.jobs"]
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_drain_seconds = 30
app.conf.orchestration_pools = {
    # These are heavy on the processor. They give way to all others, and may wait longer at peak times.
    "images": Pool(min=1, max=3, nice=10, target_wait_seconds=60),
    "documents": Pool(min=0, max=2, nice=5, target_wait_seconds=30),
    # These mostly wait for another server, so one process runs many at once.
    "email": Pool(min=1, max=2, kind="threads", concurrency=8, target_wait_seconds=2),
    "webhooks": Pool(min=0, max=2, kind="threads", concurrency=8),
    # This one serves jobs that name no pool.
    "default": Pool(min=1, max=1),
}

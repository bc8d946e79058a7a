"""A project that Sentry watches, set up as its documentation says: in the handlers of Celery's own signals."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import sentry_sdk
from celery import Celery, signals
from celery.schedules import crontab
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_orchestration import OrchestratedTask

app = Celery("monitored", broker=os.environ["PROJ_REDIS"], backend=os.environ["PROJ_REDIS"])
app.conf.update(
    beat_scheduler="celery_orchestration:OrchestratedScheduler",
    beat_schedule={
        name: {"task": f"monitored.{name}", "schedule": crontab()} for name in ("plain_good", "plain_bad")
    },
)


def note(**fields: Any) -> None:
    with Path(os.environ["SHOP_JOURNAL"]).open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(fields) + "\n")


class Journal(Transport):
    """Nothing leaves this machine."""

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type == "check_in":
                found = item.payload.json
                note(
                    event=found["status"],
                    task=found["monitor_slug"],
                    id=found["check_in_id"],
                    config=found["monitor_config"],
                )
            elif item.type == "transaction":
                for span in item.payload.json["spans"]:
                    if latency := span["data"].get("messaging.message.receive.latency"):
                        note(event="latency", task=span["description"], sent=time.time() - latency / 1000)


@signals.celeryd_init.connect
@signals.beat_init.connect
def init_sentry(**_: Any) -> None:
    sentry_sdk.init(
        dsn="http://key@localhost:1/1",
        transport=Journal(),
        traces_sample_rate=1.0,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    )


@app.task(base=OrchestratedTask, schedule=crontab(), name="job_good")
def job_good() -> None: ...


@app.task(base=OrchestratedTask, schedule=crontab(), max_retries=0, name="job_bad")
def job_bad() -> None:
    raise RuntimeError("bad")


@app.task
def plain_good() -> None: ...


@app.task
def plain_bad() -> None:
    raise RuntimeError("bad")


@app.task(bind=True, base=OrchestratedTask, interval_seconds=3, max_retries=0, name="often")
def often(self: Any) -> None:
    note(event="ran", task="often", trace=self.request.headers["sentry-trace"])

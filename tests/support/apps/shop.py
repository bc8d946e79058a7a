"""A shop for the tests and pictures of the dashboard: jobs that depend on or block each other, fail, and take long.

Files in TEST_SCRATCH control it: while ``down`` exists, fetching fails; runs of ``import_catalogue`` end when
``imported`` exists. TEST_PACE divides all times, TEST_INTERVALS multiplies the times between two fires. TEST_HOSTILE
adds jobs with hostile names.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_orchestration import OrchestratedTask
from support.hostile import TEXTS

PACE = float(os.environ.get("TEST_PACE", "1"))
#: The factor from seconds of a schedule to seconds of the clock.
SECOND = float(os.environ.get("TEST_INTERVALS", "1")) / PACE
SCRATCH = Path(os.environ.get("TEST_SCRATCH", "."))

app = Celery(
    "shop", broker=os.environ.get("TEST_BROKER", "memory://"), backend=os.environ.get("TEST_BACKEND", "cache+memory://")
)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_retry_delay = 0.1
app.conf.beat_scheduler = "celery_orchestration:OrchestratedScheduler"
app.conf.orchestration_history = 1000
app.conf.orchestration_sweep_seconds = 1


def job(**options: Any) -> Any:
    return app.task(base=OrchestratedTask, **options)


def work(seconds: float) -> None:
    time.sleep(seconds / PACE)


@job(interval_seconds=60 * SECOND, timeout_seconds=30, priority="high", max_consecutive_failures=5, max_retries=0)
def fetch_data() -> None:
    if (SCRATCH / "down").exists():
        raise ConnectionError("warehouse.internal:5432 refused the connection")
    work(6)


@job(interval_seconds=120 * SECOND, depends_on=[fetch_data])
def process_data() -> None:
    work(14)


@job(interval_seconds=300 * SECOND, depends_on=["support.apps.shop.process_data"], overlap="queue")
def daily_report() -> None:
    work(20)


@job(interval_seconds=240 * SECOND, depends_on=["support.apps.shop.process_data"])
def update_search_index() -> None:
    work(11)


@job(interval_seconds=420 * SECOND, priority="low", blocks=["support.apps.shop.process_data"])
def cleanup() -> None:
    work(24)


@job(max_running=2)
def send_newsletter(customer: str = "", password: str = "") -> None:
    work(9)


@job(interval_seconds=90 * SECOND)
def sync_inventory() -> None:
    work(4)


@job(max_running=1, key="{order}")
def charge_card(order: str, token: str = "") -> None:
    if int(order) % 3 == 0:
        raise ValueError(f"order {order}: the bank declined the card")
    work(3)


@job(bind=True, max_running=1)
def import_catalogue(self: Task, until: str = "imported") -> None:
    for done in range(600):
        if (SCRATCH / until).exists():
            return
        self.progress(min(done, 99), 100, note="reading products")
        time.sleep(0.1)


if os.environ.get("TEST_HOSTILE"):
    for text in TEXTS.values():

        def hostile() -> None:
            raise ValueError("<script>window.hacked = 1</script> \u202e")

        app.task(base=OrchestratedTask, name=text, max_consecutive_failures=1)(hostile)

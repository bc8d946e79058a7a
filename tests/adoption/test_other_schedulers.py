"""Jobs under the schedulers that projects already have: django-celery-beat's, RedBeat's, and Celery's own."""

from __future__ import annotations

import pytest

from adoption.project import PATIENCE, Project
from support.wait import until

NEEDS = ("django_celery_beat", "redbeat", "django_celery_results")
HEARTBEAT, RATES = "reports.tasks.heartbeat", "reports.tasks.refresh_rates"


@pytest.fixture(scope="module")
def shop(open_shop) -> Project:
    made = open_shop()
    made.worker()
    return made


def sources(shop: Project) -> set[str]:
    return {line["source"] for line in shop.journal(HEARTBEAT)}


def test_django_celery_beat_fires_jobs_from_its_tables_and_from_their_options(shop):
    shop.python("""
from django_celery_beat.models import IntervalSchedule, PeriodicTask
often, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
PeriodicTask.objects.create(interval=often, name="by hand", task="reports.tasks.heartbeat", args='["the database"]')
""")
    beat = shop.beat(env={"SHOP_BEAT": "django_celery_beat.schedulers:DatabaseScheduler"})
    rates = len(shop.journal(RATES))
    until(lambda: sources(shop) == {"the database", "beat_schedule"}, PATIENCE, poll=0.2)
    until(lambda: len(shop.journal(RATES)) > rates, PATIENCE, "an interval of a job becomes an entry", poll=0.2)
    known = shop.python("""
from django_celery_beat.models import PeriodicTask
answer(sorted(PeriodicTask.objects.values_list("name", flat=True)))
""")
    assert {"by hand", "heartbeat", RATES, "reports.tasks.nightly_report"} <= set(known)
    assert beat.stop(PATIENCE) == 0


def test_redbeat_fires_jobs(shop):
    shop.journal_path.unlink()
    beat = shop.beat(env={"SHOP_BEAT": "redbeat.RedBeatScheduler"})
    until(lambda: sources(shop) == {"beat_schedule"}, PATIENCE, poll=0.2)
    until(lambda: len(shop.journal(RATES)) > 1, PATIENCE, poll=0.2)
    assert beat.stop(PATIENCE) == 0


def test_celerys_own_scheduler_fires_jobs(shop):
    shop.journal_path.unlink()
    beat = shop.beat(env={"SHOP_BEAT": "celery.beat:PersistentScheduler"})
    until(lambda: sources(shop) == {"beat_schedule"}, PATIENCE, poll=0.2)
    until(lambda: len(shop.journal(RATES)) > 1, PATIENCE, poll=0.2)
    assert beat.stop(PATIENCE) == 0


def test_an_entry_at_run_time_is_refused_where_nothing_would_fire_it(shop):
    foreign = {"SHOP_BEAT": "django_celery_beat.schedulers:DatabaseScheduler"}
    refused = shop.celery(
        *("orchestration", "schedule", "add", "nightly", "reports.tasks.archive", "60"), code=None, env=foreign
    )
    assert refused.returncode != 0
    assert "DatabaseScheduler" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr

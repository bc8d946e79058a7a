from celery import shared_task
from celery.schedules import crontab
from company.journal import recorded


@shared_task
def heartbeat(source):
    with recorded(heartbeat.name, source=source):
        pass


@shared_task(interval_seconds=1, priority="high")
def refresh_rates():
    with recorded(refresh_rates.name):
        pass


@shared_task(schedule=crontab(hour=3, minute=0), depends_on=["reports.tasks.refresh_rates"], timeout_seconds=600)
def nightly_report():
    with recorded(nightly_report.name):
        return "a report"


@shared_task(priority="low", blocks=["reports.tasks.nightly_report"])
def archive():
    with recorded(archive.name):
        pass

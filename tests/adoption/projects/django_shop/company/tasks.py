import time

from celery import shared_task

from company.base import CompanyFirst, CompanyLast, CompanyTask
from company.journal import recorded


@shared_task(base=CompanyTask)
def audit():
    """Not a job."""
    with recorded(audit.name):
        pass


@shared_task(base=CompanyFirst, max_running=1)
def settle_accounts(fails=False):
    with recorded(settle_accounts.name):
        time.sleep(0.3)
    if fails:
        raise ValueError("as asked")


@shared_task(base=CompanyLast, max_running=1)
def settle_taxes(fails=False):
    with recorded(settle_taxes.name):
        time.sleep(0.3)
    if fails:
        raise ValueError("as asked")

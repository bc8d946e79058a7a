import os
import time

from celery import shared_task
from company.journal import recorded


@shared_task(rate_limit="100/s")
def send_mail(to):
    with recorded(send_mail.name, to=to):
        return f"sent to {to}"


@shared_task(bind=True)
def send_newsletter(self, names):
    """Replaces itself by a group of mails."""
    raise self.replace(send_mail.map(names))


@shared_task
def bounce(to):
    raise ValueError(f"no such address: {to}")


@shared_task(max_running=1)
def clean_list(until=""):
    """Runs until a file of that name exists."""
    with recorded(clean_list.name):
        while until and not os.path.exists(until):
            time.sleep(0.05)

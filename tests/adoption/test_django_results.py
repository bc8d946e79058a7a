"""django-celery-results stores the same for a job's run as for a plain task's."""

from __future__ import annotations

import pytest

from adoption.project import PATIENCE, Project
from support.wait import until

NEEDS = ("django_celery_results",)


@pytest.fixture(scope="module")
def shop(open_shop) -> Project:
    """Results are in the database; the ledger stays in the broker's Redis."""
    made = open_shop(env={"SHOP_RESULTS": "django-db", "SHOP_SETTINGS": '{"CELERY_RESULT_EXTENDED": true}'})
    made.worker()
    return made


def kept(shop: Project, run_id: str) -> dict[str, object]:
    code = f"""
from django_celery_results.models import TaskResult
answer(list(TaskResult.objects.filter(task_id={run_id!r}).values("status", "task_name", "result", "worker")))
"""
    (row,) = until(lambda: shop.python(code), PATIENCE, poll=0.5)
    return row


def test_results_and_failures_are_rows_with_the_jobs_name(shop):
    ids = shop.python("""
from mailing.tasks import bounce, send_mail
results = [send_mail.delay("you"), bounce.delay("nobody")]
for result in results:
    result.get(60, propagate=False)
answer([result.id for result in results])
""")
    sent, bounced = (kept(shop, run_id) for run_id in ids)
    assert (sent["status"], sent["task_name"], sent["result"]) == (
        "SUCCESS",
        "mailing.tasks.send_mail",
        '"sent to you"',
    )
    assert (bounced["status"], bounced["task_name"]) == ("FAILURE", "mailing.tasks.bounce")


def test_chords_that_are_counted_in_the_database_complete(shop):
    """Also if its runs had to wait for each other."""
    code = """
from celery import chord
from mailing.tasks import send_mail
from orders.tasks import import_orders
answer(chord([import_orders.s("eu", 0.1), import_orders.s("eu", 0.1)], send_mail.s()).apply_async().get(60))
"""
    assert shop.python(code) == "sent to ['eu', 'eu']"


def test_a_waiting_run_is_pending_and_one_that_was_cancelled_is_revoked(shop):
    _, waits = shop.python("""
from mailing.tasks import clean_list
answer([clean_list.delay('nowhere').id, clean_list.delay().id])
""")
    status = ("status", "--job", "mailing.tasks.clean_list")
    until(lambda: [job["waiting"] for job in shop.asked(*status, code=None)["jobs"]] == [1], PATIENCE, poll=0.2)
    assert shop.python(f"from shop.celery import app; answer(app.AsyncResult({waits!r}).state)") == "PENDING"
    shop.orchestration("cancel", waits)
    assert kept(shop, waits)["status"] == "REVOKED"

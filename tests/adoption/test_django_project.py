"""A Django project whose every task has the class, with worker, beat and commands as processes, at default settings."""

from __future__ import annotations

import pytest

from adoption.project import PATIENCE
from support.wait import until


@pytest.fixture(scope="module")
def shop(open_shop):
    """With a worker and a beat."""
    made = open_shop()
    made.worker()
    made.beat()
    return made


def test_a_job_that_is_sent_on_commit_runs_after_the_commit_on_its_own_queue(shop):
    sent = "from orders.tasks import place_order; r = place_order.delay({}); r.get(60, propagate=False); answer({})"
    assert shop.python(sent.format("False", "[r.state, str(r.result)]")) == ["FAILURE", "not paid"]
    order = shop.python(sent.format("True", "r.result"))
    shipped = shop.until_journal("orders.tasks.ship", 1)
    assert [(line["order"], line["queue"]) for line in shipped] == [(order, "default.high")]
    attempts = shop.journal("orders.tasks.ship", "start")
    assert [line["order"] for line in attempts] == [order, order], "retried once, and never for what was not committed"
    assert shop.python(f"from orders.models import Order; answer(Order.objects.get(pk={order}).shipped)") is True


def test_canvases_of_shared_tasks(shop):
    code = """
from celery import chord, group
from mailing.tasks import send_mail, send_newsletter
from orders.tasks import price, total
answer([
    chord([price.s(n) for n in (10, 20)], total.s()).apply_async().get(60),
    (price.s(100) | price.s()).apply_async().get(60),
    group(send_mail.s(name) for name in "ab").apply_async().get(60),
    send_newsletter.delay(["c", "d"]).get(60),
])
"""
    assert shop.python(code) == [
        35.7,
        141.61,
        ["sent to a", "sent to b"],
        ["sent to c", "sent to d"],
    ]


def test_a_key_counts_for_each_tenant(shop):
    code = """
from celery import group
from orders.tasks import import_orders
answer(group(import_orders.s(tenant) for tenant in ("eu", "us", "eu", "us", "eu")).apply_async().get(60))
"""
    assert shop.python(code) == ["eu", "us", "eu", "us", "eu"]
    runs = {"eu": 0, "us": 0}
    together = 0
    for line in shop.journal("orders.tasks.import_orders"):
        runs[line["tenant"]] += 1 if line["event"] == "start" else -1
        assert runs[line["tenant"]] <= 1
        together = max(together, sum(runs.values()))
    assert together == 2, "tenants do not wait for each other"


def test_beat_fires_entries_of_the_settings_and_schedules_of_jobs(shop):
    assert {line["source"] for line in shop.until_journal("reports.tasks.heartbeat", 2)} == {"beat_schedule"}
    shop.until_journal("reports.tasks.refresh_rates", 2)


def test_operators_see_the_jobs_of_all_apps_and_how_they_ended(shop):
    names = {
        "mailing.tasks.bounce",
        "mailing.tasks.clean_list",
        "mailing.tasks.send_mail",
        "mailing.tasks.send_newsletter",
        "orders.tasks.charge_card",
        "orders.tasks.import_orders",
        "orders.tasks.place_order",
        "orders.tasks.price",
        "orders.tasks.ship",
        "orders.tasks.total",
        "reports.tasks.archive",
        "reports.tasks.heartbeat",
        "reports.tasks.nightly_report",
        "reports.tasks.refresh_rates",
    }
    assert names <= {job["name"] for job in shop.asked("status", code=None)["jobs"]}
    shop.python("from mailing.tasks import bounce; bounce.delay('nobody').get(60, propagate=False)")
    failed = until(lambda: shop.asked("dlq", "list", "--job", "mailing.tasks.bounce"), PATIENCE, poll=0.5)
    assert "no such address: nobody" in str(failed)


def test_a_task_that_only_inherits_runs_once_when_its_process_dies(shop):
    """As with plain Celery; but it is kept, and one command sends it again."""
    code = """
from orders.tasks import charge_card
answer(repr(charge_card.delay(7).get(60, propagate=False)))
"""
    assert "WorkerLostError" in shop.python(code)
    letters = until(lambda: shop.asked("dlq", "list", "--job", "orders.tasks.charge_card"), PATIENCE, poll=0.5)
    assert len(letters) == 1
    assert len(shop.journal("orders.tasks.charge_card", "start")) == 1
    shop.orchestration("dlq", "requeue", "--job", "orders.tasks.charge_card")
    shop.until_journal("orders.tasks.charge_card", 2, "start")


@pytest.mark.parametrize("name", ["settle_accounts", "settle_taxes"])
def test_a_class_of_the_companys_own_works_before_and_behind_ours(shop, name):
    """Its request class is used for every run, also for one that waited or was not due; no two of them overlap."""
    task = f"company.tasks.{name}"
    shop.python(f"""
from company.tasks import {name} as job
results = [job.delay() for _ in range(3)] + [job.apply_async(countdown=1), job.delay(fails=True)]
for result in results:
    result.get(60, propagate=False)
""")
    shop.until_journal(task, 5)
    events = [line["event"] for line in shop.journal(task)]
    assert events.count("accepted") == 5
    until(lambda: len(shop.journal(task, "company heard")) == 1, PATIENCE)
    assert [event for event in events if event in ("start", "end")] == ["start", "end"] * 5


def test_a_plain_task_of_the_companys_class_stays_plain(shop):
    shop.python("from company.tasks import audit; audit.delay().get(60)")
    assert len(shop.journal("company.tasks.audit", "accepted")) == 1
    assert "company.tasks.audit" not in shop.orchestration("status", "--all", code=None)


def test_everything_is_a_plain_task_with_mode_off(shop):
    """The environment decides: no code has to change to switch orchestration off."""
    off = {"CELERY_ORCHESTRATION_MODE": "off", "SHOP_REDIS": shop.redis.url(5)}
    worker = shop.worker(env=off)
    code = """
from mailing.tasks import clean_list, send_mail
answer([clean_list.delay().get(60), send_mail.delay("x").get(60)])
"""
    assert shop.python(code, env=off) == [None, "sent to x"]
    assert worker.stop(30) == 0
    keys = {key if isinstance(key, str) else key.decode() for key in shop.redis.client(5).keys("*")}
    assert not [key for key in keys if not key.startswith(("_kombu", "celery-task-meta-", "unacked"))]

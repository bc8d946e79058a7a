"""The steps of docs/adopting.md, one after the other, in one project: nothing is lost on the way in or out."""

from __future__ import annotations

import signal

import pytest

from adoption.project import PATIENCE, Project
from support.processes import ManagedProcess
from support.wait import until

CLEAN = "mailing.tasks.clean_list"
STATUS = ("status", "--job", CLEAN)
OBSERVE, OFF = {"CELERY_ORCHESTRATION_MODE": "observe"}, {"CELERY_ORCHESTRATION_MODE": "off"}


@pytest.fixture(scope="module")
def shop(open_shop) -> Project:
    return open_shop()


def send(shop: Project, count: int, until: str = "") -> None:
    shop.python(
        f"from mailing.tasks import clean_list; answer([clean_list.delay({until!r}).id for _ in range({count})])"
    )


def let_go(shop: Project, name: str) -> None:
    (shop.directory / name).touch()


def stop_while_some_wait(shop: Project, worker: ManagedProcess, waiting: int, name: str) -> None:
    """Stops the worker: running runs end, and the other runs stay where they wait."""
    until(lambda: shop.asked(*STATUS, code=None)["jobs"][0]["waiting"] == waiting, PATIENCE, "some wait", poll=0.2)
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("Warm shutdown", PATIENCE)
    let_go(shop, name)
    assert worker.stop(PATIENCE) == 0


def most_together(shop: Project) -> int:
    running = most = 0
    for line in shop.journal(CLEAN):
        running += 1 if line["event"] == "start" else -1
        most = max(most, running)
    return most


def test_in_steps_and_back(shop):
    # Observe: two runs of a job with max_running=1 run together, and status says what would have waited.
    observing = shop.worker(env={"SHOP_SETTINGS": '{"CELERY_ORCHESTRATION_MODE": "observe"}'})
    send(shop, 4, "observed")
    shop.until_journal(CLEAN, 2, "start")
    let_go(shop, "observed")
    shop.until_journal(CLEAN, 4)
    assert most_together(shop) == 2
    assert "observe mode" in shop.orchestration("status", code=None)
    (job,) = shop.asked(*STATUS, code=None)["jobs"]
    assert sum(job["would_have_waited"].values()) > 0
    assert observing.stop(PATIENCE) == 0

    # Enforce: one at a time.
    shop.journal_path.unlink()
    enforcing = shop.worker()
    send(shop, 5, "enforced")
    shop.python("from mailing.tasks import send_mail; send_mail.apply_async(('later',), countdown=3600)")
    stop_while_some_wait(shop, enforcing, 4, "enforced")
    assert most_together(shop) == 1

    # Back to observe: all waiting runs may start.
    observing = shop.worker(env=OBSERVE)
    shop.until_journal(CLEAN, 5)
    assert observing.stop(PATIENCE) == 0

    # Off: plain tasks. One command publishes the runs that waited in the ledger.
    enforcing = shop.worker()
    send(shop, 4, "enforced again")
    stop_while_some_wait(shop, enforcing, 3, "enforced again")
    plain = shop.worker(env=OFF)
    assert "published" in shop.orchestration("release", "--yes", env=OFF)
    shop.until_journal(CLEAN, 9)
    send(shop, 1)
    shop.until_journal(CLEAN, 10)
    until(lambda: "send_mail" in shop.celery("inspect", "scheduled", env=OFF, code=None).stdout, PATIENCE, poll=0.5)
    plain.stop(PATIENCE)
    assert len(shop.journal(CLEAN, "start")) == 10, "each ran once"

    # Removed: the ledger's keys have one prefix.
    ledger = shop.redis.client(0)
    for key in ledger.scan_iter("{shop}:*"):
        ledger.delete(key)
    left = {str(key).partition(".")[0].partition("-")[0] for key in ledger.keys("*")}
    assert left <= {"_kombu", "celery", "unacked", "unacked_index", "unacked_mutex"}

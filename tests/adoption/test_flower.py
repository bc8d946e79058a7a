"""The real Flower, through its HTTP API, and the commands of Celery's that it uses, show runs of jobs."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.request import Request, urlopen

import pytest

from adoption.project import PATIENCE, Project
from support.processes import free_port
from support.wait import until

NEEDS = ("flower",)
HOLD = "proj.tasks.hold"


class Flower:
    def __init__(self, project: Project) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        project.start(
            *("celery", "-A", project.app, "flower", "--address=127.0.0.1", f"--port={port}"),
            ready="Connected to",
            name="flower",
            env={"FLOWER_UNAUTHENTICATED_API": "true"},
        )

    def get(self, path: str) -> Any:
        text = self.text(path)
        return json.loads(text)

    def text(self, path: str) -> str:
        with urlopen(self.url + path, timeout=PATIENCE) as reply:
            return reply.read().decode()

    def post(self, path: str) -> Any:
        with urlopen(Request(self.url + path, method="POST", data=b""), timeout=PATIENCE) as reply:
            return json.loads(reply.read())

    def worker(self) -> dict[str, Any]:
        """The data of Flower's page of the worker, asked anew."""
        (name,) = self.get("/api/workers?status=1")
        return self.get(f"/api/workers?refresh=1&workername={name}")[name]

    def state(self, run_id: str) -> str:
        return self.get("/api/tasks").get(run_id, {}).get("state", "unknown")


@pytest.fixture(scope="module")
def proj(open_project) -> Project:
    """One of its workers sends events."""
    made = open_project("tutorial", "proj")
    made.worker("-E")
    return made


@pytest.fixture(scope="module")
def flower(proj) -> Flower:
    made = Flower(proj)
    until(lambda: made.get("/api/workers?status=1"), PATIENCE, "Flower knows the worker", poll=0.5)
    return made


@pytest.fixture(scope="module")
def runs(proj, flower) -> dict[str, str]:
    """A run that runs until the tests are over, one that waits for it, and one that is due in an hour."""
    code = """
from proj.tasks import hold, mul
running = hold.delay(600)
answer({"running": running.id, "waiting": hold.delay(0).id, "revoked": hold.delay(0).id,
        "later": mul.apply_async((1, 1), countdown=3600).id})
"""
    sent = proj.python(code)
    status = ("status", "--job", HOLD)
    until(lambda: [job["waiting"] for job in proj.asked(*status, code=None)["jobs"]] == [2], PATIENCE, poll=0.5)
    return sent


def ids(requests: Any) -> set[str]:
    """The ids in a list of `inspect`."""
    return set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", json.dumps(requests)))


def test_flower_shows_the_queues_of_priorities_that_are_in_use(flower):
    assert {queue["name"] for queue in flower.worker()["active_queues"]} >= {"celery", "default.high"}


def test_flower_shows_a_run_that_is_under_way_as_active(flower, runs):
    assert runs["running"] in ids(flower.worker()["active"])
    until(lambda: flower.state(runs["running"]) == "STARTED", PATIENCE, poll=0.5)


def test_flower_shows_a_waiting_run_as_received(flower, runs):
    until(lambda: flower.state(runs["waiting"]) == "RECEIVED", PATIENCE, poll=0.5)


def test_flower_shows_waiting_runs_as_reserved_and_those_that_are_not_due_as_scheduled(flower, runs):
    shown = flower.worker()
    assert runs["waiting"] in ids(shown["reserved"])
    assert ids(shown["scheduled"]) == {runs["later"]}


def test_a_waiting_run_that_is_revoked_in_flower_ends(flower, proj, runs):
    flower.post(f"/api/task/revoke/{runs['revoked']}")
    until(lambda: flower.state(runs["revoked"]) == "REVOKED", PATIENCE, poll=0.5)
    assert proj.python(f"from proj.celery import app; answer(app.AsyncResult({runs['revoked']!r}).state)") == "REVOKED"


def test_flower_can_send_a_job_and_shows_its_result(flower):
    sent = flower.post("/api/task/send-task/proj.tasks.urgent")["task-id"]
    until(lambda: flower.state(sent) == "SUCCESS", PATIENCE, poll=0.5)
    assert flower.get(f"/api/task/result/{sent}?timeout=30")["result"] == "at once"


def test_metrics_count_each_run_once(flower, proj, runs):
    """The same metrics that celery-exporter makes of events."""
    sent = proj.python("""
from proj.tasks import xsum
results = [xsum.delay([1, 2], 0.1) for _ in range(10)]
answer([result.get(60) for result in results])
""")
    assert sent == [3] * 10

    def counted(event: str) -> float:
        found = re.findall(
            rf'flower_events_total\{{task="proj.tasks.xsum",type="{event}",worker="[^"]*"\}} (\S+)',
            flower.text("/metrics"),
        )
        return sum(map(float, found))

    until(lambda: counted("task-succeeded") >= 10, PATIENCE, poll=0.5)
    assert {event: counted(event) for event in ("task-received", "task-started", "task-succeeded")} == {
        "task-received": 10,
        "task-started": 10,
        "task-succeeded": 10,
    }


def test_a_queue_that_is_cancelled_in_flower_is_not_served_and_comes_back(flower, proj, runs):
    (worker,) = flower.get("/api/workers?status=1")
    flower.post(f"/api/worker/queue/cancel-consumer/{worker}?queue=default.high")
    until(lambda: "default.high" not in {queue["name"] for queue in flower.worker()["active_queues"]}, PATIENCE)
    sent = proj.python("from proj.tasks import urgent; answer(urgent.delay().id)")
    assert proj.python("from proj.tasks import mul; answer(mul.delay(2, 2).get(60))") == 4
    assert flower.state(sent) in ("unknown", "PENDING")
    assert flower.get("/api/queues/length")
    flower.post(f"/api/worker/queue/add-consumer/{worker}?queue=default.high")
    until(lambda: flower.state(sent) == "SUCCESS", PATIENCE, poll=0.5)

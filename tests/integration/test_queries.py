"""Questions are cheap: they need few round trips, and their cost does not grow with the number of waiting runs."""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_orchestration import Dependency, OrchestratedTask
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Ledger, Presence
from celery_orchestration.ledger.keys import encode_job, prefix
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from celery_orchestration.operate import Orchestration
from support.servers import RedisServer
from support.wait import until
from support.workers import close_app

JOBS = [f"crowd.job{n}" for n in range(8)]
KEYED = "crowd.keyed"


class Crowd:
    """A ledger with jobs that each run once at a time, and a worker that executes nothing."""

    def __init__(self, server: RedisServer) -> None:
        self.redis = server.client()
        self.app = Celery("crowd", broker=server.url(0), set_as_current=False)
        for n, name in enumerate(JOBS):
            options: dict[str, Any] = {"blocks": [JOBS[0]]} if n else {}
            options |= {"depends_on": [Dependency(JOBS[n - 1], on="finish", max_age_seconds=9)]} if n > 4 else {}
            self.app.task(name=name, base=OrchestratedTask, max_running=1, shared=False, **options)(_nothing)
        self.app.task(name=KEYED, base=OrchestratedTask, max_running=1, key="{0}", shared=False)(_nothing)
        self.ledger = Ledger(redis.ConnectionPool.from_url(server.url(0)), prefix("crowd"))
        self.turns = self.runs = 0
        jobs = jobs_of(self.app)
        release = releases.release(jobs, None)
        for number in range(3):
            presence = Presence(
                worker=f"w{number}", name=f"w{number}@host", host="host", pid=os.getpid(), slots=4, kind="prefork",
                queues=("celery",), release=release.name, mode="enforce", lease_ms=600_000, owner="crowd",
                done_ms=60_000, policies=release.document, jobs=tuple(map(encode_job, jobs)),
            )  # fmt: skip
            live = self.ledger.register(presence).live
        merged = releases.merged(self.ledger.read_releases(live))
        assert self.ledger.install_policies(live, merged.cap, merged.jobs)

    def arrive(self, count: int) -> None:
        """This many runs of each job arrive."""
        for _ in range(count):
            self.turns += 1
            arrivals = [self._arrival(name) for name in (*JOBS, KEYED)]
            self.ledger.turn("w0", self.turns, "enforce", 0, [], arrivals)

    def _arrival(self, name: str) -> Arrival:
        self.runs += 1
        key = f"key{self.turns % 3}" if name == KEYED else ""
        return Arrival(
            id=f"run-{self.runs}", attempt=0, job=encode_job(name), key=key, priority=1, grant="", expires_ms=None,
            queue="celery", granted_queue="", message=b"x" * 500,
        )  # fmt: skip

    def waiting(self) -> int:
        return int(self.redis.zcard(key_of("{crowd}:", "waiting")))

    def close(self) -> None:
        self.ledger.close()
        close_app(self.app)


def _nothing(*_: Any) -> None:
    pass


@pytest.fixture
def crowd(redis_server: RedisServer) -> Iterator[Crowd]:
    crowd = Crowd(redis_server)
    yield crowd
    crowd.close()


@pytest.fixture
def client(crowd: Crowd) -> Iterator[Orchestration]:
    client = Orchestration(crowd.app)
    yield client
    client.close()


def commands(crowd: Crowd, look: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """The commands that Redis gets meanwhile: from clients, and from scripts."""
    seen: list[dict[str, Any]] = []
    with crowd.redis.monitor() as monitor:

        def listen() -> None:
            for one in monitor.listen():
                seen.append(one)
                if one["command"] == "ECHO over":
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        crowd.redis.echo("begins")
        until(lambda: any(one["command"] == "ECHO begins" for one in seen))
        look()
        crowd.redis.echo("over")
        thread.join(10)
    found = [one for one in seen if not one["command"].startswith("ECHO")]
    by_scripts = [one["command"] for one in found if one["client_type"] == "lua"]
    return [one["command"] for one in found if one["client_type"] != "lua"], by_scripts


def shape(command: str) -> str:
    """Without ids of runs and without numbers."""
    return re.sub(r"run-\d+|job\d+|key\d+|\d+", "…", command)


@pytest.mark.parametrize("look", ["status", "graph"])
def test_looking_takes_one_script_and_the_question_whose_ledger_it_is(crowd, client, look):
    crowd.arrive(5)
    getattr(client, look)()  # Redis knows the functions now
    asked, _ = commands(crowd, getattr(client, look))
    assert [one.split()[0] for one in asked if "{crowd}:" in one] == ["HMGET", "FCALL"]


@pytest.mark.parametrize("look", ["status", "graph"])
def test_looking_asks_no_more_of_the_ledger_when_more_runs_wait(crowd, client, look):
    crowd.arrive(150)
    getattr(client, look)()
    few, (_, before) = crowd.waiting(), commands(crowd, getattr(client, look))
    crowd.arrive(450)
    many, (_, after) = crowd.waiting(), commands(crowd, getattr(client, look))
    assert many > 3 * few > 1000
    assert len(before) > 10
    assert Counter(map(shape, after)) == Counter(map(shape, before))
    assert not {"KEYS", "SCAN"} & {command.split()[0] for command in after}


def test_the_answer_does_not_grow_when_more_runs_wait(crowd):
    crowd.arrive(150)
    before = len(json.dumps(crowd.ledger.read_status(1000, 100))), len(json.dumps(crowd.ledger.read_graph()))
    crowd.arrive(450)
    after = len(json.dumps(crowd.ledger.read_status(1000, 100))), len(json.dumps(crowd.ledger.read_graph()))
    assert all(now < 1.1 * then for now, then in zip(after, before, strict=True))


def test_a_job_that_blocks_all_others_is_listed_once_for_each(crowd):
    jobs = {job["name"]: job for job in crowd.ledger.read_graph()["jobs"]}
    assert sorted(jobs) == sorted([*JOBS, KEYED])
    assert sorted(jobs[JOBS[0]]["conflicts"]) == JOBS[1:]
    assert all(not jobs[name]["conflicts"] for name in JOBS[1:])
    assert jobs[JOBS[6]]["depends_on"] == [{"job": JOBS[5], "on": "finish", "max_age_seconds": 9, "fresh": False}]


def test_the_graph_shows_the_state_of_jobs(crowd, client):
    crowd.arrive(2)
    client.disable(JOBS[4], "by a test")
    found = {one.name: (one.state, one.running, one.waiting) for one in client.graph().jobs}
    assert found[JOBS[0]] == ("running", 1, 1)
    assert found[JOBS[1]] == ("waiting", 0, 2)
    assert found[JOBS[4]] == ("disabled", 0, 2)
    assert found[KEYED] == ("running", 2, 0)

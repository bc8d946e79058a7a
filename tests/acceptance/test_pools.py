"""Pools with real supervisors and real workers.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from celery_orchestration.web.app import create_app
from support.history import History
from support.pools import MODULE, SMALL, PoolStage, is_alive
from support.processes import ManagedProcess, free_port
from support.visitor import Visitor
from support.wait import stays, until
from support.workers import Broker, celery_command, environment, run_celery

Make = Callable[..., PoolStage]


@pytest.fixture
def pools(pools_on: Callable[..., Make], redis_broker: Broker) -> Make:
    """``pools(images={"max": 4}, env={...})``: an app with these pools; its supervisors end with the test."""
    return pools_on(redis_broker)


@pytest.fixture
def pools_on(
    worker: Any,
    load_app: Any,
    history: History,
    tmp_path: Path,
    reported: Callable[[ManagedProcess], None],
) -> Iterator[Callable[..., Make]]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made: list[PoolStage] = []

    def make(broker: Broker, env: dict[str, str] | None = None, **table: dict[str, Any]) -> PoolStage:
        env = {**PoolStage.table_in(scratch, **table), **(env or {})}
        stage = PoolStage(broker, worker, load_app, history, scratch, MODULE, env)
        stage.reported = reported
        made.append(stage)
        return stage

    yield lambda broker: partial(make, broker)
    for stage in made:
        for process in stage.supervisors:
            process.cleanup()


@pytest.mark.slow
def test_a_backlog_gets_more_workers_and_when_it_is_done_the_pool_shrinks_to_min(pools: Make):
    stage = pools(images={"max": 3, "target_wait_seconds": 1})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    for _ in range(30):
        stage.send(stage.jobs.resize, 0.3)
    stage.wait_live(3)
    for result in stage.sent:
        result.get(timeout=30)
    stage.wait_live(1, timeout=20)
    assert supervisor.stop() == 0
    assert stage.places() == {}
    stage.ran_once(stage.sent)
    changes = [json.loads(one) for one in stage.read_pools()["pools"]["images"]["changes"]]
    assert [one["wanted"] for one in changes][-2:] == [3, 1]
    assert "ready run" in changes[-2]["why"]
    assert changes[0]["why"].endswith("one worker less")
    assert json.loads(changes[-2]["figures"])["ready"] > 0


def test_the_dashboard_shows_how_many_workers_a_pool_has_and_why(pools: Make):
    stage = pools(images={"max": 3, "target_wait_seconds": 1})
    stage.supervisor("a")
    stage.wait_live(1)
    visitor = Visitor(create_app(stage.app))
    page, numbers = visitor.get("/workers").text, visitor.get("/metrics").text
    visitor.close()
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r'<tr data-key="pool .*?</tr>', page, re.DOTALL)]
    assert [row[:6] for row in rows] == [["images", "1", "1", "1", "to", "3"]]  # wanted, live, min to max
    assert 'celery_orchestration_pool_wanted_workers{pool="images"} 1.0' in numbers
    change = stage.read_pools()["pools"]["images"]["changes"][0]
    assert html.escape(json.loads(change)["why"]) in page


def test_runs_that_wait_at_the_gate_ask_for_no_worker(pools: Make):
    stage = pools(images={"max": 3, "target_wait_seconds": 1})
    stage.supervisor("a")
    stage.wait_live(1)
    for _ in range(40):
        stage.send(stage.jobs.lone, 0.05)
    for result in stage.sent:
        result.get(timeout=30)
    wanted = [json.loads(one)["wanted"] for one in stage.read_pools()["pools"]["images"]["changes"]]
    assert set(wanted) == {1}, "one slot is all that a job with max_running=1 can use"


def test_a_pools_workers_serve_their_own_queues_only_and_the_default_pool_what_it_served_before(pools: Make):
    stage = pools(images={}, email={}, default={})
    stage.supervisor("a")
    for pool in ("images", "email", "default"):
        stage.wait_live(1, pool)
    results = [stage.send(job) for job in (stage.jobs.resize, stage.jobs.mail, stage.jobs.plain)]
    for result in results:
        result.get(timeout=20)
    ran_on = {span.job.rpartition(".")[2]: span.start.worker for span in stage.history.spans()}
    assert {job: str(name).partition("-")[0] for job, name in ran_on.items()} == {
        "resize": "images",
        "mail": "email",
        "plain": "default",
    }
    served = {one["name"].partition("-")[0]: set(json.loads(one["queues"])) for one in stage.read_pools()["workers"]}
    assert served["images"] == {f"images.{last}" for last in ("granted", "critical", "high", "normal", "low")}
    assert "celery" in served["default"]
    assert not served["default"] & (served["images"] | served["email"])


@pytest.mark.slow
def test_a_pool_grows_on_rabbitmq_too(pools_on: Callable[..., Make], rabbitmq_broker: Broker):
    stage = pools_on(rabbitmq_broker)(images={"max": 2, "target_wait_seconds": 1})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    for _ in range(40):
        stage.send(stage.jobs.resize, 0.1)
    stage.wait_live(2)
    for result in stage.sent:
        result.get(timeout=30)
    supervisor.wait_for_log("of unknown duration")  # RabbitMQ does not return the tasks of messages
    assert supervisor.stop() == 0


@pytest.mark.parametrize("kind", ["threads", "gevent", pytest.param("solo", marks=pytest.mark.slow)])
def test_workers_of_any_kind_run_drain_and_stop(pools: Make, kind: str):
    stage = pools(images={"kind": kind})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    stage.send(stage.jobs.resize).get(timeout=20)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    supervisor.signal(signal.SIGTERM)
    supervisor.wait_for_log("Draining all workers")
    supervisor.signal(signal.SIGTERM)
    until(lambda: not supervisor.running, 20, "code that cannot be killed ends with its process")
    assert supervisor.returncode == 0
    stage.release("go")
    stage.supervisor("b")
    running.get(timeout=30)


def test_a_pool_of_min_0_starts_a_worker_when_there_is_something_to_do(pools: Make):
    stage = pools(images={"min": 0})
    stage.supervisor("a")
    until(lambda: stage.read_pools().get("supervisors"))
    stage.send(stage.jobs.resize).get(timeout=30)
    stage.wait_live(0, timeout=20)


def test_a_worker_that_dies_is_started_again(pools: Make):
    stage = pools(images={})
    supervisor = stage.supervisor("a")
    (worker,) = stage.wait_live(1)
    os.kill(worker["pid"], signal.SIGKILL)
    supervisor.wait_for_log("Worker images-1 was killed by signal 9; it is restarted in 1 s")
    until(lambda: [one for one in stage.live() if one["pid"] != worker["pid"]], 20)
    stage.send(stage.jobs.resize).get(timeout=20)


def test_a_worker_that_dies_at_import_is_reported_loudly_with_its_last_output(pools: Make):
    stage = pools(images={})
    (stage.scratch / "broken").touch()
    supervisor = stage.supervisor("a")
    supervisor.wait_for_log("WORKER images-1 KEEPS DYING", 60)
    supervisor.wait_for_log("no module named 'pillow', says the test")

    def reported() -> list[str]:
        return [line for one in stage.read_pools()["supervisors"] for line in json.loads(one["report"])["problems"]]

    until(lambda: any("worker images-1 keeps dying" in line and "pillow" in line for line in reported()))
    (stage.scratch / "broken").unlink()
    supervisor.signal(signal.SIGHUP)
    stage.wait_live(1, timeout=20)  # not only after a minute
    assert supervisor.stop() == 0


def test_when_nobody_reads_its_output_any_more_it_drains(pools: Make):
    """As when the terminal was closed."""
    stage = pools(images={})
    process = subprocess.Popen(
        celery_command(stage.module, "orchestration", "pools", "--name", "a"),
        cwd=stage.scratch,
        env={**environment(), **stage.broker.env(), **stage.history.env(), **stage.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        (worker,) = stage.wait_live(1)
        running = stage.send(stage.jobs.held, "go")
        stage.started(running)
        assert process.stdout is not None
        process.stdout.close()
        process.send_signal(signal.SIGHUP)
        until(lambda: not stage.live(), 20, "its worker drains")
        assert is_alive(worker["pid"])
        stage.release("go")
        running.get(timeout=10)
        process.wait(20)
        assert not is_alive(worker["pid"])
    finally:
        process.kill()
        process.wait()


def test_sigterm_drains_and_what_runs_ends(pools: Make):
    stage = pools(images={"concurrency": 2})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    supervisor.signal(signal.SIGTERM)
    until(lambda: not stage.live())
    assert supervisor.running
    stage.release("go")
    until(lambda: not supervisor.running)
    assert supervisor.returncode == 0
    assert running.get(timeout=5) is None
    assert stage.places() == {}


def test_a_second_sigterm_stops_and_what_ran_goes_back_to_its_queue(pools: Make):
    stage = pools(images={})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    supervisor.signal(signal.SIGTERM)
    supervisor.wait_for_log("Draining all workers")
    supervisor.signal(signal.SIGTERM)
    until(lambda: not supervisor.running, 20)
    assert not supervisor.pids()
    stage.release("go")
    stage.supervisor("b")
    running.get(timeout=30)
    assert len(stage.starts(running)) == 2


def test_when_the_time_to_drain_is_up_what_runs_goes_back_to_its_queue(pools: Make):
    stage = pools(images={}, env={"TEST_DRAIN": "1"})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    supervisor.signal(signal.SIGTERM)
    until(lambda: not supervisor.running, 20)
    assert supervisor.returncode == 0
    assert "was killed" not in supervisor.log()


@pytest.mark.slow
def test_a_pool_that_shrinks_lets_a_busy_worker_finish(pools: Make):
    """However long that takes: drain_seconds is for a supervisor that stops."""
    stage = pools(images={"max": 2, "concurrency": 2, "quiet_seconds": 1}, env={"TEST_DRAIN": "0.5"})
    stage.supervisor("a")
    stage.wait_live(1)
    results = [stage.send(stage.jobs.held, name) for name in ("one", "two", "three")]
    stage.wait_live(2)
    for result in results:
        stage.started(result)
    for name in ("one", "two"):  # which of them share a worker is not known
        stage.release(name)
    until(lambda: len(stage.live()) == 1, 20, "one drains")
    stays(lambda: len(stage.starts(results[2])) == 1, 2)
    stage.release("three")
    for result in results:
        result.get(timeout=20)
    stage.ran_once(results)


@pytest.mark.slow
def test_sighup_reads_the_table_again(pools: Make):
    stage = pools(images={})
    supervisor = stage.supervisor("a")
    (before,) = stage.wait_live(1)
    path = Path(stage.env["TEST_POOLS"])
    path.write_text(json.dumps({"images": {**SMALL, "min": 2, "max": 2, "concurrency": 3}, "email": SMALL}))
    supervisor.signal(signal.SIGHUP)
    supervisor.wait_for_log("The configuration was read again; pools: email, images")
    stage.wait_live(1, "email")
    until(lambda: [one["slots"] for one in stage.live()] == [3, 3], 30, "two workers with three slots")
    assert not is_alive(before["pid"])
    path.write_text(json.dumps({"images": {"min": 3, "max": 2}}))
    supervisor.signal(signal.SIGHUP)
    supervisor.wait_for_log("The configuration cannot be read, and stays as it was")
    supervisor.wait_for_log("min=3 is more than max=2")
    assert len(stage.live()) == 2


class TestTwoSupervisors:
    def test_they_share_a_pool_and_either_may_be_killed(self, pools: Make):
        stage = pools(images={"min": 1, "max": 2, "quiet_seconds": 60})
        both = {"a": stage.supervisor("a")}
        stage.wait_live(1)
        both["b"] = stage.supervisor("b")
        until(lambda: len(stage.read_pools()["supervisors"]) == 2)
        for _ in range(40):
            stage.send(stage.jobs.resize, 0.3)
        stage.wait_live(2)
        assert stage.places() == {1: "a", 2: "b"}
        workers = {one["name"]: one["pid"] for one in stage.live()}
        both["a"].kill(whole=False)
        until(lambda: sum(map(is_alive, workers.values())) == 1, 20, "the workers of the dead one drain by themselves")
        until(lambda: set(stage.places().values()) == {"b"}, 20, "its places are taken after a lease")
        stage.wait_live(2)
        stage.send(stage.jobs.resize).get(timeout=10)
        assert not [pid for pid in both["a"].pids() if is_alive(pid)]

    def test_one_that_comes_back_within_a_lease_finds_its_places_again(self, pools: Make):
        stage = pools(images={"min": 2, "max": 2}, env={"TEST_LEASE": "30"})
        first = stage.supervisor("a")
        stage.wait_live(2)
        before = {one["pid"] for one in stage.live()}
        fences = {one["number"]: one["fence"] for one in stage.read_pools()["pools"]["images"]["places"]}
        first.kill(whole=False)
        again = stage.supervisor("a")
        again.wait_for_log("Place 1 of pool 'images' is still ours from the previous process")
        until(lambda: len({one["pid"] for one in stage.live()} - before) == 2, 30, "two new workers")
        assert {one["number"]: one["fence"] for one in stage.read_pools()["pools"]["images"]["places"]} == fences
        assert not [pid for pid in before if is_alive(pid)]

    def test_one_that_stands_still_loses_its_places_and_its_workers_drain(self, pools: Make):
        stage = pools(images={"min": 1, "max": 1})
        sleeper = stage.supervisor("a")
        (worker,) = stage.wait_live(1)
        other = stage.supervisor("b")
        until(lambda: len(stage.read_pools()["supervisors"]) == 2)
        sleeper.pause(whole=False)
        until(lambda: stage.places() == {1: "b"}, 20, "the other takes the place after a lease")
        until(lambda: not is_alive(worker["pid"]), 20, "the worker on it has drained by itself")
        sleeper.signal(signal.SIGCONT)
        sleeper.wait_for_log("Place 1 of pool 'images' is no longer ours: its worker here drains")
        stays(lambda: stage.places() == {1: "b"}, 1)
        assert [one["pid"] for one in stage.wait_live(1)] != [worker["pid"]]
        assert other.running

    def test_different_tables_the_stricter_one_applies_and_both_say_so(self, pools: Make, tmp_path: Path):
        stage = pools(images={"min": 1, "max": 4})
        other = tmp_path / "other.json"
        other.write_text(json.dumps({"images": {**SMALL, "min": 2, "max": 2}}))
        first, second = stage.supervisor("a"), stage.supervisor("b", env={"TEST_POOLS": str(other)})
        first.wait_for_log("supervisor b has another table of pools: pool 'images' has min=2 there and 1 here")
        second.wait_for_log("supervisor a has another table of pools: pool 'images' has min=1 there and 2 here")
        for process in (first, second):
            process.wait_for_log("The stricter one applies: min=2, max=2")
        for _ in range(40):
            stage.send(stage.jobs.resize, 0.5)
        stage.wait_live(2)
        stays(lambda: len(stage.places()) <= 2, 3)

    def test_of_two_with_one_name_the_last_one_has_it(self, pools: Make):
        stage = pools(images={}, env={"TEST_LEASE": "30"})
        first = stage.supervisor("a")
        (worker,) = stage.wait_live(1)
        running = stage.send(stage.jobs.held, "go")
        stage.started(running)
        (place,) = stage.read_pools()["pools"]["images"]["places"]
        stage.supervisor("a")
        said = "another supervisor of pools runs under the name 'a'"
        first.wait_for_log(said)
        stays(lambda: first.log().count(said) == 1, 2)
        stage.release("go")
        until(lambda: not first.running, 20)
        assert first.returncode == 1
        until(lambda: [one["pid"] for one in stage.live()] not in ([], [worker["pid"]]), 20)
        (after,) = stage.read_pools()["pools"]["images"]["places"]
        assert (after["fence"], after["since"]) == (place["fence"], place["since"]), "nobody has given the place up"


@pytest.mark.slow
def test_a_worker_that_takes_nothing_is_replaced(pools: Make):
    stage = pools(images={"stall_seconds": 4})
    supervisor = stage.supervisor("a")
    (worker,) = stage.wait_live(1)
    served = [name for name in json.loads(worker["queues"]) if not name.endswith(".granted")]
    for queue in served:  # like a worker that stopped consuming after a reconnect
        stage.app.control.cancel_consumer(queue, destination=[worker["name"]], reply=True, timeout=5)
    until(lambda: "images.normal" not in json.loads(stage.read_pools()["workers"][0]["queues"]), 10)
    stuck = stage.send(stage.jobs.resize)
    supervisor.wait_for_log("Worker images-1 is stalled: it has received no message", 40)
    stuck.get(timeout=30)
    assert not is_alive(worker["pid"])


@pytest.mark.slow
def test_a_worker_that_is_only_busy_does_not_count_as_stalled(pools: Make):
    stage = pools(images={"stall_seconds": 2})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    stage.send(stage.jobs.resize)
    stays(lambda: "stalled" not in supervisor.log(), 6)
    stage.release("go")
    running.get(timeout=10)


@pytest.mark.slow
def test_a_solo_worker_that_runs_a_plain_task_does_not_count_as_stalled(pools: Make):
    """It answers nobody meanwhile, and the ledger does not know plain tasks."""
    stage = pools(images={"stall_seconds": 2, "kind": "solo"})
    supervisor = stage.supervisor("a")
    stage.wait_live(1)
    running = stage.jobs.plain_held.apply_async(("go",), queue="images.normal")
    stage.started(running)
    waiting = stage.send(stage.jobs.resize)
    stays(lambda: "stalled" not in supervisor.log(), 12)
    stage.release("go")
    waiting.get(timeout=20)


def test_no_worker_starts_where_there_is_no_room_for_it(pools: Make):
    here = len(os.sched_getaffinity(0))
    stage = pools(images={"min": 2, "max": 2, "cpus": float(here)}, email={"cpus": 1000.0})
    supervisor = stage.supervisor("a")
    supervisor.wait_for_log("No worker of pool 'email' can start on this machine: a worker takes 1000 cpus")
    stage.wait_live(1)
    stays(lambda: len(stage.places()) == 1, 2)
    reports = [json.loads(one["report"])["problems"] for one in stage.read_pools()["supervisors"]]
    until(lambda: "fewer workers than wanted" in str(stage.read_pools()["supervisors"]), 10, str(reports))


def test_nothing_is_left_when_a_supervisor_is_killed(pools: Make):
    stage = pools(images={"concurrency": 2}, env={"TEST_DRAIN": "1"})
    supervisor = stage.supervisor("a")
    (worker,) = stage.wait_live(1)
    running = stage.send(stage.jobs.held, "go")
    stage.started(running)
    family = [worker["pid"], *(child.pid for child in psutil.Process(worker["pid"]).children(recursive=True))]
    supervisor.kill(whole=False)
    until(lambda: not any(map(is_alive, family)), 20, "its workers are gone within drain_seconds")
    stage.release("go")
    stage.supervisor("b")
    running.get(timeout=30)


class TestSeeing:
    """One supervisor, one idle worker, and one pool whose worker dies at its start."""

    def run(self, stage: PoolStage, *arguments: str, code: int = 0) -> str:
        found = run_celery(stage.module, "orchestration", *arguments, broker=stage.broker, env=stage.env)
        assert found.returncode == code, found.stdout + found.stderr
        return found.stdout

    def test_every_view_shows_pools_and_their_workers(self, pools: Make):
        stage = pools(images={"max": 2, "quiet_seconds": 60}, email={"min": 0})
        stage.supervisor("a")
        stage.wait_live(1)
        running = stage.send(stage.jobs.held, "go")
        stage.started(running)
        stage.send(stage.jobs.resize)
        stage.wait_live(2)
        until(lambda: json.loads(self.run(stage, "status", "--json"))["pools"][1]["done"] == 1, 10)
        status = json.loads(self.run(stage, "status", "--json"))
        email, images = status["pools"]
        assert (email["name"], email["live"], email["wanted"], email["min"]) == ("email", 0, 0, 0)
        assert (images["live"], images["wanted"], images["min"], images["max"]) == (2, 2, 1, 2)
        assert (images["ready"], images["busy_slots"], images["slots"]) == (0, 1, 2)
        first, second = images["workers"]
        assert sorted([first["state"], second["state"]]) == ["busy", "idle"]
        busy = first if first["state"] == "busy" else second
        assert (busy["runs"], busy["running"], busy["supervisor"]) == ([running.id], 1, "a")
        assert busy["memory_mb"] > 10
        assert 0 < busy["uptime_seconds"] < 120
        assert busy["restarts"] == 0
        assert images["changes"][0]["wanted"] == 2
        assert "slot at work" in images["changes"][0]["reason"]

        shown = self.run(stage, "status", "--pool", "images")
        assert re.search(r"images +2/2 +1-2 +1/2 +0", shown), shown
        assert "→ 2:" in shown
        explained = self.run(stage, "explain", "pool:images")
        assert "pool images should have 2 workers and has 2" in explained
        assert json.loads(self.run(stage, "explain", "pool:images", "--json"))["wanted"] == 2
        at_rest = self.run(stage, "explain", "support.apps.pools.mail")
        assert "pool email has no worker now: its supervisor starts one when runs are ready" in at_rest
        assert "no live worker serves queue" not in at_rest
        desired = json.loads(self.run(stage, "pools", "--desired", "--json"))["pools"]["images"]
        assert (desired["wanted"], desired["live"], desired["oldest_wait_seconds"]) == (2, 2, 0.0)
        watched = self.run(stage, "pools", "--watch", "--count", "1")
        assert "2 pools: 2 of 2 workers live" in watched
        assert "images-2@" in watched
        lines = self.run(stage, "pools", "--watch", "--json", "--count", "2").splitlines()
        assert [len(json.loads(line)["pools"]) for line in lines] == [2, 2]
        doctor = run_celery(stage.module, "orchestration", "doctor", broker=stage.broker, env=stage.env).stdout
        assert "ok pools: 2 pools have 2 live workers" in doctor
        assert re.search(r"ok queues: live workers serve \d+ queues; supervisors start workers\s+for 1 other", doctor)
        stage.release("go")

    def test_a_crash_loop_shows_in_status_and_doctor(self, pools: Make):
        stage = pools(images={})
        (stage.scratch / "broken").touch()
        stage.supervisor("a").wait_for_log("KEEPS DYING", 60)
        (stage.scratch / "broken").unlink()
        until(lambda: "keeps dying" in str(stage.read_pools()["supervisors"]))
        shown = self.run(stage, "status", code=1)
        assert "worker images-1 keeps dying" in shown
        assert "pillow" in shown
        doctor = run_celery(stage.module, "orchestration", "doctor", broker=stage.broker, env=stage.env)
        assert doctor.returncode == 1
        assert "pools: worker images-1 keeps dying" in doctor.stdout
        assert json.loads(self.run(stage, "pools", "--desired", "--json"))["pools"]["images"]["live"] == 0

    def test_without_a_supervisor_the_same_function_says_how_many_are_needed(self, pools: Make):
        stage = pools(images={"max": 5, "target_wait_seconds": 1}, email={"min": 0})
        for _ in range(4):
            stage.send(stage.jobs.resize)
        desired = json.loads(self.run(stage, "pools", "--desired", "--json"))["pools"]
        assert (desired["images"]["wanted"], desired["images"]["ready"]) == (4, 4)
        assert desired["email"]["wanted"] == 0
        assert "images: 4 wanted, 0 live, 4 ready" in self.run(stage, "pools", "--desired")

    def test_over_http_for_keda(self, pools: Make):
        stage = pools(images={"max": 5, "target_wait_seconds": 1}, email={"min": 0})
        for _ in range(4):
            stage.send(stage.jobs.resize)
        port = free_port()
        server = stage.supervisor("server", "--desired", "--serve", f"127.0.0.1:{port}")

        def get(path: str) -> tuple[int, Any]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())
            except OSError:
                return 0, {}
            finally:
                connection.close()

        until(lambda: get("/health")[0] == 200)
        assert get("/")[1]["pools"]["images"]["wanted"] == 4
        assert get("/images")[1]["wanted"] == get("/pools/images")[1]["wanted"] == 4
        assert get("/imges")[0] == 404
        until(lambda: get("/images")[1]["oldest_wait_seconds"] > 0)
        taken = run_celery(
            stage.module, "orchestration", "pools", "--serve", f"127.0.0.1:{port}", broker=stage.broker, env=stage.env
        )
        assert taken.returncode == 2
        assert f"127.0.0.1:{port} is not available" in taken.stderr
        assert server.stop() == 0


def test_a_worker_with_autoscale_grows_and_shrinks_by_what_there_is_to_do(pools: Make):
    env = {"TEST_AUTOSCALER": "celery_orchestration:QueueAutoscaler"}
    stage = pools(images={"target_wait_seconds": 3, "quiet_seconds": 2}, env=env)
    queues = [f"images.{one}" for one in ("critical", "high", "normal", "low")]
    process = stage.worker(queues=queues, concurrency=3, options=["--autoscale", "3,1"])
    assert len(process.children()) == 1
    stage.send(stage.jobs.resize, 0).get(timeout=20)
    for _ in range(20):  # by now they are known to be short: they need no more processes, however many are fetched
        stage.send(stage.jobs.resize, 0)
    for result in stage.sent:
        result.get(timeout=20)
    assert len(process.children()) == 1
    long = [stage.send(stage.jobs.resize, 0.7) for _ in range(20)]
    until(lambda: len(process.children()) == 3, 20, "three processes")
    for result in long:
        result.get(timeout=30)
    until(lambda: len(process.children()) == 1, 20, "back at one")
    assert "ready runs" in process.log()
    stage.ran_once(stage.sent)


class TestBadInput:
    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({}, "orchestration_pools is empty: write app.conf.orchestration_pools ="),
            ({"images": {"min": 3, "max": 2}}, "orchestration_pools of pool 'images': min=3 is more than max=2"),
            ({"images": {"kind": "preforc"}}, "not 'preforc', did you mean 'prefork'?"),
        ],
    )
    def test_it_is_one_message_and_no_traceback(
        self, redis_broker: Broker, tmp_path: Path, table: dict[str, Any], said: str
    ):
        path = tmp_path / "pools.json"
        path.write_text(json.dumps(table))
        found = run_celery(MODULE, "orchestration", "pools", broker=redis_broker, env={"TEST_POOLS": str(path)})
        assert found.returncode == 1
        assert said in found.stderr
        assert "Traceback" not in found.stderr

    def test_a_pool_that_is_not_in_the_table_and_one_that_no_job_uses_are_reported(self, pools: Make):
        stage = pools(image={})
        supervisor = stage.supervisor("a")
        supervisor.wait_for_log(
            "pool 'images' of support.apps.pools.held, support.apps.pools.lone, support.apps.pools.resize is not in "
            "orchestration_pools, and no worker is started for it, did you mean 'image'?"
        )
        supervisor.wait_for_log("pool 'email' of support.apps.pools.mail is not in orchestration_pools")
        supervisor.wait_for_log("pool 'image' is in orchestration_pools, and no job uses it, did you mean 'images'?")

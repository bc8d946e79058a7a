"""The status from Python, as JSON and as tables; no control characters reach a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from io import StringIO
from subprocess import CompletedProcess
from typing import Any

import pytest
from pydantic import BaseModel
from rich.cells import cell_len

from celery_orchestration.cli.show.status import print_status
from celery_orchestration.errors import LedgerUnavailable
from celery_orchestration.operate import (
    Death,
    Disabled,
    JobStatus,
    Orchestration,
    QueueStatus,
    RunStatus,
    Status,
    WorkerStatus,
)
from support.invariants import status_of
from support.stage import Stage
from support.wait import until
from support.workers import Broker, run_celery

RELEASES = "support.apps.releases"
JOBS = "support.apps.jobs"
NAME = f"{JOBS}.{{}}".format
EVIL = "evil\x1b[31m\x07 name\r\nrunning \u202egnol\x9b2J[bold]x[/bold]"

POLICIES: dict[str, dict[str, Any]] = {
    "held": {"max_running": 1},
    "keyed": {"max_running": 1, "key": "{until_there}"},
    "fetch": {"max_running": 1},
    "process": {"depends_on": ["fetch"]},
    "cleanup": {"blocks": ["report"], "priority": "low"},
    "report": {},
    EVIL: {"max_running": 1, "key": "{until_there}"},
}


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, RELEASES, env={"TEST_POLICIES": json.dumps(POLICIES)})


def send(stage: Stage, job: str, until_there: str = "go") -> Any:
    return stage.send(stage.jobs.jobs[job], until_there)


def shown(stage: Stage, *options: str, columns: int = 80) -> CompletedProcess[str]:
    env = {**stage.env, "COLUMNS": str(columns)}
    return run_celery(stage.module, "orchestration", "status", *options, broker=stage.broker, env=env)


def by_job(runs: list[RunStatus]) -> dict[str, RunStatus]:
    return {run.job: run for run in runs}


def timeless(model: BaseModel) -> Any:
    """Without the parts that change in the meantime."""
    text = re.sub(r"for \d+ s", "for … s", model.model_dump_json())
    return without(json.loads(text), {"at", "seconds", "last_beat"})


def without(found: Any, names: set[str]) -> Any:
    if isinstance(found, dict):
        return {name: without(value, names) for name, value in found.items() if name not in names}
    return [without(value, names) for value in found] if isinstance(found, list) else found


# -- jobs, runs, workers


def test_a_client_outlives_a_restart_of_redis(stage):
    client = Orchestration(stage.app)
    client.status()
    stage.broker.redis.restart(kill=True)
    assert client.status().workers == []
    stage.broker.redis.kill()
    with pytest.raises(LedgerUnavailable, match="does not answer"):
        client.status()
    client.close()


def test_status_shows_running_runs_waiting_runs_and_the_reasons(stage):
    worker = stage.worker(concurrency=4)
    running = {name: send(stage, name) for name in ("held", "keyed", "cleanup")}
    for result in running.values():
        stage.started(result)
    waiting = {name: send(stage, name) for name in ("held", "keyed", "report", "process")}
    stage.wait_waiting(4)
    status = status_of(stage.app)

    assert (status.namespace, status.paused, status.running, status.waiting) == ("releases", False, 3, 4)
    jobs = {job.name: (job.state, job.running, job.max_running, job.keyed, job.waiting) for job in status.jobs}
    assert jobs == {
        "held": ("running", 1, 1, False, 1),
        "keyed": ("running", 1, 1, True, 1),
        "fetch": ("idle", 0, 1, False, 0),
        "process": ("waiting", 0, None, False, 1),
        "cleanup": ("running", 1, None, False, 0),
        "report": ("waiting", 0, None, False, 1),
        EVIL: ("idle", 0, 1, True, 0),
    }
    runs = by_job(status.runs)
    assert {name: run.id for name, run in runs.items()} == {name: result.id for name, result in running.items()}
    for name, run in runs.items():
        assert (run.state, run.worker, run.reason) == ("running", worker.hostname, None)
        assert run.fence == stage.starts(running[name])[0].start.fence
        assert 0 <= run.seconds < 60
    assert (runs["keyed"].key, runs["cleanup"].priority, runs["held"].priority) == ("go", "low", "normal")

    waits = by_job(status.waits)
    assert {name: run.id for name, run in waits.items()} == {name: result.id for name, result in waiting.items()}
    since = rf"running on {worker.hostname} for \d+ s"
    reasons = {
        "held": f"waiting for room: as many runs of held as allowed: {since}",
        "keyed": f"waiting for room: as many runs of keyed with key 'go' as allowed: {since}",
        "report": f"waiting for cleanup: {since}",
        "process": "waiting for fetch: it has never ended",
    }
    for name, reason in reasons.items():
        assert re.fullmatch(reason, waits[name].reason or ""), waits[name].reason

    [found] = status.workers
    assert (found.name, found.pid, found.state) == (worker.hostname, worker.pid, "busy")
    assert (found.execution_pool, found.slots, found.running, found.mode) == ("prefork", 4, 3, "enforce")
    assert {"celery", "default.granted", "default.low"} <= set(found.queues), "its own, and those that are in use"
    assert status.problems == []

    # The command line shows the same.
    as_json = shown(stage, "--json")
    assert (as_json.returncode, as_json.stderr) == (0, "")
    assert timeless(Status.model_validate_json(as_json.stdout)) == timeless(Orchestration(stage.app).status())
    table = shown(stage, columns=250)
    assert (table.returncode, table.stderr) == (0, "")
    for run in status.runs:
        assert re.search(rf"^ ?{run.id[:8]} +{run.job} +running +{worker.hostname} +\d+ s *$", table.stdout, re.M)
    for name, run in waits.items():
        assert re.search(rf"^ ?{run.id[:8]} +{name} +\d+ s +{reasons[name]} *$", table.stdout, re.M)
    assert "releases: 3 running, 4 waiting" in table.stdout

    stage.release("go")
    send(stage, "fetch")
    stage.all_well()
    last = {job.name: job for job in status_of(stage.app).jobs}
    assert (last["held"].state, last["held"].last_outcome) == ("idle", "succeeded")
    assert status.at - timedelta(minutes=1) < last["held"].last_start <= last["held"].last_end
    assert last["held"].last_success == last["held"].last_end
    assert (last[EVIL].last_start, last[EVIL].last_outcome) == (None, None)


@pytest.mark.slow
def test_every_reason_to_wait_is_shown_in_words(redis_broker: Broker, worker: Any, load_app: Any, history: Any) -> None:
    process = worker(redis_broker, JOBS, concurrency=4)
    jobs = load_app(redis_broker, JOBS)
    busy = rf"running on {process.hostname} for \d+ s"

    def reason(result: Any, words: str) -> None:
        def told() -> str | None:
            return next((run.reason for run in status_of(jobs.app).waits if run.id == result.id), None)

        until(lambda: re.fullmatch(words, told() or ""), message=f"{words!r}, not {told()!r}")

    jobs.fetch.delay(0, fail=True).get(timeout=30, propagate=False)
    depends = jobs.process.delay()
    reason(depends, f"waiting for {NAME('fetch')}: its last run failed")
    depends.revoke()
    jobs.report.delay(60)
    until(lambda: history.started(NAME("report")))
    reason(jobs.cleanup.delay(), f"waiting for {NAME('report')}: {busy}")
    reason(jobs.report.delay(), f"waiting behind a run of {NAME('cleanup')} that came first")
    jobs.fetch.delay(60)
    until(lambda: len(history.started(NAME("fetch"))) == 2)
    reason(jobs.process.delay(), f"waiting for {NAME('fetch')}: {busy}")
    reason(jobs.fetch.delay(), f"waiting for room: as many runs of {NAME('fetch')} as allowed: {busy}")


@pytest.mark.slow
def test_a_dead_worker_is_shown_as_lost_even_if_no_other_one_is_there_to_notice(stage):
    worker = stage.worker()
    stage.started(send(stage, "held"))
    worker.kill()

    def noticed() -> bool:
        status = status_of(stage.app)
        return [found.state for found in status.workers] == ["dead"] and "no worker is alive" in status.problems

    until(noticed, 30, "lease and sweep are over")


def test_before_anything_was_started_status_says_so(stage):
    done = shown(stage)
    assert (done.returncode, done.stderr) == (1, ""), "something is wrong"
    assert "releases: 0 running, 0 waiting" in done.stdout
    assert "! no worker is alive" in done.stdout
    found = Status.model_validate_json(shown(stage, "--json").stdout)
    assert (found.jobs, found.runs, found.waits, found.workers) == ([], [], [], [])
    assert stage.ledger.keys("*") == []


def test_an_option_that_does_not_exist_is_refused(stage):
    done = shown(stage, "--jsn")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr


# -- names that are up to something


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_hostile_names_are_shown_harmlessly(stage):
    stage.worker()
    key = "\x1b[2J\u202ekey\n[red]"
    stage.started(send(stage, EVIL, key))
    send(stage, EVIL, key)
    stage.wait_waiting(1)
    [run], [wait] = status_of(stage.app).runs, status_of(stage.app).waits
    assert (run.job, run.key, wait.job) == (EVIL, key, EVIL)
    table = shown(stage, columns=250)
    assert table.returncode == 0
    assert harmless(table.stdout), table.stdout
    assert r"evil\x1b[31m\x07 name\r\nrunning \u202egnol\x9b2J[bold]x[/bold]" in table.stdout
    found = Status.model_validate_json(shown(stage, "--json").stdout)
    assert found.waits[0].job == EVIL


# -- tables


NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def run_of(name: str, **values: Any) -> RunStatus:
    common = {"key": "", "priority": "normal", "retries": 0, "worker": None, "queue": "celery", "fence": None}
    common |= {"recoveries": 0, "arrived": NOW, "since": NOW, "seconds": 12.3, "expires": None, "reason": None}
    return RunStatus(**{**common, "id": "0123456789", "job": name, "state": "running", **values})


def status_with(name: str, runs: int = 1) -> Status:
    """A ledger in which everything has this name, with many objects of each kind."""
    job = JobStatus(
        name=name, state="running", running=runs, max_running=runs, keyed=True, waiting=runs, oldest_arrival=NOW,
        last_start=NOW, last_end=NOW - timedelta(days=400), last_outcome="failed", last_success=NOW,
        failures=0, max_consecutive_failures=None, last_error=None, would_have_waited={f"room {name}": 3}, later=runs,
        last_seconds=1.5, disabled=Disabled(by=name, why=name, at=NOW, failures=name), probe=None, next_probe=NOW,
        dead_letters=3,
    )  # fmt: skip
    worker = WorkerStatus(
        name=f"{name}@host", host="host", pid=1, state="busy", execution_pool="prefork", slots=4, running=1,
        done=7, failed=1,
        queues=["celery", "default.granted", *(f"default.{n}" for n in range(9)), name], mode="enforce", since=NOW,
        last_beat=NOW,
    )  # fmt: skip
    return Status(
        namespace="shop",
        at=NOW,
        paused=False,
        running=runs,
        max_running=10,
        waiting=runs,
        later=runs,
        dead_letters=3,
        jobs=[job],
        runs=[run_of(name, worker=worker.name) for _ in range(runs)],
        waits=[run_of(name, state="waiting", reason=f"waiting for {name}: {name}") for _ in range(runs)],
        workers=[worker],
        died=[Death(name=name, at=NOW, runs=2)],
        queues=[QueueStatus(name=name, slots=0, under_way=0, waiting=1)],
        problems=["everything is paused"],
    )


def table_of(status: Status, monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    file = StringIO()
    print_status(status, file)
    return file.getvalue()


@pytest.mark.parametrize("columns", [80, 250])
@pytest.mark.parametrize(
    "name",
    ["fetch", EVIL, "x" * 200, "shop.tasks.import." * 8 + "customers", "\x00", "\n" * 30, "[red]", "数据" * 30],
    ids=["plain", "evil", "long", "dotted", "nul", "newlines", "markup", "wide"],
)
def test_tables_keep_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch, name: str, columns: int) -> None:
    text = table_of(status_with(name), monkeypatch, columns)
    assert harmless(text), text
    assert [line for line in text.splitlines() if cell_len(line) > columns] == []
    assert len(re.findall(r"^ ?01234567 .* 12 s", text, re.M)) == 2, "its run and its wait are told apart"


def test_problems_that_name_something_hostile_are_shown_harmlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who sends a message names a queue."""
    problem = f"queue {EVIL} has runs to hand over, but no live worker serves it"
    status = status_with("fetch").model_copy(update={"problems": [problem]})
    assert harmless(table_of(status, monkeypatch, 80))


def test_of_many_runs_the_first_are_shown_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    text = table_of(status_with("fetch", runs=25), monkeypatch, 80)
    assert len(re.findall(r"^ ?01234567 ", text, re.M)) == 40
    assert re.findall("… (.*) more", text) == ["5", "30"], "of the waiting ones, those that are not due yet too"


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_slots_follow_an_execution_pool_that_grows_and_shrinks(
    stage_on: Callable[..., Stage], redis_broker: Broker, pool: str
) -> None:
    stage = stage_on(redis_broker)
    stage.worker(pool, concurrency=1)

    def slots() -> list[int]:
        return [worker.slots for worker in status_of(stage.app).workers]

    until(lambda: slots() == [1], 30, "it is there")
    until(lambda: stage.app.control.ping(timeout=1), 30, "it hears broadcasts: with gevent a little after it is ready")
    stage.app.control.pool_grow(2)
    until(lambda: slots() == [3], 30, "the ledger knows of its new slots")
    runs = [stage.send(stage.jobs.held_free, "go") for _ in range(3)]
    for run in runs:
        stage.started(run)
    stage.release("go")
    for run in runs:
        run.get(timeout=30)
    stage.app.control.pool_shrink(1)
    until(lambda: slots() == [2], 30, "and of those that are gone")
    stage.all_well()

"""Hostile texts and arguments, and content that must not be read: kept as they are, shown harmlessly, or refused with a
sentence. No key, terminal or worker breaks."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from kombu import Connection
from kombu.exceptions import EncodeError

from celery_orchestration.cli.show.status import print_status
from celery_orchestration.job.app import read_settings
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Ledger, Outcome, Presence
from celery_orchestration.ledger.keys import LONGEST_ROOM_KEY, encode_job
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node import releases
from celery_orchestration.operate import Orchestration, Status
from support.hostile import TEXTS
from support.invariants import all_ended, assert_ledger_is_clean, status_of
from support.stage import Stage
from support.wait import until
from support.workers import Broker, run_celery

APP = "support.apps.hostile"
ECHO = f"{APP}.echo"
FAILING = f"{APP}.failing"
QUIET = f"{APP}.quiet"
MEGABYTE = 1_000_000


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, APP)


@pytest.fixture
def orchestration(stage: Stage) -> Iterator[Orchestration]:
    client = Orchestration(stage.app)
    yield client
    client.close()


def shown(stage: Stage, *options: str) -> CompletedProcess[str]:
    env = {**stage.env, "COLUMNS": "300"}
    return run_celery(APP, "orchestration", "status", *options, broker=stage.broker, env=env)


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def held(stage: Stage) -> Any:
    """A run of ``echo`` that holds the only room until ``go``."""
    running = stage.send(stage.jobs.echo, "go")
    stage.started(running)
    return running


# -- names, room keys, task ids


def test_names_keys_and_ids_are_kept_as_they_are_and_shown_harmlessly(stage_on, broker):
    stage = stage_on(broker, APP)
    stage.worker("threads", concurrency=len(TEXTS) + 1)
    for number in (1, 2):
        for name, text in TEXTS.items():
            stage.send(stage.jobs.jobs[name], text, "go", task_id=f"{text}-{number}")
        until(lambda number=number: len(stage.history.started()) == len(TEXTS), message=f"each runs once, not {number}")
    stage.wait_waiting(len(TEXTS))
    status = status_of(stage.app)
    for number, runs in enumerate((status.runs, status.waits), 1):
        assert {(run.job, run.key, run.id) for run in runs} == {(t, t, f"{t}-{number}") for t in TEXTS.values()}
    for wait in status.waits:
        assert wait.reason.startswith(f"waiting for room: as many runs of {wait.job} with key {wait.job!r} as allowed")

    table = shown(stage)
    assert table.returncode == 0, table.stderr
    assert harmless(table.stdout), table.stdout
    found = json.loads(shown(stage, "--json").stdout)
    assert {run["id"] for run in found["waits"]} == {f"{text}-2" for text in TEXTS.values()}
    assert Status.model_validate(found).jobs == status_of(stage.app).jobs

    stage.release("go")
    stage.all_well()
    stage.ran_once(stage.sent)


def test_jobs_are_disabled_and_runs_cancelled_by_such_names(stage, orchestration):
    stage.worker(concurrency=1)
    until(lambda: orchestration.status().jobs)
    for name, text in TEXTS.items():
        orchestration.disable(text, text)
        stage.send(stage.jobs.jobs[name], text, task_id=text)
    stage.wait_waiting(len(TEXTS))
    status = orchestration.status()
    assert {job.name: job.disabled.why for job in status.jobs if job.disabled} == {t: t for t in TEXTS.values()}
    assert all(wait.reason.startswith(f"the job is disabled: {wait.job} (") for wait in status.waits)
    assert harmless(shown(stage).stdout)

    for text in TEXTS.values():
        assert orchestration.cancel(text).cancelled
        orchestration.enable(text)
    for result in stage.sent:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=30)
    changes = [(change.what, change.about, change.why) for change in orchestration.audit()]
    for text in TEXTS.values():
        assert {("disable", text, text), ("cancel", text, text), ("enable", text, "")} <= set(changes)
    until(lambda: not stage.ledger.keys(key_of("{hostile}:", "run", "*")))
    assert stage.history.started() == []


def test_errors_are_kept_as_they_are_and_shown_harmlessly(stage, orchestration, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    stage.worker(concurrency=1)
    for text in TEXTS.values():
        with pytest.raises(ValueError, match=re.escape(text)):
            stage.send(stage.jobs.failing, text).get(timeout=30)
        [failed] = until(lambda: [job for job in orchestration.status().jobs if job.disabled])
        assert failed.last_error == f"ValueError: {text}"
        waiting = stage.send(stage.jobs.failing, text)
        stage.wait_waiting(1)
        table = StringIO()
        print_status(orchestration.status(), table)
        assert "1 failures in a row" in table.getvalue()
        assert harmless(table.getvalue()), table.getvalue()
        assert orchestration.cancel(waiting.id).cancelled
        orchestration.enable(FAILING)


# -- a megabyte of anything


def test_a_megabyte_of_a_room_key_is_cut_and_stays_distinct(stage):
    stage.worker(concurrency=3)
    job = stage.jobs.jobs["colon"]
    one, other = "x" * MEGABYTE, "x" * MEGABYTE + "y"
    stage.started(stage.send(job, one, "go"))
    stage.started(stage.send(job, other, "go"))
    stage.send(job, one, "go")
    stage.wait_waiting(1)
    status = status_of(stage.app)
    assert all(len(run.key) <= LONGEST_ROOM_KEY for run in (*status.runs, *status.waits))
    assert len(shown(stage).stdout) < 10_000
    stage.release("go")
    all_ended(stage.sent)
    assert_ledger_is_clean(stage.app, stage.ledger)


def test_a_megabyte_of_a_task_id_is_one_like_any(stage, orchestration):
    stage.worker()
    held(stage)
    orchestration.disable(QUIET)
    waiting = stage.send(stage.jobs.quiet, task_id="x" * MEGABYTE)
    stage.wait_waiting(1)
    assert len(shown(stage).stdout) < 10_000
    orchestration.enable(QUIET)
    assert waiting.get(timeout=30) == "quiet"
    stage.release("go")
    all_ended(stage.sent)


def test_a_megabyte_of_an_error_or_a_note_is_cut(stage, orchestration):
    stage.worker()
    with pytest.raises(ValueError, match="xxx"):
        stage.send(stage.jobs.failing, "x" * MEGABYTE).get(timeout=30)
    [failed] = until(lambda: [job for job in orchestration.status().jobs if job.disabled])
    assert failed.last_error.startswith("ValueError: xxx")
    assert len(failed.last_error) < 1000
    assert len(failed.disabled.why) < 1000
    orchestration.disable(ECHO, "x" * MEGABYTE)
    orchestration.pause("x" * MEGABYTE)
    assert max(len(change.why) for change in orchestration.audit()) <= 1000
    echo = next(job for job in orchestration.status().jobs if job.name == ECHO)
    assert echo.disabled.why.startswith("xxx")


def test_a_note_that_cannot_be_encoded_is_kept_as_far_as_it_can(stage, orchestration):
    stage.worker()
    until(lambda: orchestration.status().jobs)
    orchestration.disable(ECHO, "half a pair: \ud800")
    assert orchestration.audit()[0].why == "half a pair: ?"


# -- arguments


def nested(depth: int) -> Any:
    found: Any = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("x" * 8 * MEGABYTE, id="huge"),
        pytest.param(nested(400), id="nested"),
        pytest.param({text: [text] for text in TEXTS.values()}, id="hostile"),
        pytest.param({"__type__": "uuid", "__value__": {"hex": "0" * 32}}, id="like kombu's own"),
    ],
)
def test_arguments_come_through_the_ledger_untouched(stage, what):
    stage.worker(concurrency=2)
    held(stage)
    body = json.dumps([[None, what], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    waiting = stage.app.AsyncResult("one")
    stage.sent.append(waiting)
    with Connection(stage.broker.broker_url) as connection:
        connection.Producer().publish(
            body,
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": ECHO, "id": waiting.id, "lang": "py"},
        )
    stage.wait_waiting(1)
    raw = stage.broker.redis.client(decode_responses=False)
    [message] = [raw.hget(key, "message") for key in raw.keys(key_of("{hostile}:", "run", "one"))]
    assert Envelope.unpack(message).body == body.encode()
    stage.release("go")
    until(waiting.ready)
    stage.all_well()


def test_arguments_that_cannot_be_sent_are_the_callers_error_and_nothing_is_sent(stage):
    stage.worker()
    held(stage)
    for what in (object(), nested(100_000)):
        with pytest.raises((EncodeError, RecursionError)):
            stage.jobs.echo.delay(what=what)
    later = stage.send(stage.jobs.echo, None, 1)
    stage.wait_waiting(1)
    stage.release("go")
    assert later.get(timeout=30) == 1
    stage.all_well()


@pytest.mark.parametrize("keyed", [False, True], ids=["", "keyed"])
def test_a_message_that_is_nested_too_deep_to_be_read_fails_alone(stage, keyed):
    process = stage.worker(concurrency=1)
    deep = "[" * 100_000 + "]" * 100_000
    name = TEXTS["colon"] if keyed else ECHO
    with Connection(stage.broker.broker_url) as connection:
        connection.Producer().publish(
            f'[["a", {deep}], {{}}, {{}}]',
            routing_key="celery",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": name, "id": "deep", "lang": "py"},
        )
    assert stage.send(stage.jobs.echo, None, 1).get(timeout=30) == 1
    process.wait_for_log("recursion")
    assert "Unrecoverable" not in process.log()
    stage.all_well()


# -- pickled content


class Explosive:
    """Unpickling it makes a directory."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "unpickled"


def pickled(trace: Path) -> dict[str, Any]:
    """A message for ``echo``, as Celery sends it where pickle is the serializer."""
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return {
        "body": pickle.dumps(((None, Explosive(trace)), {}, embed)),
        "headers": {"task": ECHO, "id": "pickled", "lang": "py"},
        "content_type": "application/x-python-serialize",
        "content_encoding": "binary",
    }


class Hand:
    """Stands for a worker that has accepted such a message: puts it into the ledger, where it waits."""

    def __init__(self, stage: Stage, queues: tuple[str, ...]) -> None:
        self.ledger = Ledger.of(stage.app, read_settings(stage.app))
        self.turns = 0
        jobs = jobs_of(stage.app)
        release = releases.release(jobs, None)
        presence = Presence(
            worker="hand", name="hand@test", host="test", pid=1, slots=5, kind="solo", queues=queues,
            release=release.name, mode="enforce", lease_ms=600_000, owner="hostile", done_ms=600_000,
            policies=release.document, jobs=tuple(map(encode_job, jobs)),
        )  # fmt: skip
        found = self.ledger.register(presence)
        if found.live != found.installed:
            assert self.ledger.install_policies(found.live, None, releases.merged([release.document]).jobs)

    def take_in(self, id: str, message: bytes) -> Any:
        self.turns += 1
        arrival = Arrival(id, 0, encode_job(ECHO), "", 1, "", None, "celery", "default.granted", message)
        [answer] = self.ledger.turn("hand", self.turns, "enforce", 0, [], [arrival]).answers
        return answer

    def take_in_pickled(self, trace: Path) -> None:
        envelope = Envelope(properties={}, exchange="", routing_key="celery", **pickled(trace))
        assert self.take_in("pickled", envelope.pack()).what == "wait"


@pytest.fixture
def hand(request: pytest.FixtureRequest) -> Iterator[Callable[..., Hand]]:
    hands: list[Hand] = []

    def make(stage: Stage, *queues: str) -> Hand:
        hands.append(Hand(stage, queues))
        return hands[-1]

    yield make
    for one in hands:
        one.ledger.leave("hand")
        one.ledger.close()


def test_an_app_that_accepts_pickle_leaves_a_trace(trace):
    """Shows that the tests below would notice it."""
    envelope = Envelope(properties={}, exchange="", routing_key="celery", **pickled(trace))
    message = envelope.as_message({envelope.content_type})
    assert not trace.exists()
    assert message.payload
    assert trace.exists()


def test_operators_never_unpickle_whatever_their_app_accepts(stage_on, redis_broker, trace, hand):
    stage = stage_on(redis_broker, APP, env={"TEST_ACCEPT": "json,pickle"})
    one = hand(stage, "celery", "default.granted")
    assert one.take_in("first", b"").what == "start"
    one.take_in_pickled(trace)
    client = Orchestration(stage.app)
    [waiting] = client.status().waits
    assert waiting.id == "pickled"
    assert "pickled" in shown(stage).stdout
    client.disable(ECHO)
    [fence] = [str(run.fence) for run in client.status().runs]
    one.ledger.turn("hand", 9, "enforce", 0, [Outcome("first", fence, "succeeded")], [])
    client.enable(ECHO)  # which hands the run over
    [message] = until(lambda: stage.ledger.lrange("default.granted", 0, -1))
    assert json.loads(message)["headers"]["id"] == "pickled"
    assert client.cancel("pickled").cancelled
    client.close()
    assert not trace.exists()


def test_a_run_with_pickled_content_is_cancelled_where_nobody_accepts_it(stage, orchestration, trace, hand):
    stage.worker()
    held(stage)
    hand(stage).take_in_pickled(trace)
    result = stage.app.AsyncResult("pickled")
    stage.sent.append(result)
    assert orchestration.cancel("pickled").cancelled
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    stage.release("go")
    stage.all_well()
    assert not trace.exists()


@pytest.mark.parametrize("published", [True, False], ids=["published", "in the slot that came free"])
def test_a_run_with_pickled_content_ends_where_no_worker_accepts_it(stage, trace, hand, published):
    process = stage.worker(concurrency=2)
    running = held(stage)
    hand(stage).take_in_pickled(trace)
    if not published:  # a worker that knows of waiting runs offers its slots
        stage.send(stage.jobs.echo, None, "first")
        stage.wait_waiting(2)
    stage.release("go")
    running.get(timeout=30)
    process.wait_for_log("Refusing to deserialize untrusted content of type pickle")
    assert stage.send(stage.jobs.echo, None, "later").get(timeout=30) == "later"
    stage.all_well()
    assert not trace.exists()

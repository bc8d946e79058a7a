"""Mistakes are reported once, in words, by the process that starts; messages that cannot be read are left to Celery."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery.exceptions import NotRegistered
from kombu import Connection

from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.history import History
from support.processes import free_port
from support.servers import RedisServer
from support.wait import until
from support.workers import Broker, WorkerProcess, environment, run_celery

APP = "support.apps.configured"
JOBS = "support.apps.jobs"
NOBODY = "redis://127.0.0.1:{port}/0".format

StartWorker = Callable[..., WorkerProcess]
LoadApp = Callable[..., ModuleType]

HEAD = """
from celery import Celery
from celery_orchestration import Dependency, OrchestratedTask

app = Celery("shop", broker={broker!r}, backend={backend!r})
app.conf.broker_connection_retry_on_startup = True
job = lambda **options: app.task(base=OrchestratedTask, **options)
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run(source, "worker")``: runs the command to its end, with an app ``shop`` that has this source."""

    def run_app(
        source: str,
        *arguments: str,
        broker: str = NOBODY(port=1),
        backend: str | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "shop.py").write_text(HEAD.format(broker=broker, backend=backend) + source)
        path = environment(tmp_path)["PYTHONPATH"]
        return run_celery("shop", *arguments, env={"PYTHONPATH": path, **(env or {})})

    return run_app


@pytest.fixture
def refusal(run: Callable[..., Any]) -> Callable[..., str]:
    """The only message of a worker that refuses to start."""

    def refused(source: str, *arguments: str, **options: Any) -> str:
        done = run(source, *(arguments or ("worker", "--without-mingle")), **options)
        output = done.stdout + done.stderr
        assert done.returncode != 0, output
        assert "Traceback" not in output, output
        assert "ready." not in output
        [_, message] = output.split("Error: ")  # it is reported once
        assert message.count("\n") == len(message.strip().splitlines())  # and nothing follows
        return message.strip()

    return refused


# -- a worker that must not start


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "@job(max_runing=1)\ndef fetch(): ...",
            "job 'shop.fetch': unknown option 'max_runing', did you mean 'max_running'?",
        ),
        (
            "class Fetch(OrchestratedTask):\n    name = 'shop.fetch'\n    max_runing = 1\n    def run(self): ...\n"
            "app.register_task(Fetch())",
            "job 'shop.fetch': unknown option 'max_runing', did you mean 'max_running'?",
        ),
        (
            "@job(max_running=0)\ndef fetch(): ...",
            "job 'shop.fetch': max_running should be greater than or equal to 1, not 0",
        ),
        (
            "@job(catch_up_seconds=0)\ndef fetch(): ...",
            "job 'shop.fetch': catch_up_seconds should be greater than 0, not 0",
        ),
        (
            "@job(max_running=1)\ndef fetch(): ...\n@job(depends_on=['shop.fetsh'])\ndef process(): ...",
            "job 'shop.process': depends_on names an unknown job 'shop.fetsh', did you mean 'shop.fetch'?",
        ),
        (
            "@job(max_running=1)\ndef fetch(): ...\n@job(blocks=['fetch'])\ndef process(): ...",
            "job 'shop.process': blocks names an unknown job 'fetch', did you mean 'shop.fetch'?",
        ),
        (
            "@app.task\ndef fetch(): ...\n@job(depends_on=[fetch])\ndef process(): ...",
            "job 'shop.process': depends_on names 'shop.fetch', a task without base=OrchestratedTask",
        ),
        (
            "@job(max_running=1, depends_on=['shop.b'])\ndef a(): ...\n"
            "@job(max_running=1, depends_on=['shop.a'])\ndef b(): ...",
            "dependency cycle: shop.a -> shop.b -> shop.a",
        ),
        (
            "@job(name='x' * 1_000_000)\ndef fetch(): ...",
            f"job '{'x' * 60}'…: a job's name may have at most 200 characters",
        ),
        (
            "@job(name='shop.\\ud800')\ndef fetch(): ...",
            r"job 'shop.\ud800': a job's name must be a text that UTF-8 can encode",
        ),
        (
            "@job()\ndef fetch(): ...\napp.conf.orchestration_leese_seconds = 5",
            "unknown setting 'orchestration_leese_seconds', did you mean 'orchestration_lease_seconds'?",
        ),
        (
            "@job()\ndef fetch(): ...\napp.conf.orchestration_mode = 'enforec'",
            "orchestration_mode should be 'enforce', 'observe' or 'off', not 'enforec', did you mean 'enforce'?",
        ),
        (
            "@job()\ndef fetch(): ...\napp.conf.orchestration_pools = {'images': {'kind': 'preforc'}}",
            "orchestration_pools of pool 'images': kind should be 'prefork', 'threads', 'gevent' or 'solo', "
            "not 'preforc', did you mean 'prefork'?",
        ),
        (
            "@job()\ndef fetch(): ...\napp.conf.orchestration_redis_url = 'redis://:secret@localhost/zero'",
            "orchestration_redis_url 'redis://:**@localhost/zero' cannot hold the ledger: "
            "invalid literal for int() with base 10: 'zero'",
        ),
    ],
    ids=lambda value: re.sub(r"\W+", "-", value)[-40:],
)
@pytest.mark.slow
def test_a_mistake_is_named_with_its_job_and_option(refusal, source, message):
    assert refusal(source) == message


def test_a_mistake_in_the_environment_is_named(refusal):
    message = refusal("@job()\ndef fetch(): ...", env={"CELERY_ORCHESTRATION_MODE": "of"})
    assert message.startswith("CELERY_ORCHESTRATION_MODE should be 'enforce', 'observe' or 'off', not 'of'")


def test_all_mistakes_are_named_at_once(refusal):
    source = "@job(max_running=1, depends_on=['shop.x', 'shop.y'], blocks=['shop.z'])\ndef a(): ..."
    assert len(refusal(source).splitlines()) == 3


def test_without_any_redis_a_worker_says_what_to_set(refusal):
    message = refusal("@job()\ndef fetch(): ...", broker="amqp://guest:guest@127.0.0.1:1//")
    assert "keeps its state in Redis, but neither broker_url nor result_backend is a Redis address" in message
    assert "orchestration_redis_url" in message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("@job(overlapp='skip')\ndef fetch(): ...", "job 'shop.fetch': unknown option 'overlapp'"),
        ("@job(blocks=['fetsh'])\ndef fetch(): ...", "job 'shop.fetch': blocks names an unknown job 'fetsh'"),
        ("app.conf.orchestration_turm_seconds = 5", "unknown setting 'orchestration_turm_seconds'"),
        ("app.conf.update(broker_url='memory://')", "celery_orchestration keeps its state in Redis"),
    ],
    ids=["option", "name", "setting", "redis"],
)
@pytest.mark.slow
def test_a_scheduler_refuses_to_start_in_one_line_too(run, source, message):
    done = run(source + "\napp.conf.beat_scheduler = 'celery_orchestration:OrchestratedScheduler'", "beat")
    output = done.stdout + done.stderr
    assert done.returncode != 0, output
    assert "Traceback" not in output, output
    assert output.count(message) == 1, output


def test_an_app_without_jobs_needs_no_redis_and_minds_no_setting(run, redis_server: RedisServer):
    done = run("app.conf.orchestration_mode = 'nonsense'", "report", broker="memory://")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("owner", "others", "belongs to the app 'others': give each app its own app.conf.orchestration_namespace"),
        ("schema", "99", "has data layout 99, this version of celery_orchestration knows 1 to 2: upgrade it"),
    ],
)
@pytest.mark.parametrize(
    "command", [("worker", "--without-mingle"), ("orchestration", "status")], ids=["worker", "cli"]
)
def test_a_ledger_that_is_not_for_us_is_refused(refusal, redis_server: RedisServer, command, field, value, says):
    client = redis_server.client()
    client.hset(key_of("{shop}:", "ledger"), field, value)
    message = refusal("@job()\ndef fetch(): ...", *command, broker=redis_server.url())
    assert message.startswith(f"the ledger '{{shop}}:' at {redis_server.url()} ")
    assert message.endswith(says)
    assert client.hgetall(key_of("{shop}:", "ledger")) == {field: value}


@pytest.mark.parametrize(
    ("patch", "what"),
    [
        ("from celery.worker import control\ncontrol.Panel.data.pop('revoke')", "no control command revoke"),
        (
            "from celery.worker import request\noriginal = request.create_request_cls\n"
            "def other(*args, **kwargs): return original(*args, **kwargs)\nrequest.create_request_cls = other",
            "create_request_cls does not subclass Task.Request",
        ),
        (
            "from celery.worker import request\ndel request.Request._announce_revoked",
            "no Request._announce_revoked",
        ),
        (
            "from celery.worker import request\nfrom functools import partial\n"
            "request.create_request_cls = partial(request.create_request_cls)",
            "create_request_cls does not subclass Task.Request",
        ),
    ],
    ids=["revoke", "create_request_cls", "request", "without source"],
)
def test_a_celery_with_another_inside_is_refused(refusal, redis_server: RedisServer, patch, what):
    message = refusal(f"{patch}\n@job()\ndef fetch(): ...", broker=redis_server.url())
    assert message.startswith("celery_orchestration does not support Celery ")
    assert f"({what})" in message
    assert "CELERY_ORCHESTRATION_MODE=off" in message
    assert redis_server.client().keys("*") == []


# -- the ledger cannot be reached


def test_status_without_redis_is_one_line_that_says_where_it_tried(run):
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"
    done = run("@job()\ndef fetch(): ...", "orchestration", "status", broker=url)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.strip().splitlines()
    assert line.startswith(f"Error: the ledger at {url.replace('secret', '**')} does not answer: ")


def test_a_worker_waits_for_a_ledger_that_does_not_answer_yet(
    redis_factory: Callable[..., RedisServer], redis_broker: Broker, worker: StartWorker, load_app: LoadApp
) -> None:
    ledger = redis_factory(name="ledger")
    ledger.kill()
    env = {"TEST_CONF": json.dumps({"orchestration_redis_url": ledger.url()})}
    process = worker(redis_broker, APP, env=env)
    process.wait_for_log(f"The ledger at {ledger.url()} does not answer yet")
    jobs = load_app(redis_broker, APP, env=env)
    result = jobs.exclusive.delay(note="late")
    assert jobs.plain.delay(note="plain").get(timeout=30) == "plain"
    assert not result.ready()
    ledger.start()
    assert result.get(timeout=30) == "late"
    assert "Traceback" not in process.log()


# -- messages that cannot be read


def ledger_of(broker: Broker) -> dict[str, Any]:
    """Everything in the ledger that no heartbeat and no sweep changes."""
    client = broker.redis.client(int(broker.ledger_url.rpartition("/")[2]), decode_responses=False)
    found = {}
    for key in client.keys("{configured}:*"):
        if key == b"{configured}:ledger":
            found[key] = client.hget(key, "total")
        elif client.type(key) == b"set":
            found[key] = client.smembers(key)
        elif not key.startswith((b"{configured}:worker", b"{configured}:leases")):
            found[key] = client.dump(key)
    return found


def test_messages_that_celery_cannot_read_reach_its_own_handlers_and_not_the_ledger(
    broker: Broker, worker: StartWorker, load_app: LoadApp
) -> None:
    process = worker(broker, APP)
    jobs = load_app(broker, APP)
    assert jobs.exclusive.delay(note=1).get(timeout=30) == 1
    before = until(lambda: _steady(broker))
    headers = {"task": f"{APP}.exclusive", "id": "bad", "lang": "py"}
    with Connection(broker.broker_url) as connection:
        producer = connection.Producer()

        def put(body: Any, **options: Any) -> None:
            producer.publish(body, routing_key="celery", **options)

        put(b"no task at all", content_type="text/plain", content_encoding="utf-8")
        put(b"{not json", content_type="application/json", content_encoding="utf-8", headers=headers)
        put(b"x", content_type="application/x-nobody-knows", content_encoding="binary", headers=headers)
        put(b"cos\nsystem\n", content_type="application/x-python-serialize", content_encoding="binary", headers=headers)
        put([[], {}, {}], serializer="json", headers={**headers, "expires": "never"})
        put([[], {}, {}], serializer="json", headers={**headers, "task": "no.such.task"})
    process.wait_for_log("Received unregistered task of type 'no.such.task'")
    # The last of them was read, so all were; and the worker continues.
    assert jobs.plain.delay(note=2).get(timeout=30) == 2
    # A message of an unknown job is a dead letter.
    client = Orchestration(jobs.app)
    assert [letter.job for letter in client.dead_letters()] == ["no.such.task"]
    client.purge(everything=True)
    after = {key: value for key, value in ledger_of(broker).items() if not key.endswith((b":done:bad", b":audit"))}
    assert after == before
    assert jobs.exclusive.delay(note=3).get(timeout=30) == 3


def _steady(broker: Broker) -> dict[str, Any] | None:
    """The content of the ledger when no run is left."""
    found = ledger_of(broker)
    return None if any(b":run:" in key for key in found) else found


def test_an_unknown_task_fails_as_ever(redis_broker: Broker, worker: StartWorker, load_app: LoadApp) -> None:
    worker(redis_broker, APP)
    result = load_app(redis_broker, APP).app.send_task("no.such.task")
    assert isinstance(result.get(timeout=30, propagate=False), NotRegistered)


def test_a_call_that_the_key_does_not_fit_is_a_failed_run_like_any_other(
    redis_broker: Broker, worker: StartWorker, load_app: LoadApp, history: History
) -> None:
    worker(redis_broker, APP)
    jobs, job = load_app(redis_broker, APP), f"{APP}.keyed"
    client = Orchestration(jobs.app)

    def send(note: int) -> Any:
        return jobs.app.send_task(job, kwargs={"seconds": 0}, link_error=jobs.plain.si(note=note))

    first = send(1)
    with pytest.raises(ValueError, match=r"key '\{key\}' does not fit the call"):
        first.get(timeout=30)
    # A run that has to wait first fails when it is handed over.
    client.pause()
    second = send(2)
    until(lambda: client.status().waiting == 1, 30, "it waits")
    client.resume()
    with pytest.raises(ValueError, match=r"key '\{key\}' does not fit the call"):
        second.get(timeout=30)
    until(lambda: len(client.history(job)) == 2, 30, "both are in the history")
    ended = client.history(job)
    assert [(one.id, one.outcome) for one in ended] == [(second.id, "failed"), (first.id, "failed")]
    assert all("does not fit the call" in (one.error or "") for one in ended)
    assert {letter.id for letter in client.dead_letters(job)} == {first.id, second.id}
    [status] = client.status(jobs=[job]).jobs
    assert status.failures == 2
    # The slots are free again, and the errbacks were called.
    assert jobs.keyed.delay("a").get(timeout=30) == "a"
    until(lambda: {1, 2} <= {event.note for event in history.ended()}, 30, "errbacks run")

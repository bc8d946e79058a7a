"""Problems are found, with the command that fixes them; probes ask one question; workers answer for themselves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import redis
from celery.utils.nodenames import gethostname

from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Check, Diagnosis, Health, Orchestration
from support.processes import free_port
from support.servers import RedisServer
from support.stage import Stage
from support.wait import until
from support.workers import Broker, WorkerProcess, run_celery

RELEASES, PLAIN = "support.apps.releases", "support.apps.plain"
#: Of the releases app, in seconds.
LEASE = 3
FIRST = {"a": {"max_running": 1}, "b": {"depends_on": ["a"]}, "resize": {"pool": "images"}}
SECOND = {**FIRST, "a": {"max_running": 1, "depends_on": ["b"]}, "b": {"max_running": 1}}


def policies(of: dict[str, Any]) -> dict[str, str]:
    return {"TEST_POLICIES": json.dumps(of)}


@pytest.fixture
def durable_broker(redis_factory: Callable[..., RedisServer]) -> Broker:
    server = redis_factory(appendonly=True)
    return Broker("redis", server.url(0), server.url(1), server.url(0), server)


def examined(app: Any) -> Diagnosis:
    client = Orchestration(app)
    try:
        return client.doctor()
    finally:
        client.close()


def checked(app: Any, *asked: Any) -> Health:
    client = Orchestration(app)
    try:
        return client.health(*asked)
    finally:
        client.close()


def problems(found: Diagnosis) -> dict[str, list[Check]]:
    named: dict[str, list[Check]] = {}
    for check in found.checks:
        if check.state == "problem":
            named.setdefault(check.name, []).append(check)
    assert found.ok == (not named)
    return named


def asked(module: str, *arguments: str, broker: Broker, env: dict[str, str] | None = None) -> tuple[int, Any]:
    """Exit code and JSON of a command."""
    done = run_celery(module, *arguments, "--json", broker=broker, env=env)
    assert done.stderr == ""
    assert done.stdout.isascii()
    return done.returncode, json.loads(done.stdout)


# -- doctor


@pytest.mark.slow
def test_every_problem_is_found_and_nothing_else(
    stage_on: Callable[..., Stage], durable_broker: Broker, worker: Callable[..., WorkerProcess]
) -> None:
    stage = stage_on(durable_broker, RELEASES, env=policies(FIRST))
    first = stage.worker("threads", options=["-Q", "celery,images.normal"])
    until(lambda: {check.state for check in examined(stage.app).checks} == {"fine"}, 30, "nothing is wrong", poll=0.5)

    code, found = asked(RELEASES, "orchestration", "doctor", broker=durable_broker, env=stage.env)
    assert (code, problems(Diagnosis.model_validate(found))) == (0, {})

    stranger = worker(durable_broker, PLAIN, pool="solo", ready=False)
    second = stage.worker("threads", env=policies(SECOND), queues=["celery"])
    stranger.wait_ready()
    client = Orchestration(stage.app)
    client.pause("to see")
    durable_broker.redis.client().config_set("maxmemory-policy", "allkeys-lru")
    durable_broker.redis.client().config_set("appendonly", "no")

    def all_found() -> dict[str, list[Check]] | None:
        named = problems(client.doctor())
        return named if named.keys() >= {"eviction", "persistence", "cycles", "strangers", "pause"} else None

    named = until(all_found)
    assert set(named) == {"eviction", "persistence", "cycles", "strangers", "pause"}
    [cycle] = named["cycles"]
    assert "a → b → a" in cycle.found
    assert first.hostname in cycle.found
    assert second.hostname in cycle.found
    assert f"control shutdown -d {first.hostname} " in str(cycle.fix)
    [unknown] = named["strangers"]
    assert f"{stranger.hostname} serves celery" in unknown.found
    assert "runs that wait are lost" in named["persistence"][0].found

    # The suggested fixes work.
    durable_broker.redis.client().config_set("maxmemory-policy", "noeviction")
    durable_broker.redis.client().config_set("appendonly", "yes")
    client.resume()
    ended = f"{first.hostname},{stranger.hostname}"
    run_celery(RELEASES, "control", "shutdown", "-d", ended, broker=durable_broker, env=stage.env)
    until(lambda: set(problems(client.doctor())) == {"queues"}, 30, "the first one's queue is left alone")
    assert "no live worker serves queue images.normal" in problems(client.doctor())["queues"][0].found
    client.close()

    done = run_celery(RELEASES, "orchestration", "doctor", broker=durable_broker, env={**stage.env, "COLUMNS": "60"})
    assert (done.returncode, done.stderr) == (1, "")
    *_, to_type, _ = lines = done.stdout.splitlines()
    assert to_type.endswith("worker -n images.normal@%h -Q images.normal"), "a line to type is not cut"
    assert all(len(line) <= 60 for line in lines if line != to_type)
    assert lines[-1] == "1 problem"


@pytest.mark.parametrize(
    ("env", "name", "words"),
    [
        (policies({"a": {"depends_on": ["b"], "max_running": 1}, "b": {"depends_on": ["a"], "max_running": 1}}),
         "cycles", "this code has a dependency cycle: a -> b -> a"),
        (policies({"fetch": {}, "b": {"depends_on": ["fetsh"]}}), "code", "did you mean 'fetch'?"),
        (policies({"a": {"interval_secnds": 5}, "b": {"depends_on": ["a"]}}),
         "code", "did you mean 'interval_seconds'?"),
        ({**policies({"a": {}}), "CELERY_ORCHESTRATION_MODE": "maybe"}, "code", "CELERY_ORCHESTRATION_MODE should be"),
    ],
    ids=["cycle", "name", "option", "setting"],
)  # fmt: skip
def test_code_that_no_worker_would_start_with_is_a_finding(
    durable_broker: Broker, load_app: Callable[..., ModuleType], env: dict[str, str], name: str, words: str
) -> None:
    if name == "cycles" or "CELERY_ORCHESTRATION_MODE" in env:
        code, found = asked(RELEASES, "orchestration", "doctor", broker=durable_broker, env=env)
        named = problems(Diagnosis.model_validate(found))
        assert code == 1
    else:
        named = problems(examined(load_app(durable_broker, RELEASES, env=env).app))
    assert [words in check.found for check in named.pop(name)] == [True]
    assert set(named) <= {"queues"}, "and beyond that, that nobody has started a worker"


def test_without_redis_one_check_says_where_it_was_looked_for() -> None:
    port = free_port()
    url = f"redis://user:secret@127.0.0.1:{port}/0"
    nowhere = Broker("none", url, "cache+memory://", url, redis=None)  # type: ignore[arg-type]
    began = time.monotonic()
    done = run_celery(RELEASES, "orchestration", "doctor", "--json", broker=nowhere)
    assert time.monotonic() - began < 30
    found = Diagnosis.model_validate_json(done.stdout)
    assert (done.returncode, done.stderr, "secret" in done.stdout) == (1, "", False)
    [only] = found.checks
    assert (only.name, only.state) == ("redis", "problem")
    assert f"the ledger at redis://user:**@127.0.0.1:{port}/0 does not answer" in only.found

    done = run_celery(RELEASES, "orchestration", "health", broker=nowhere)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"the ledger at redis://user:**@127.0.0.1:{port}/0 does not answer: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_broker_that_is_down_is_a_finding_among_others(
    durable_broker: Broker, load_app: Callable[..., ModuleType]
) -> None:
    down = replace(durable_broker, broker_url=f"amqp://user:secret@127.0.0.1:{free_port()}//")
    loaded = load_app(down, RELEASES, env=policies(FIRST))
    found = examined(loaded.app)
    assert set(problems(found)) == {"broker", "queues"}
    assert "secret" not in found.model_dump_json()
    assert {check.name: check.state for check in found.checks}["strangers"] == "unknown"


def test_settings_that_redis_hides_are_unknown(durable_broker: Broker, load_app: Callable[..., ModuleType]) -> None:
    may = ("~*", "&*", "+@all", "-info", "-config")
    durable_broker.redis.client().execute_command("ACL", "SETUSER", "team", "on", ">secret", *may)
    url = durable_broker.broker_url.replace("redis://", "redis://team:secret@")
    loaded = load_app(replace(durable_broker, broker_url=url), RELEASES, env=policies(FIRST))
    found = examined(loaded.app)
    unknown = {check.name for check in found.checks if check.state == "unknown"}
    assert unknown == {"redis", "eviction", "persistence", "memory"}


def test_the_ledger_of_another_app_is_refused_in_words(
    durable_broker: Broker, load_app: Callable[..., ModuleType]
) -> None:
    durable_broker.redis.client().hset(key_of("{releases}:", "ledger"), mapping={"owner": "somebody", "schema": 1})
    app = load_app(durable_broker, RELEASES, env=policies(FIRST)).app
    [only] = examined(app).checks
    assert "belongs to the app 'somebody'" in only.found
    assert "belongs to the app 'somebody'" in str(checked(app).problem)
    durable_broker.redis.client().hset(key_of("{releases}:", "ledger"), mapping={"owner": "releases", "schema": 99})
    assert "data layout 99" in str(checked(app).problem)


# -- health


def commands_seen(client: redis.Redis, act: Callable[[], Any]) -> list[str]:
    """The commands that Redis got meanwhile, without those of its scripts and those of a new connection."""
    with client.monitor() as monitor:
        act()
        client.echo("over")
        seen = []
        while (one := monitor.next_command())["command"] != "ECHO over":
            seen.append(one)
    outside = [one["command"].split(" ")[0].upper() for one in seen if one["client_type"] != "lua"]
    return [name for name in outside if name not in ("HELLO", "AUTH", "CLIENT", "SELECT")]


@pytest.mark.slow
def test_health_is_one_question(stage_on: Callable[..., Stage], durable_broker: Broker) -> None:
    stage = stage_on(durable_broker, RELEASES, env=policies(FIRST))
    process = stage.worker("threads")
    name = process.hostname
    until(lambda: checked(stage.app, name).ok, message="it is registered")
    assert (checked(stage.app, name).workers, checked(stage.app).worker) == (1, None)
    assert 0 < checked(stage.app, name).lease_seconds <= LEASE
    assert checked(stage.app).at is not None

    code, found = asked(RELEASES, "orchestration", "health", "--worker", name, broker=durable_broker, env=stage.env)
    assert (code, Health.model_validate(found).worker) == (0, name)
    done = run_celery(RELEASES, "orchestration", "health", "--scheduler", broker=durable_broker, env=stage.env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("this app's beat is celery.beat:PersistentScheduler")

    process.kill()  # the ledger clock stands still: its silence counts
    until(lambda: not checked(stage.app, name).ok)
    assert "has run out" in str(checked(stage.app, name).problem)
    until(lambda: checked(stage.app).workers == 0, message="it counts no more")
    assert checked(stage.app).ok
    assert "no worker 'celery@elsewhere'" in str(checked(stage.app, "elsewhere").problem), "a name as -n has it"
    assert checked(stage.app, "w1@%h").worker == f"w1@{gethostname()}"

    # When no worker asks anything any more: it is one command, and the broker is not asked at all.
    client = stage.broker.redis.client()
    command = ("orchestration", "health", "--worker", name)
    seen = commands_seen(client, lambda: run_celery(RELEASES, *command, broker=durable_broker, env=stage.env))
    assert seen == ["FCALL"]


def test_nothing_may_start_in_a_new_epoch(durable_broker: Broker, load_app: Callable[..., ModuleType]) -> None:
    app = load_app(durable_broker, RELEASES, env=policies(FIRST)).app
    client = durable_broker.redis.client()
    fields = {"owner": "releases", "schema": 1, "epoch": "1", "clock": 1000, "opens": 4000}
    client.hset(key_of("{releases}:", "ledger"), mapping=fields)
    client.hset(key_of("{releases}:", "ledger"), "why", "moved")
    found = checked(app)
    assert (found.ok, found.opens_in_seconds) == (False, 3)
    assert "was restarted or failed over" in str(found.problem)


# -- inspect


@pytest.mark.slow
def test_workers_speak_for_themselves_without_redis_too(
    stage_on: Callable[..., Stage], redis_broker: Broker, redis_factory: Callable[..., RedisServer]
) -> None:
    ledger = redis_factory(name="ledger", requirepass="secret")
    at = ledger.url(0).replace("redis://", "redis://:secret@")
    env = {**policies(FIRST), "CELERY_ORCHESTRATION_REDIS_URL": at}
    stage = stage_on(replace(redis_broker, ledger_url=ledger.url(0)), RELEASES, env=env)
    off = stage.worker("solo", env={"CELERY_ORCHESTRATION_MODE": "off"}, queues=["others"], ready=False)
    process = stage.worker("prefork", concurrency=3, queues=["celery", "default.low"])
    off.wait_ready()

    run = stage.send(stage.jobs.jobs["a"], "go")
    start = stage.started(run).start
    code, everybody = asked(RELEASES, "inspect", "orchestration", broker=redis_broker, env=stage.env)
    assert (code, "secret" in json.dumps(everybody)) == (0, False)
    assert everybody[off.hostname]["mode"] == "off"
    found = everybody[process.hostname]
    assert {key: found[key] for key in ("mode", "problem", "namespace", "execution_pool", "draining")} == {
        **{"mode": "enforce", "problem": None, "namespace": "releases", "execution_pool": "prefork", "draining": False}
    }
    assert found["ledger"].endswith(f"**@127.0.0.1:{ledger.port}/0")
    assert (found["slots"], found["free_slots"]) == (3, 2)
    assert [(one["id"], one["job"], one["fence"]) for one in found["runs"]] == [(run.id, "a", start.fence)]
    assert found["runs"][0]["since"].endswith("+00:00")
    assert set(found["queues"]) == {"celery", "default.low", "default.granted"}
    assert 0 <= found["last_heartbeat_seconds"] < LEASE
    assert abs(found["clock_ahead_seconds"]) < 1
    assert found["release"]
    assert found["version"]

    def told() -> Any:
        return stage.app.control.inspect([process.hostname])._request("orchestration")[process.hostname]

    ledger.kill()
    found = until(lambda: (now := told())["problem"] and now, 30, "it says that Redis is gone")
    assert f"127.0.0.1:{ledger.port}" in found["problem"]
    assert [one["id"] for one in found["runs"]] == [run.id]
    ledger.start()
    until(lambda: told()["problem"] is None, 30, "it is well again")
    stage.release("go")

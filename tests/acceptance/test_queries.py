"""Questions from the shell: status, watch, history and graph, in a terminal and without one."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

from celery_orchestration.operate import DependencyGraph, Ended, Orchestration, Status, broker
from support.invariants import status_of
from support.stage import Stage
from support.terminal import Terminal
from support.wait import until
from support.workers import Broker, celery_command, environment, run_celery

APP = "support.apps.releases"
EVIL = 'evil\x1b[31m\x07"]; end\r\n\u202egnol'

QUEUES = ["celery", "default.low", "images.normal"]
POLICIES: dict[str, dict[str, Any]] = {
    "shop.fetch": {"max_running": 1},
    "shop.process": {"max_running": 1, "depends_on": ["shop.fetch"]},
    "shop.report": {"depends_on": ["shop.process"]},
    "shop.cleanup": {"blocks": ["shop.process"], "priority": "low"},
    "shop.images": {"pool": "images"},
    EVIL: {"blocks": ["shop.fetch"]},
}


@pytest.fixture
def stage(stage_on: Callable[..., Stage], redis_broker: Broker) -> Stage:
    return stage_on(redis_broker, APP, env={"TEST_POLICIES": json.dumps(POLICIES)})


def ask(stage: Stage, *arguments: str, columns: int = 100) -> CompletedProcess[str]:
    env = {**stage.env, "COLUMNS": str(columns)}
    return run_celery(APP, "orchestration", *arguments, broker=stage.broker, env=env)


def terminal(stage: Stage, *arguments: str, **options: Any) -> Terminal:
    env = {**environment(), **stage.broker.env(), **stage.env}
    return Terminal(celery_command(stage.module, "orchestration", *arguments), env, **options)


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_jobs_are_looked_at_from_all_sides(stage):
    stage.worker("threads", concurrency=3, queues=QUEUES)
    fetching = stage.send(stage.jobs.jobs["shop.fetch"], "go")
    stage.started(fetching)
    stage.send(stage.jobs.jobs["shop.process"], "go")
    stage.wait_waiting(1)

    # Everything is all right; only a part of it is asked for.
    whole = ask(stage, "status")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.startswith("releases: 1 running, 1 waiting; everything is all right\n")
    filtered = ask(stage, "status", "--job", "shop.f*", "--json")
    assert filtered.returncode == 0
    found = Status.model_validate_json(filtered.stdout)
    assert ([one.name for one in found.jobs], found.running, found.waiting) == (["shop.fetch"], 1, 0)
    assert ([one.id for one in found.runs], found.waits) == ([fetching.id], [])
    waiting = ask(stage, "status", "--state", "waiting", "--state", "disabled").stdout
    assert "shop.process" in waiting
    assert "\nshop.fetch" not in waiting
    pool = Status.model_validate_json(ask(stage, "status", "--pool", "images", "--json").stdout)
    assert [one.name for one in pool.jobs] == ["shop.images"]
    assert [one.name for one in pool.queues] == ["images.granted", "images.normal"]

    # The graph.
    text = ask(stage, "graph")
    assert (text.returncode, text.stderr) == (0, "")
    assert harmless(text.stdout)
    assert "\nshop.fetch  running  ✕ evil" in text.stdout
    assert "\n└─ shop.process  waiting  ✕ shop.cleanup\n   └─ shop.report\n" in text.stdout
    relations = DependencyGraph.model_validate_json(ask(stage, "graph", "shop.report", "--json").stdout)
    assert [one.name for one in relations.jobs] == ["shop.fetch", "shop.process", "shop.report"]
    for form, head in (("mermaid", "flowchart TD\n"), ("dot", 'digraph "releases" {\n')):
        done = ask(stage, "graph", "--format", form)
        assert (done.returncode, done.stdout[: len(head)]) == (0, head)
        assert harmless(done.stdout)

    # The history.
    stage.release("go")
    stage.all_well()
    runs = ask(stage, "history", "shop.process")
    assert runs.returncode == 0
    assert f"{stage.sent[1].id}  " in runs.stdout
    assert "for shop.fetch" in runs.stdout
    ended = [Ended(**one) for one in json.loads(ask(stage, "history", "shop.fetch", "--json").stdout)]
    assert [(one.id, one.outcome) for one in ended] == [(fetching.id, "succeeded")]
    assert ask(stage, "history", "shop.fetch", "--outcome", "failed").stdout == "no such run has ended yet\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "--job", "shop.fech"), "Error: no registered job matches 'shop.fech'"),
        (("status", "--state", "runing"), "'runing' is not one of 'idle', 'running', 'waiting', 'disabled', 'overdue'"),
        (("graph", "shop.fech"), "Error: there is no job 'shop.fech', did you mean 'shop.fetch'?"),
        (("graph", "--format", "svg"), "'svg' is not one of 'text', 'mermaid', 'dot'"),
        (("history", "shop.fetch", "--outcome", "lost"), "'lost' is not one of 'succeeded'"),
        (("watch", "--interval", "0.1"), "0.1 is not in the range x>=0.2"),
        (("watch", "--job", "shop.fech"), "matches 'shop.fech'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_word_is_reported_and_exits_with_2(stage, arguments, words):
    done = ask(stage, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_jobs_of_the_code_are_in_the_graph_before_a_worker_has_registered_them(stage):
    found = ask(stage, "graph", "shop.report")
    assert found.returncode == 0
    assert found.stdout.count("unknown to the ledger") == 3


def test_in_a_window_the_status_changes_until_it_is_ended(stage):
    """It follows the size of the window, survives an outage of Redis, and leaves the terminal as it was."""
    with terminal(stage, "watch", "--interval", "0.2") as window:
        window.shows("^releases: 0 running, 0 waiting$")
        window.shows("^! no worker is alive$")
        stage.worker("threads", queues=QUEUES)
        window.shows("^releases: 0 running, 0 waiting; everything is all right$")
        window.shows("^shop.process")  # a worker registers a moment before its jobs do
        window.resize(12, 50)
        screen = until(lambda: len(found := window.screen()) <= 12 and found)
        assert max(map(len, screen)) <= 50

        window.resize(40, 140)
        stage.broker.redis.kill()
        window.shows(r"^releases: 0 running, 0 waiting: no answer for \d+ s, the last status is shown; the ledger at")
        stage.broker.redis.start()
        window.shows("^releases: 0 running, 0 waiting(; everything is all right)?$")

        window.press("q")
        assert window.ends() == 0
        assert window.is_as_before()
        assert b"Traceback" not in window.written


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_however_it_is_ended_the_terminal_is_as_before(stage, how):
    with terminal(stage, "watch") as window:
        window.shows("no worker is alive")
        if how == "Ctrl-C":
            window.press("\x03")
        else:
            window.process.send_signal(signal.SIGTERM)
        assert window.ends() == (0 if how == "Ctrl-C" else 143)
        assert window.is_as_before()
        assert b"Traceback" not in window.written


def test_running_runs_have_bars(stage_on, redis_broker):
    stage = stage_on(redis_broker, "support.apps.limits")
    stage.worker()
    stage.send(stage.jobs.telling, "end", (45, 100, "pages"))
    until(lambda: any(run.progress for run in status_of(stage.app).runs))
    with terminal(stage, "watch", "--count", "1", columns=140) as window:
        assert window.ends(20) == 0
        assert "45/100 █████████░░░░░░░░░░░ pages" in window.written.decode()
    stage.release("end")
    stage.all_well()


def test_a_terminal_without_our_characters_shows_others(stage):
    env = {**stage.env, "PYTHONIOENCODING": "ascii"}
    for arguments in (("graph",), ("graph", "--format", "dot")):
        done = run_celery(APP, "orchestration", *arguments, broker=stage.broker, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()


def test_in_a_dumb_terminal_the_status_is_printed_too(stage):
    with terminal(stage, "watch", "--count", "1", term="dumb") as window:
        assert window.ends(20) == 0
        assert b"releases: 0 running" in window.written
        assert b"\x1b" not in window.written


def test_without_a_terminal_the_status_is_printed_again_and_again(stage):
    done = ask(stage, "watch", "--count", "2", "--interval", "0.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("releases: 0 running, 0 waiting\n! no worker is alive\n") == 2
    assert "\x1b" not in done.stdout
    done = ask(stage, "watch", "--count", "2", "--interval", "0.2", "--json")
    found = [Status.model_validate_json(line) for line in done.stdout.splitlines()]
    assert found[0].at < found[1].at


def test_runs_that_a_busy_worker_has_fetched_are_shown_and_can_be_cancelled(
    stage_on: Callable[..., Stage], rabbitmq_broker: Broker
) -> None:
    """With Celery's own prefetching: with ours, a worker fetches no message that it cannot begin."""
    stage = stage_on(rabbitmq_broker)
    process = stage.worker(concurrency=1, env={"CELERY_ORCHESTRATION_FETCH": "celery"})
    client, job = Orchestration(stage.app), stage.jobs.free.name
    first = stage.send(stage.jobs.held_free, "first")
    stage.started(first)
    unwanted, *others = [stage.send(stage.jobs.free) for _ in range(3)]
    until(lambda: [one.fetched for one in client.status().workers] == [3], 30, "all are fetched")
    for about in (unwanted.id, unwanted.id[:8]):
        found = client.explain(client.find_run(about))
        assert (found.root.code, found.job, found.run) == ("fetched", job, unwanted.id)
        assert f"was fetched by {process.hostname}, and waits for a free slot there" in found.root.text
    found = client.explain(job)
    assert found.root.code == "fetched"
    assert found.root.text.endswith("as do 2 more")
    assert client.cancel(unwanted.id).state == "fetched"
    stage.release("first")
    for result in others:
        result.get(timeout=30)
    until(lambda: unwanted.state == "REVOKED", 20)
    assert stage.starts(unwanted) == []
    client.close()


def test_explain_knows_runs_that_a_rate_limit_holds_back(stage_on: Callable[..., Stage], redis_broker: Broker) -> None:
    stage = stage_on(redis_broker, "support.apps.configured")
    stage.worker()
    client, job = Orchestration(stage.app), "support.apps.configured.limited"
    # The first one passed the rate limit, waited for the gate, and comes to the limit again when it is handed over.
    client.pause()
    handed_over = stage.send(stage.jobs.limited)
    until(lambda: client.status().waiting == 1, 30, "it waits")
    client.resume()
    until(lambda: client.explain(handed_over.id).root.code == "rate_limit", 30, "then it is held back")
    # The ledger does not know the second one.
    arrived = stage.send(stage.jobs.limited)
    told = broker.answers
    until(lambda: arrived.id in str(told(stage.app, "orchestration").replies), 30, "so is the second")
    for about in (arrived.id, arrived.id[:8]):
        found = client.explain(about)
        assert (found.root.code, found.job, found.run) == ("rate_limit", job, arrived.id)
        assert f"may start 1/h (rate_limit): worker {stage.workers[0].hostname} holds run" in found.root.text
    found = client.explain(job)
    assert (found.root.code, found.root.wrong) == ("rate_limit", False)
    assert "holds 2 runs back" in found.root.text
    client.close()

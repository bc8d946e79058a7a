"""Edge cases of the command line: typing errors, missing objects, and hostile names.

Most tests run in this process, with one Redis whose ledger has objects of all kinds, without a worker.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import os
import pty
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from pydantic import TypeAdapter

from celery_orchestration import OrchestratedTask, Orchestration
from celery_orchestration.cli import orchestration
from celery_orchestration.errors import UnknownRun
from celery_orchestration.job.app import SCHEDULER, read_settings
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Ledger, Outcome, Presence
from celery_orchestration.ledger.keys import encode_job
from celery_orchestration.node import releases
from celery_orchestration.operate import schema
from support.hostile import TEXTS
from support.proxy import DroppingProxy
from support.servers import RedisServer
from support.verbs import ANY
from support.workers import celery_command, close_app, environment, run_celery

APP = "support.apps.jobs"
#: Nothing listens there.
NOWHERE = "redis://:geheim@127.0.0.1:1/3"
JOB, HELD = "shop.fetch", "shop.process"
#: They stand for the id of a run or the name of an entry that was made for the command.
WAITING, DEAD, ENTRY, NEW = "<waiting>", "<dead>", "<entry>", "<new>"

#: Every command, with arguments that it accepts.
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("explain", JOB),
    ("watch", "--count", "1"),
    ("history", JOB),
    ("graph",),
    ("graph", JOB, "--format", "dot"),
    ("audit",),
    ("forecast", "--hours", "1"),
    ("disable", JOB, "--reason", "why"),
    ("enable", JOB),
    ("pause", "--reason", "why"),
    ("resume",),
    ("trigger", JOB),
    ("requeue", DEAD),
    ("cancel", WAITING),
    ("release", "--yes"),
    ("dlq", "list"),
    ("dlq", "list", "--job", JOB),
    ("dlq", "show", DEAD),
    ("dlq", "requeue", DEAD),
    ("dlq", "purge", DEAD, "--yes"),
    ("schedule", "list"),
    ("schedule", "add", NEW, JOB, "60"),
    ("schedule", "update", ENTRY, "--when", "30"),
    ("schedule", "pause", ENTRY),
    ("schedule", "resume", ENTRY),
    ("schedule", "remove", ENTRY),
    ("explain", "pool:images"),
    ("pools", "--desired"),
    ("pools", "--watch", "--count", "1"),
)

#: They serve, or print in a format of their own.
OTHERS = (("metrics",), ("dashboard",))
#: They also report it if something could not be asked.
CHECKS = (("doctor",), ("health",), ("health", "--worker", "hand", "--scheduler"))

#: They run until they are ended, and have tests of their own.
GOING_ON = (("up",),)


def named(command: tuple[str, ...]) -> str:
    return " ".join(command)[:80]


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def call(app: Celery, *arguments: str, **options: Any) -> Result:
    """Runs ``celery -A app orchestration …`` in this process."""
    context = CLIContext(app=app, no_color=False, workdir=None)
    return CliRunner().invoke(orchestration, arguments, obj=context, **options)


def is_one_line(result: Result, exit_code: int) -> bool:
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return re.fullmatch(r"Error: [^\n]+\n", result.stderr) is not None and harmless(result.stderr)


@dataclass
class Site:
    """An app whose ledger has jobs, runs, dead letters and entries with all the names."""

    app: Celery
    ledger: Ledger
    turns: int = 0
    made: int = 0

    def bring(self) -> None:
        """Registers policies as a worker does."""
        jobs = jobs_of(self.app)
        release = releases.release(jobs, None)
        presence = Presence(
            worker="hand", name=f"hand@{TEXTS['ansi']}", host="test", pid=1, slots=9999, kind="solo",
            queues=("celery", "default.granted", TEXTS["newline"]), release=release.name, mode="enforce",
            lease_ms=600_000, owner="shop", done_ms=600_000, policies=release.document,
            jobs=tuple(map(encode_job, jobs)),
        )  # fmt: skip
        found = self.ledger.register(presence)
        assert self.ledger.install_policies(found.live, None, releases.merged([release.document]).jobs)

    def take_in(self, job: str, id: str, key: str = "", eta_ms: int | None = None) -> Any:
        self.turns += 1
        headers = {"task": job, "id": id, "lang": "py", "argsrepr": key, "kwargsrepr": key}
        envelope = Envelope(
            body=b"[[], {}, {}]", headers=headers, properties={}, exchange="", routing_key="celery",
            content_type="application/json", content_encoding="utf-8",
        )  # fmt: skip
        run = (id, 0, encode_job(job), key, 1, "", None, "celery", "default.granted")
        arrival = Arrival(*run, envelope.pack(), eta_ms)
        [answer] = self.ledger.turn("hand", self.turns, "enforce", 0, [], [arrival]).answers
        return answer

    def waits(self, name: str = "run") -> str:
        """Makes a waiting run. Returns its id."""
        self.made += 1
        assert self.take_in(HELD, f"{name}-{self.made}", name).what == "wait"
        return f"{name}-{self.made}"

    def dies(self, job: str = JOB, name: str = "run", id: str | None = None) -> str:
        """Makes a run that failed for good. Returns its id."""
        self.made += 1
        id = f"{name}-{self.made}" if id is None else id
        answer = self.take_in(job, id)
        assert answer.what == "start", answer
        self.turns += 1
        outcome = Outcome(id, answer.fence, "failed", f"ValueError: {name}", f"Traceback: {name}")
        self.ledger.turn("hand", self.turns, "enforce", 0, [outcome], [])
        return id

    def adds(self, name: str = "entry") -> str:
        """Makes an entry. Returns its name."""
        self.made += 1
        name = f"{name}-{self.made}"
        assert call(self.app, "schedule", "add", name, JOB, "60").exit_code == 0
        return name

    def call(self, *arguments: str, **options: Any) -> Result:
        """Makes the object of the command first."""
        self.made += 1
        makers = {WAITING: self.waits, DEAD: self.dies, ENTRY: self.adds, NEW: lambda: f"new-{self.made}"}
        words = [makers[word]() if word in makers else word for word in arguments]
        return call(self.app, *words, **options)


def make_app(url: str) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.beat_scheduler = SCHEDULER
    app.conf.orchestration_pools = {"images": {"min": 0}}

    def nothing() -> None:
        pass

    for name in (JOB, HELD, *TEXTS.values()):
        options = {"max_running": 1, "key": lambda: ""} if name in TEXTS.values() else {}
        app.task(base=OrchestratedTask, name=name, shared=False, **options)(nothing)
    app.finalize()
    return app


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.cleanup()


@pytest.fixture(scope="module")
def site(server: RedisServer) -> Iterator[Site]:
    app = make_app(server.url(0))
    site = Site(app, Ledger.of(app, read_settings(app)))
    site.bring()
    site.ledger.enable_or_disable(HELD, False, "me", "")
    for text in TEXTS.values():
        site.dies(text, text)
        running = site.take_in(text, f"{text}-running", text)
        site.ledger.record_progress(
            [(f"{text}-running", running.fence, json.dumps({"done": 1, "total": 2, "note": text}))]
        )
        assert site.take_in(text, f"{text}-waiting", text).what == "wait"
        assert site.call("schedule", "add", text, text, "60").exit_code == 0
        assert site.call("schedule", "pause", text, "--reason", text).exit_code == 0
    site.ledger.lead("beat", f"beat@{TEXTS['ansi']}", 600_000, "")
    yield site
    site.ledger.close()
    close_app(app)


# -- everything, once


@pytest.mark.parametrize("command", [*COMMANDS, *CHECKS], ids=named)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_every_command_succeeds_and_its_output_is_harmless(site, command, as_json):
    result = site.call(*command, *(["--json"] if as_json else []))
    may_find = command[0] in ("explain", "doctor", "health", "forecast")
    assert result.exit_code == 0 or (result.exit_code == 1 and may_find), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert harmless(result.output), result.output
    assert result.stdout if as_json or not may_find else result.output
    if as_json:
        assert result.stdout.isascii()
        TypeAdapter(schema.model_of(command)).validate_json(result.stdout)


def test_no_command_is_left_out():
    def all_of(group: Any, *names: str) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from all_of(command, *names, name)
            else:
                yield (*names, name)

    known = {command[:size] for command in (*COMMANDS, *CHECKS, *OTHERS, *GOING_ON) for size in (1, 2)}
    assert [one for one in all_of(orchestration) if one not in known] == []


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_hostile_names_are_shown_harmlessly_by_every_command(site, as_json):
    for text in TEXTS.values():
        for command in (
            ("history", text),
            ("explain", text),
            ("disable", text, "--reason", text),
            ("enable", text),
            ("pause", "--reason", text),
            ("resume", "--reason", text),
            ("trigger", text),
            ("cancel", site.waits(text)),
            ("dlq", "list", "--job", text),
            ("dlq", "show", letter := site.dies(name=text)),
            ("dlq", "requeue", letter),
            ("dlq", "purge", site.dies(name=text), "--yes"),
            ("schedule", "update", text, "--when", "30", "--queue", text),
            ("schedule", "resume", text),
            ("schedule", "remove", text),
            ("schedule", "add", text, text, "60", "--queue", text),
            ("schedule", "pause", text, "--reason", text),
            ("status",),
            ("audit",),
        ):
            result = site.call(*command, *(["--json"] if as_json else []), env={"COLUMNS": "300"})
            assert (result.exit_code, result.stderr) in {(0, ""), (int(command[0] == "explain"), "")}, (command, result)
            assert harmless(result.stdout), (command, result.stdout)


def test_unknown_hostile_names_are_shown_harmlessly(site):
    for text in TEXTS.values():
        word = f"{text} nobody"
        for command in (
            ("history", word),
            ("explain", word),
            ("enable", word),
            ("trigger", word),
            ("cancel", word),
            ("dlq", "list", "--job", word),
            ("dlq", "show", word),
            ("dlq", "requeue", word),
            ("dlq", "purge", word, "--yes"),
            ("schedule", "remove", word),
            ("schedule", "add", word, word, word),
        ):
            assert is_one_line(site.call(*command), 2), command


# -- wrong usage


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("history", "fetch"), "no worker has registered a job 'fetch' yet, did you mean 'shop.fetch'?"),
        (("explain", "shop.fetsch"), "did you mean 'shop.fetch'?"),
        (("enable", "shop.fetsch"), "did you mean 'shop.fetch'?"),
        (("disable", "shop.fetsch"), "did you mean 'shop.fetch'?"),
        (("trigger", "shop.proces"), "there is no job 'shop.proces' in this app, did you mean 'shop.process'?"),
        (("dlq", "list", "--job", "fetch"), "did you mean 'shop.fetch'?"),
        (("dlq", "requeue", "--job", "fetch"), "did you mean 'shop.fetch'?"),
        (("dlq", "purge", "--job", "fetch", "--yes"), "did you mean 'shop.fetch'?"),
        (("history", "x"), "no worker has registered a job 'x' yet"),
        *(((*words, "\udcff"), "there is no ") for words in (("explain",), ("cancel",), ("dlq", "show"), ("graph",))),
        *(((*words, "\udcff"), "registered a job") for words in (("history",), ("enable",), ("dlq", "list", "--job"))),
        (("history", "x" * 300), "no worker has registered a job"),
        (("cancel", "nobody"), "there is no run 'nobody', or it has ended"),
        (("dlq", "show", "nobody"), "there is no dead letter 'nobody'"),
        (("dlq", "requeue", "nobody"), "there is no dead letter 'nobody'"),
        (("dlq", "purge", "nobody", "--yes"), "there is no dead letter 'nobody'"),
        (("schedule", "remove", "a:c"), "there is no entry 'a:c' in the schedule, did you mean 'a:b'?"),
        (("schedule", "pause", "a:c"), "there is no entry 'a:c' in the schedule"),
        (("schedule", "resume", "a:c"), "there is no entry 'a:c' in the schedule"),
        (("schedule", "update", "a:c", "--when", "5"), "there is no entry 'a:c' in the schedule"),
        (("schedule", "list", "--job", "fetch"), "no entry fires 'fetch', did you mean 'shop.fetch'?"),
        (("schedule", "update", "a:b"), "give something to change"),
        (("schedule", "update", "a:b", "--when", "often"), "often"),
        (("schedule", "add", "new", "shop.proces", "5"), "there is no task 'shop.proces' in this app"),
        (("schedule", "add", "new", JOB, "sixty"), "a crontab has 5 fields, and this has 1"),
        (("schedule", "add", "new", JOB, "5", "--args", "[1, 2]"), "cannot be called like that"),
        (("schedule", "add", "new", JOB, "0"), "above zero"),
        (("schedule", "add", "a:b", JOB, "5"), "there is an entry 'a:b' already"),
        (("schedule", "add", "", JOB, "5"), "an entry needs a name"),
        (("schedule", "remove", ""), "an entry needs a name"),
        (("trigger", JOB, "--args", "[1, 2]"), "cannot be called like that"),
    ],
    ids=lambda value: named(value) if isinstance(value, tuple) else "",
)
def test_unknown_names_and_wrong_usage_print_one_line_and_exit_with_2(site, command, says):
    for options in ((), ("--json",)):
        result = site.call(*command, *options)
        assert is_one_line(result, 2), result.output
        assert says in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("sttus",),
        ("status", "--jsn"),
        ("history",),
        ("history", JOB, "--count", "0"),
        ("history", JOB, "--count", "many"),
        ("audit", "--count", "-1"),
        ("trigger", JOB, "--args", "{"),
        ("trigger", JOB, "--args", "{}"),
        ("trigger", JOB, "--args", "[" * 100_000),
        ("trigger", JOB, "--kwargs", "[]"),
        ("dlq",),
        ("dlq", "list", "--count", "0"),
        ("dlq", "requeue"),
        ("dlq", "requeue", "x", "--all"),
        ("dlq", "purge", "--yes"),
        ("schedule", "add", "new"),
        ("schedule", "list", "--count", "0"),
        ("schedule", "add", "new", JOB, "5", "--args", "nothing"),
        ("schedule", "update", "a:b", "--kwargs", "nothing"),
    ],
    ids=named,
)
def test_options_with_bad_values_are_usage(site, command):
    result = site.call(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


# -- the beginning of an id


@pytest.fixture
def client(site: Site) -> Iterator[Orchestration]:
    client = Orchestration(site.app)
    yield client
    client.close()


def test_a_run_is_found_by_the_beginning_of_its_id(site, client):
    for id in ("beef-0001", "beef-0002", "beefsteak", "be"):
        site.take_in(HELD, id)
    assert client.find_run("beef-0001") == "beef-0001"
    assert client.find_run("beefs") == "beefsteak"
    assert client.find_run("be") == "be", "a whole one may be as short as it likes"
    for word, says in {
        "bee": "there is no run 'bee', or it has ended",  # too short
        "": "there is no run '', or it has ended",
        "beef!": "there is no run 'beef!', or it has ended",
        "beef": "'beef' may mean 'beef-0001', 'beef-0002', 'beefsteak': give more of its id",
    }.items():
        with pytest.raises(UnknownRun, match=re.escape(says)):
            client.find_run(word)
        assert is_one_line(site.call("cancel", word), 2)
        assert is_one_line(site.call("explain", word), 2)
    assert json.loads(site.call("explain", "beefs", "--json").stdout)["run"] == "beefsteak"
    with pytest.raises(UnknownRun, match="there is no dead letter 'beefs'"):
        client.find_run("beefs", dead=True)
    assert site.call("cancel", "beefst").stdout == "run beefsteak is cancelled\n"


def test_only_people_may_shorten_an_id(site, client):
    """A script has the whole id: a shorter one belongs to another run."""
    site.take_in(HELD, "whole-0001")
    with pytest.raises(UnknownRun):
        client.cancel("whole-000")
    died = site.dies(id="ended-0001")
    assert client.dead_letter(died).id == died
    with pytest.raises(UnknownRun):
        print(client.dead_letter("ended-000"))  # for people who wonder what it found


def test_an_ended_run_is_not_confused_with_one_whose_id_is_longer(site, client):
    site.dies(id="load-1")
    client.purge("load-1")
    site.take_in(HELD, "load-10")
    assert is_one_line(site.call("cancel", "load-1"), 2)
    assert site.call("cancel", "load-10").exit_code == 0


def test_running_ones_and_those_that_are_not_due_are_found_too(site, client):
    assert site.take_in(JOB, "cafe-running").what == "start"
    site.take_in(JOB, "cafe-later", eta_ms=int(time.time() + 900) * 1000)
    assert [client.find_run("cafe-r"), client.find_run("cafe-l")] == ["cafe-running", "cafe-later"]


def test_dead_letters_are_found_by_the_beginning_of_their_ids(site):
    for id in ("dead-0001", "dead-0002", "dead-0003"):
        site.dies(id=id)
    assert json.loads(site.call("dlq", "show", "dead-0001", "--json").stdout)["id"] == "dead-0001"
    assert "'dead-0' may mean 'dead-0001', 'dead-0002', 'dead-0003'" in site.call("dlq", "show", "dead-0").stderr
    assert site.call("dlq", "purge", "dead-0003", "--yes").stdout == "1 dead letter was removed\n"
    assert is_one_line(site.call("dlq", "requeue", "dead-0003"), 2)
    assert json.loads(site.call("dlq", "requeue", "dead-0002", "--json").stdout)["runs"] == {"dead-0002": "dead-0002"}
    assert site.call("dlq", "purge", "dead", "--yes").exit_code == 0, "only one is left"


# -- Redis


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_without_redis_every_command_says_where_it_tried(command):
    app = make_app(NOWHERE)
    for options in ((), ("--json",)):
        result = call(app, *command, *options)
        assert is_one_line(result, 1), result.output
        assert "the ledger at redis://:**@127.0.0.1:1/3 does not answer" in result.stderr
        assert "geheim" not in result.output
    close_app(app)


def test_a_redis_that_takes_connections_and_says_nothing_is_not_waited_for_long():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        begun = time.monotonic()
        result = call(make_app(f"redis://127.0.0.1:{port}/0"), "status")
        assert time.monotonic() - begun < 30
    assert is_one_line(result, 1)
    assert f"127.0.0.1:{port}/0 does not answer" in result.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_redis_that_goes_in_the_middle_of_a_command_is_one_line(site, server, command):
    """After the question whose ledger it is: the reply to the first script is lost, and then Redis is gone."""
    with DroppingProxy(server.port) as proxy:
        app = make_app(server.url(0))
        app.conf.orchestration_redis_url = proxy.url(0)
        rule = proxy.lose_request(ANY)
        result = call(app, *command)
        assert rule.lost
        assert is_one_line(result, 1), result.output
        assert "does not answer" in result.stderr
        close_app(app)


@pytest.mark.parametrize("url", ["amqp://me:geheim@127.0.0.1:1", "redis://:geheim@127.0.0.1:1/0"])
def test_a_broker_that_is_not_there_is_one_line(site, server, url):
    app = make_app(url)
    app.conf.orchestration_redis_url = server.url(0)
    running = site.take_in(JOB, f"running-{url[:5]}")
    assert running.what == "start"
    site.waits()
    for command in (("trigger", JOB), ("cancel", f"running-{url[:5]}", "--terminate"), ("release", "--yes")):
        result = call(app, *command)
        assert is_one_line(result, 1), result.output
        assert "127.0.0.1:1/" in result.stderr
        assert "geheim" not in result.stderr
    seen = call(app, "status", "--json")
    assert seen.exit_code == 1
    assert any("the broker at" in problem for problem in json.loads(seen.stdout)["problems"])
    assert "geheim" not in seen.output
    close_app(app)


def test_a_store_of_results_that_is_not_there_does_not_matter(site, server):
    app = make_app(server.url(0))
    app.conf.result_backend = NOWHERE
    assert call(app, "trigger", JOB).exit_code == 0
    close_app(app)


def test_a_redis_that_asks_for_a_password_is_one_line(tmp_path, redis_factory: Callable[..., RedisServer]):
    server = redis_factory(requirepass="geheim")
    app = make_app(f"redis://:falsch@127.0.0.1:{server.port}/0")
    result = call(app, "status")
    assert is_one_line(result, 1)
    assert "falsch" not in result.stderr
    close_app(app)


def test_a_ledger_that_is_not_in_redis_is_one_line_that_says_what_to_set():
    app = make_app("amqp://localhost")
    result = call(app, "status")
    assert is_one_line(result, 1)
    assert "orchestration_redis_url" in result.stderr


def test_mistakes_in_the_configuration_are_a_line_each(server):
    app = make_app(server.url(0))
    app.conf.orchestration_leese_seconds = 5
    app.conf.orchestration_histroy = 5
    result = call(app, "status")
    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 2, result.stderr
    assert "did you mean" in result.stderr


# -- terminals


@pytest.mark.parametrize("columns", ["1", "20", "80", "500", "many", ""])
@pytest.mark.parametrize("command", [c for c in COMMANDS if {*c} & {"status", "audit", "list", "show"}], ids=named)
def test_any_width_will_do(site, command, columns):
    result = site.call(*command, env={"COLUMNS": columns})
    assert (result.exit_code, result.stderr) == (0, "")
    assert harmless(result.stdout)


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("columns", ["20", "120"])
def test_an_output_without_unicode_gets_escapes(site, charset, columns):
    wide = "shop.数据…"
    site.call("disable", HELD, "--reason", wide)
    for command in (("status",), ("audit",), ("schedule", "list"), ("enable", wide), ("pause", "--reason", wide)):
        context = CLIContext(app=site.app, no_color=False, workdir=None)
        result = CliRunner(charset=charset).invoke(orchestration, command, obj=context, env={"COLUMNS": columns})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    site.call("resume")


def test_in_the_c_locale_what_it_lacks_is_escaped(site):
    """Python passes undecodable input through there, and nothing else."""
    shown = on_a_terminal(site, "orchestration", "graph", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert "Traceback" not in shown
    assert "jobs" in shown


def on_a_terminal(site: Site, *arguments: str, **env: str) -> str:
    """Runs in a process of its own."""
    mine, theirs = pty.openpty()
    # An app module: its broker is the site's.
    env = {**environment(), "TEST_BROKER": site.app.conf.broker_url, "TERM": "xterm-256color", **env}
    process = subprocess.Popen(
        celery_command(APP, *arguments), env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    found = b""
    try:
        while part := os.read(mine, 65536):
            found += part
    except OSError:  # its end is closed
        pass
    finally:
        process.wait(timeout=20)
        os.close(mine)
    return found.decode()


def test_colour_is_for_terminals_that_want_it(site):
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    status = ("orchestration", "status")
    assert coloured.search(on_a_terminal(site, *status))
    assert not coloured.search(on_a_terminal(site, *status, NO_COLOR="1"))
    assert not coloured.search(on_a_terminal(site, "--no-color", *status))
    assert "\x1b" not in on_a_terminal(site, *status, TERM="dumb")


# -- processes


@pytest.fixture
def much(site: Site, server: RedisServer) -> dict[str, str]:
    """The environment of an app with a megabyte of non-ASCII text in its audit."""
    line = Ledger(site.ledger._pool, "{jobs}:")
    for _ in range(1000):
        line.record_audit("数据", "note", "", "…" * 1000)
    line.close()
    return {"TEST_BROKER": server.url(0)}


def test_a_pipe_that_nobody_reads_any_more_makes_no_noise(much):
    env = {**environment(), **much}
    for options in ("", "--json"):
        command = " ".join(celery_command(APP, "orchestration", "audit", "--count", "1000", options))
        done = subprocess.run(
            ["bash", "-c", f"{command} | true"], env=env, capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_where_there_is_no_unicode_names_are_escaped(much):
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "20", **much}
    done = run_celery(APP, "orchestration", "audit", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "\\u6570" in done.stdout


def test_an_app_that_cannot_be_loaded_is_celerys_own_error():
    done = run_celery("support.apps.nobody", "orchestration", "status")
    assert (done.returncode, done.stdout) == (2, "")
    assert "The module support.apps.nobody was not found" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_app_is_usage():
    command = [part for part in celery_command("", "orchestration", "status") if part not in ("-A", "")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: name the app: celery -A app orchestration" in done.stderr


def test_redis_down_is_one_line_from_a_shell_too():
    begun = time.monotonic()
    done = run_celery(APP, "orchestration", "status", "--json", env={"TEST_BROKER": NOWHERE})
    assert time.monotonic() - begun < 60
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: the ledger at redis://:\*\*@127\.0\.0\.1:1/3 does not answer: [^\n]+\n", done.stderr)


def test_every_field_is_described():
    fields = [(model.__name__, name, field) for model in schema.models() for name, field in model.model_fields.items()]
    assert [(model, name) for model, name, field in fields if not field.description] == []


# -- the beginning of the id of a run that has ended


def test_explain_finds_an_ended_run_by_the_beginning_of_its_id(site):
    failed = site.dies(id="ended-early-1")
    site.dies(id="ended-late-1")
    found = call(site.app, "explain", "ended-e", "--json")
    assert json.loads(found.stdout)["run"] == failed, found.output
    # If several match, it names them, whether they wait or have ended.
    waiting = site.waits("ended-late")
    result = call(site.app, "explain", "ended-l")
    assert is_one_line(result, 2)
    assert "ended-late-1" in result.stderr
    assert waiting in result.stderr

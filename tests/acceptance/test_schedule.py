"""People change the schedule while ``celery beat`` runs: changes take effect within a second, last, and are audited."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from celery_orchestration import Orchestration
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import EntryStatus, Status
from support.hostile import TEXTS
from support.processes import ManagedProcess
from support.stage import Stage
from support.wait import stays, until
from support.workers import Broker, CeleryProcess, celery_command, run_celery

APP = "support.apps.diary"
MAIL, FETCH, SLOW, REPORT = (f"{APP}.{name}" for name in ("mail", "fetch", "slow", "report"))
#: Seconds within which a change takes effect, and the additional time of a busy machine.
SEEN = timedelta(seconds=1)
BUSY = timedelta(seconds=3)
WITHOUT_REPORT = {"TEST_WITHOUT_REPORT": "1"}


class Desk:
    """The app, its schedulers, and the people who change its schedule."""

    def __init__(self, stage: Stage, beat: Callable[..., CeleryProcess]) -> None:
        self.stage, self._beat = stage, beat
        self.client = Orchestration(stage.app)
        self.schedule = self.client.schedule

    def beat(self, **env: str) -> CeleryProcess:
        """Starts a scheduler; the only one leads."""
        return self._beat({**self.stage.broker.env(), **self.stage.env, **env})

    def celery(self, *command: str, columns: int = 80, **env: str) -> CompletedProcess[str]:
        given = {**self.stage.env, "COLUMNS": str(columns), **env}
        return run_celery(APP, "orchestration", *command, broker=self.stage.broker, env=given)

    def fires(self, name: str, more_than: int = 0, timeout: float = 20) -> EntryStatus:
        """Waits until the entry has fired more often than that."""

        def fired() -> EntryStatus | None:
            found = self.schedule.get(name)
            return found if found.fires > more_than else None

        return until(fired, timeout, f"{name} fires more than {more_than} times")

    def changed_at(self, what: str, name: str) -> datetime:
        """The time of a change, by Redis's clock."""
        return next(one.at for one in self.client.audit() if (one.what, one.about) == (f"{what} entry", name))

    def fired_at(self, name: str, since: datetime) -> datetime:
        """The time at which the ledger made the first run of that entry that was due after `since`."""

        def first() -> datetime | None:
            runs = [one for job in (FETCH, REPORT) for one in self.client.history(job) if one.entry == name]
            return min((one.arrived for one in runs if one.due and one.due > since), default=None)

        return until(first, 30, f"{name} fires after {since}")

    def notes(self) -> list[Any]:
        return [event.note for event in self.stage.history.events() if event.kind == "start"]


@pytest.fixture
def beat(tmp_path: Path, reported: Callable[[ManagedProcess], None]) -> Iterator[Callable[..., CeleryProcess]]:
    with contextlib.ExitStack() as cleanups:

        def start(env: dict[str, str]) -> CeleryProcess:
            process = CeleryProcess(
                f"beat-{uuid.uuid4().hex[:8]}",
                celery_command(APP, "beat", "-l", "INFO"),
                directory=tmp_path,
                env=env,
                ready_prompt="This scheduler leads",
            )
            cleanups.callback(process.cleanup)
            reported(process)
            process.start()
            process.wait_ready()
            return process

        yield start


@pytest.fixture
def desk_on(stage_on: Callable[..., Stage], beat: Callable[..., CeleryProcess]) -> Iterator[Callable[..., Desk]]:
    with contextlib.ExitStack() as cleanups:

        def make(broker: Broker, env: dict[str, str] | None = None) -> Desk:
            desk = Desk(stage_on(broker, APP, env=env), beat)
            cleanups.callback(desk.client.close)
            return desk

        yield make


@pytest.fixture
def desk(desk_on: Callable[..., Desk], redis_broker: Broker) -> Desk:
    return desk_on(redis_broker)


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


# -- changes are seen within a second


def test_an_added_entry_fires_after_its_interval(desk_on, broker):
    """On Redis and RabbitMQ, for a job and for a plain task; with its arguments."""
    desk = desk_on(broker)
    desk.stage.worker("threads")
    desk.beat()
    desk.schedule.add("a job", FETCH, 0.5, ["by people"])
    desk.schedule.add("no job", MAIL, timedelta(seconds=0.5), kwargs={"note": "sent"})
    added = desk.changed_at("add", "a job")
    assert added + timedelta(seconds=0.4) < desk.fired_at("a job", added) < added + timedelta(seconds=0.5) + SEEN + BUSY
    assert desk.fires("no job").last_outcome == "sent"
    until(lambda: {"steady", "by people", "sent"} <= set(desk.notes()))
    entry = desk.fires("a job")
    assert (entry.last_outcome, entry.problem, entry.source) == ("fired", None, "people")
    assert entry.last_fire < entry.next_fire


def test_a_changed_entry_fires_as_it_is_now(desk):
    desk.stage.worker("threads")
    desk.beat()
    desk.schedule.add("x", FETCH, 3600, ["old"])
    desk.schedule.update("x", schedule=0.5, args=["new"])
    changed = desk.changed_at("update", "x")
    assert desk.fired_at("x", changed) < changed + timedelta(seconds=0.5) + SEEN + BUSY
    until(lambda: "new" in desk.notes())
    desk.schedule.update("x", schedule="0 0 1 1 *")
    fires = desk.schedule.get("x").fires
    next_fire = until(lambda: desk.schedule.get("x").next_fire)
    assert (next_fire.month, next_fire.day) == (1, 1)
    stays(lambda: desk.schedule.get("x").fires == fires, 1.2, "it waits for New Year")
    assert "old" not in desk.notes()


def test_paused_and_removed_entries_stop_firing_and_resumed_ones_fire_again(desk):
    process = desk.beat()
    for name in ("x", "y"):
        desk.schedule.add(name, FETCH, 0.3)
        desk.fires(name)
    paused = desk.schedule.pause("x", "holidays")
    steady = desk.schedule.pause("steady")
    desk.schedule.remove("y")
    stays(lambda: desk.schedule.get("x").fires == paused.fires, 1.0, "the ledger refuses its fires at once")
    sent = process.log().count("Sending due task y")
    stays(lambda: process.log().count("Sending due task y") == sent, 0.7, "the scheduler has seen that it is gone")
    assert desk.schedule.get("steady").fires <= steady.fires + 1  # one may have been on its way to the broker
    assert [entry.name for entry in desk.schedule.list()] == ["steady", "x"]
    assert desk.schedule.get("x").next_fire is None

    assert desk.schedule.resume("x").paused is None
    desk.schedule.resume("steady")
    resumed = desk.changed_at("resume", "x")
    found = desk.fires("x", paused.fires)
    assert resumed < found.last_fire < resumed + timedelta(seconds=0.3) + SEEN + BUSY
    assert found.misses == 0, "what was due meanwhile was not wanted"
    desk.fires("steady", steady.fires + 1)


def test_everything_lasts_over_a_restart_of_the_scheduler(desk):
    process = desk.beat()
    desk.schedule.add("x", FETCH, 0.5, options={"queue": "elsewhere"})
    desk.schedule.add("y", MAIL, "*/5 * * * *", ["a"])
    desk.schedule.add("z", FETCH, 0.5)
    desk.schedule.add("changed", FETCH, 3600)
    before = desk.fires("x")
    desk.schedule.pause("z", "holidays")
    desk.schedule.pause("steady")
    process.stop()
    desk.schedule.update("changed", schedule=0.5)
    desk.schedule.remove("y")
    paused = desk.schedule.get("z")
    desk.beat()
    after = desk.fires("x", before.fires)
    desk.fires("changed")
    assert after.last_fire > before.last_fire
    assert (after.every, after.options, after.source) == (before.every, before.options, "people")
    assert desk.schedule.get("z") == paused
    assert desk.schedule.get("steady").paused is not None
    assert [entry.name for entry in desk.schedule.list()] == ["changed", "steady", "x", "z"]


# -- entries that cannot be fired


@pytest.mark.slow
def test_an_entry_whose_task_is_gone_is_reported_and_the_others_fire_on(desk_on, redis_broker):
    desk = desk_on(redis_broker)
    process = desk.beat()
    desk.schedule.add("reports", REPORT, 0.3)
    desk.schedule.add("fetches", FETCH, 0.3)
    desk.fires("reports")
    process.stop()

    process = desk.beat(**WITHOUT_REPORT)
    process.wait_for_log(f"entry 'reports': this app has no task '{REPORT}': it is not fired")
    steady, fetches, reports = (desk.schedule.get(name).fires for name in ("steady", "fetches", "reports"))
    desk.fires("steady", steady)
    desk.fires("fetches", fetches)
    assert desk.schedule.get("reports").fires == reports
    listed = desk.celery("schedule", "list", **WITHOUT_REPORT)
    assert listed.returncode == 0, listed.stderr
    assert f"! reports: this app has no task '{REPORT}'" in " ".join(listed.stdout.split())
    found = json.loads(desk.celery("schedule", "list", "--json", **WITHOUT_REPORT).stdout)
    assert {one["name"]: one["problem"] for one in found} == {
        **{"fetches": None, "steady": None, "reports": f"this app has no task '{REPORT}'"}
    }
    process.stop()

    desk.beat()
    desk.fires("reports", reports)


@pytest.mark.slow
def test_a_broken_entry_is_reported_and_the_others_fire_on(desk):
    process = desk.beat()
    for name in ("nonsense", "text", "bytes"):
        desk.schedule.add(name, FETCH, 0.3)
        desk.fires(name)
    process.stop()
    key = key_of(desk.stage.prefix, "entry", "").__add__
    desk.stage.ledger.hset(key("nonsense"), "written", '{"name": "nonsense", "task": 5}')
    desk.stage.ledger.set(key("text"), "x")
    desk.stage.ledger.hset(key("bytes"), "written", b"\xff\xfe")

    process = desk.beat()
    for name in ("nonsense", "bytes"):
        process.wait_for_log(f"entry '{name}': its document in the ledger cannot be read: it is not fired")
    fires = desk.schedule.get("steady").fires
    desk.fires("steady", fires + 1)
    problems = {entry.name: entry.problem for entry in desk.schedule.list()}
    assert problems == {
        **{"nonsense": "its document in the ledger cannot be read", "text": "its record is corrupt"},
        **{"bytes": "its document in the ledger cannot be read", "steady": None},
    }
    for name in ("nonsense", "text", "bytes"):
        desk.schedule.remove(name)
    desk.schedule.add("text", FETCH, 0.3)
    desk.fires("text")


# -- names that are up to something


@pytest.mark.slow
def test_hostile_names_fire_and_are_shown_harmlessly(desk):
    process = desk.beat()
    names = [*TEXTS.values(), "x" * 1000]
    for name in names:
        desk.schedule.add(name, FETCH, 0.5, [name])
    for name in names:
        desk.fires(name)
    desk.schedule.pause(TEXTS["ansi"], TEXTS["newline"])
    for columns in (80, 250):
        listed = desk.celery("schedule", "list", columns=columns)
        assert listed.returncode == 0, listed.stderr
        assert harmless(listed.stdout), listed.stdout
    found = json.loads(desk.celery("schedule", "list", "--json").stdout)
    assert {one["name"] for one in found} == {*names, "steady"}
    assert harmless(desk.celery("audit").stdout)
    assert harmless(desk.celery("history", FETCH).stdout)
    for name in names:
        desk.schedule.remove(name)
    until(lambda: [entry.name for entry in desk.schedule.list()] == ["steady"])
    assert harmless(process.log()), [line for line in process.log().splitlines() if not harmless(line)]
    for which in ("newline", "right to left", "ansi"):
        refused = desk.celery("schedule", "remove", TEXTS[which])
        assert (refused.returncode, harmless(refused.stderr)) == (2, True), refused


# -- the commands


@pytest.mark.slow
def test_the_commands_do_what_they_say(desk):
    def ok(*command: str) -> str:
        done = desk.celery("schedule", *command)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    assert "the schedule has no entries" in ok("list")
    assert ok("add", "x", FETCH, "*/5 * * * *", "--kwargs", '{"note": 1}', "--queue", "q") == (
        f"entry 'x' is added: '{FETCH}' cron */5 * * * *\n"
    )
    added = EntryStatus.model_validate_json(ok("add", "y", MAIL, "1.5", "--args", '["a"]', "--json"))
    assert (added.name, added.every, added.args, added.is_job) == ("y", "every 1.5 s", ["a"], False)
    assert desk.schedule.get("x").options == {"queue": "q"}
    assert ok("update", "x", "--when", "30") == f"entry 'x' is changed: '{FETCH}' every 30 s\n"
    changed = EntryStatus.model_validate_json(
        ok("update", "x", "--task", MAIL, "--args", "[2]", "--kwargs", "{}", "--queue", "r", "--json")
    )
    assert (changed.task, changed.args, changed.named_args, changed.options) == (MAIL, [2], {}, {"queue": "r"})
    assert ok("pause", "x", "--reason", "holidays") == "entry 'x' is paused\n"
    assert "x is paused: holidays" in ok("list")
    assert ok("resume", "x") == "entry 'x' is resumed\n"
    assert ok("remove", "x") == "entry 'x' is removed\n"
    assert [one["name"] for one in json.loads(ok("list", "--json"))] == ["y"]

    audit = desk.client.audit()
    assert [(one.what, one.about) for one in reversed(audit)] == [
        *(("add entry", "x"), ("add entry", "y"), ("update entry", "x"), ("update entry", "x")),
        *(("pause entry", "x"), ("resume entry", "x"), ("remove entry", "x")),
    ]
    assert len({one.who for one in audit}) == 1
    assert "pause entry x: holidays" in desk.celery("audit").stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("add", "steady", FETCH, "5"), "is defined in the code: change it there, or pause it"),
        (("resume", "steady"), "no scheduler has registered the entry 'steady' of the code yet"),
    ],
)
def test_an_entry_of_the_code_is_not_for_every_command(desk, command, words):
    """Other wrong uses: test_cli.py."""
    done = desk.celery("schedule", *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert desk.schedule.list() == []
    assert desk.client.audit() == []


# -- who leads, and what came of fires


def test_status_names_the_leader_and_the_standbys_or_says_that_nobody_leads(desk):
    leaderless = "no scheduler leads: nothing is fired; start one with celery -A … beat"
    said = " ".join(desk.celery("status").stdout.split())
    assert f"! {leaderless}".replace("…", APP) in said, "with the app that the command was given"
    process = desk.beat()
    until(lambda: desk.client.status().scheduler.entries == 1)
    other = CeleryProcess("standby", process.command, directory=process.directory, env=process.env)
    other.start()
    try:
        status = until(lambda: (found := desk.client.status()).scheduler.standbys and found)
        assert status.scheduler.leader.startswith(f"beat-{process.pid}@")
        assert [name.partition("@")[0] for name in status.scheduler.standbys] == [f"beat-{other.pid}"]
        assert status.workers == []
        assert [problem for problem in status.problems if "scheduler" in problem] == []
        shown = desk.celery("status").stdout
        assert f"scheduler: {status.scheduler.leader} has led for" in shown
        assert "1 stands by" in shown
        found = Status.model_validate_json(desk.celery("status", "--json").stdout)
        assert (found.scheduler.leader, found.scheduler.entries) == (status.scheduler.leader, 1)
        process.stop()
        taken_over = until(
            lambda: (leads := desk.client.status().scheduler.leader) != status.scheduler.leader and leads
        )
        assert taken_over.startswith(f"beat-{other.pid}@")
        other.stop()
    finally:
        other.cleanup()
    until(lambda: leaderless in desk.client.status().problems)
    assert desk.client.status().died == []


def test_history_accounts_for_fires_that_made_no_run(desk):
    """No worker takes the first run."""
    desk.beat()
    desk.schedule.add("often", SLOW, 0.3)

    def skipped() -> Any:
        found = [one for one in desk.client.history(SLOW) if one.outcome == "skipped"]
        return found[0] if found and found[0].fires >= 3 else None

    until(lambda: desk.schedule.get("often").skips >= 3)
    found = until(skipped)
    assert (found.entry, found.made_run) == ("often", False)
    shown = desk.celery("history", SLOW).stdout
    assert "fires of entry often skipped: the run before it has not started" in " ".join(shown.split())

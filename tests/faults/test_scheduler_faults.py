"""The invariants while schedulers, or the servers that they use, break.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_orchestration.ledger import keys
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate import Orchestration
from support.clocks import Clock
from support.invariants import forbidden_overlaps
from support.proxy import DroppingProxy
from support.schedulers import TAKEOVER, TERM, SchedulerProcess, ScheduleStage
from support.servers import RedisServer
from support.verbs import asked, make_known, make_unknown
from support.wait import stays, until
from support.workers import Broker

Scheduled = Callable[..., ScheduleStage]
Servers = Callable[..., RedisServer]

URL = "CELERY_ORCHESTRATION_REDIS_URL"
EVERY_SECOND = {"interval_seconds": 1}
HOURLY = {"interval_seconds": 3600}
HOUR_MS = 3_600_000
KILL, STOP = "SIGKILL", "SIGSTOP"
LEDGER = "celery_orchestration.ledger:Ledger"
DISPATCHER = "celery_orchestration.scheduler.dispatcher:Dispatcher"
SENDER = "celery_orchestration.scheduler.plain_sender:PlainSender"
PUBLISHER = "celery_orchestration.node.publisher:Publisher"


def struck(stage: ScheduleStage, step: str, number: str) -> SchedulerProcess:
    """The environment of a scheduler to which this happens at the first time that it comes there."""
    process = stage.beat(settled=False, env={"TEST_STRIKE": f"{step} 1 {number}"})
    process.wait_for_log("struck:", 30)
    return process


# -- three schedulers, and something happens to the leader, again and again


class Crew:
    """Schedulers that are restarted, however they ended. Each has its own path to Redis."""

    def __init__(self, stage: ScheduleStage, proxies: list[DroppingProxy]) -> None:
        self.stage = stage
        self.members = [(stage.beat(broker_url=proxy.url(0), backend_url=proxy.url(1)), proxy) for proxy in proxies]
        self.faults = (self.killed, self.stopped, self.cut_off, self.ended)

    def round(self, number: int) -> None:
        leader = self.stage.leader()
        [proxy] = [proxy for member, proxy in self.members if member is leader]
        before = self.stage.lead.term
        fault = self.faults[number % len(self.faults)]
        # Around the moment at which it dispatches; each fault at another moment.
        due = int(self.stage.entry("one")["last"]) + 1000 + 10 * (number // len(self.faults) - 2)
        until(lambda: self.stage.now >= due, poll=0.001)
        with fault(leader, proxy):
            self.stage.leader(but=leader)
        self.stage.wait_fires("one", after=self.stage.lead.since)
        assert int(self.stage.lead.term) > int(before)

    @contextlib.contextmanager
    def killed(self, leader: SchedulerProcess, _: DroppingProxy) -> Iterator[None]:
        leader.kill()
        yield
        leader.start()

    @contextlib.contextmanager
    def stopped(self, leader: SchedulerProcess, _: DroppingProxy) -> Iterator[None]:
        leader.pause()
        yield
        leader.resume()

    @contextlib.contextmanager
    def cut_off(self, _: SchedulerProcess, proxy: DroppingProxy) -> Iterator[None]:
        proxy.refuse()
        yield
        proxy.accept()

    @contextlib.contextmanager
    def ended(self, leader: SchedulerProcess, _: DroppingProxy) -> Iterator[None]:
        leader.signal(signal.SIGTERM)
        yield
        until(lambda: not leader.running, 30, "it ends")
        assert leader.returncode == 0
        leader.start()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whatever_happens_to_the_leader_each_fire_is_made_once(scheduled: Scheduled, redis_server: RedisServer):
    every_second = {"interval_seconds": 1, "overlap": "allow"}
    entries = ["one", "two", "three"]
    stage = scheduled(
        jobs=dict.fromkeys(entries, every_second),
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 1}},
    )
    stage.worker()
    with contextlib.ExitStack() as proxies:
        crew = Crew(stage, [proxies.enter_context(DroppingProxy(redis_server.port)) for _ in range(3)])
        for entry in entries:
            stage.wait_fires(entry)
        for number in range(20):
            crew.round(number)
        stage.all_fired_well()
    for entry in entries:
        fires, record = stage.ran(entry), stage.entry(entry)
        assert max(b.due - a.due for a, b in pairwise(fires)) <= (TAKEOVER + 1) * 1000
        # Every due time either made a run, or passed while nobody led.
        accounted = sum(int(record.get(how, 0)) for how in ("fires", "skips", "misses"))
        assert accounted == (int(record["last"]) - fires[0].due) / 1000 + 1
    # Fires of a plain task: at least once, and always with the same id. A fire that was sent just before its scheduler
    # died may count as missed.
    sent, missed = (int(stage.entry("plain")[how]) for how in ("fires", "misses"))
    until(lambda: sent <= len(set(stage.executions("plain"))) <= sent + missed)
    for process in stage.schedulers:
        assert "Traceback" not in process.log()


# -- the leader is stopped in the midst of a tick


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_fire after", "_ask before"])
def test_a_leader_that_was_stopped_between_looking_and_dispatching_fires_nothing(scheduled: Scheduled, step: str):
    stage = scheduled(jobs={"job": HOURLY}, plain=["plain"], entries={"plain": {"task": "plain", "schedule": 3600}})
    due = {entry: stage.was_last_due(entry, 3600) + HOUR_MS for entry in ("job", "plain")}
    stage.worker()
    first = struck(stage, f"{DISPATCHER}.{step}", STOP)
    second = stage.beat()
    assert stage.leader(but=first) is second
    [fire] = stage.wait_fires("job")
    assert fire.due == due["job"]
    until(lambda: int(stage.entry("plain")["last"]) == due["plain"])
    first.resume()
    first.wait_for_log("no longer leads")
    assert stage.leader() is second
    # It is a standby like any other.
    assert second.stop() == 0
    assert stage.leader(but=second) is first
    stage.all_fired_well()
    assert stage.executions("job") == [fire.run]
    assert len(stage.executions("plain")) == 1
    assert "Sending" not in first.log()
    assert "Traceback" not in first.log()


# -- the scheduler dies between two steps of a dispatch

#: The steps of a new leader that affect others, in this order. It dies after each of them.
STEPS = [
    f"{LEDGER}.lead after",
    f"{LEDGER}.adopt_entries after",
    f"{LEDGER}.retire_entries after",
    f"{LEDGER}.dispatch before",
    f"{LEDGER}.dispatch after",
    f"{SENDER}._put after",  # the plain task is in the broker
    f"{LEDGER}.confirm_sent after",
    f"{PUBLISHER}._send after",  # the run is in the broker
    f"{LEDGER}.confirm_published after",
]


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS, ids=[step.partition(":")[2].replace(" ", "-") for step in STEPS])
def test_a_fire_whose_scheduler_was_killed_in_the_midst_of_it_is_made_once(scheduled: Scheduled, step: str):
    """The fire of a job. The fire of a plain task may be sent twice, with the same id."""
    stage = scheduled(jobs={"job": HOURLY}, plain=["plain"], entries={"plain": {"task": "plain", "schedule": 3600}})
    due = {entry: stage.was_last_due(entry, 3600) + HOUR_MS for entry in ("job", "plain")}
    stage.worker(concurrency=1)
    victim = struck(stage, step, KILL)
    until(lambda: not victim.running)
    stage.beat()
    [fire] = stage.wait_fires("job")
    assert (fire.due, fire.outcome) == (due["job"], "succeeded")
    until(lambda: int(stage.entry("plain")["last"]) == due["plain"], message="the plain one is fired")
    stage.all_fired_well()
    stage.jobs.tasks["plain"].delay("behind all others").get(timeout=30)
    assert stage.executions("job") == [fire.run]
    *sent, _ = stage.executions("plain")
    assert len(set(sent)) == 1
    assert len(sent) <= 2


# -- a script ran, but its reply was lost


@pytest.mark.slow
def test_lost_replies_change_nothing(scheduled: Scheduled, proxy: DroppingProxy):
    stage = scheduled(
        jobs={"job": HOURLY, "always": {"mode": "continuous", "seconds": 0.05}},
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 3600}},
    )
    for entry in ("job", "plain"):
        stage.was_last_due(entry, 3600)
    stage.worker()
    verbs = [
        "lead",
        "read_changes",
        "adopt_entries",
        "record_next_due",
        "retire_entries",
        "dispatch",
        "confirm_sent",
        "continue_entries",
        "resign",
        "leave",
    ]
    make_known(stage.ledger, *verbs)
    lost = {verb: proxy.lose_reply(asked(verb)) for verb in verbs}
    beat = stage.beat(broker_url=proxy.url(0), backend_url=proxy.url(1))
    stage.wait_fires("job")
    until(lambda: stage.executions("plain"))
    until(lambda: len(stage.executions("always")) > 5)
    assert beat.stop() == 0
    assert [verb for verb in verbs if not lost[verb].lost] == []
    assert len(stage.executions("job")) == 1
    assert len(set(stage.executions("plain"))) == 1
    stage.nothing_fired_twice()
    assert forbidden_overlaps(stage.app, stage.history) == []
    assert "Traceback" not in beat.log()


# -- the Redis of the ledger is away, emptied, fails over, forgets its scripts or is full


@pytest.fixture
def apart(schedule_on: Scheduled, redis_factory: Servers, monkeypatch: pytest.MonkeyPatch):
    """``apart(ledger, jobs=...)``: the ledger is in a Redis of its own, and messages are in another one."""

    def make(ledger: RedisServer, **schedule: Any) -> ScheduleStage:
        others = redis_factory(name="broker")
        monkeypatch.setenv(URL, ledger.url())
        broker = Broker("redis", others.url(0), others.url(1), ledger.url(), ledger)
        return schedule_on(broker, env={URL: ledger.url()}, **schedule)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True], ids=["dies", "hangs"])
def test_without_the_ledger_a_scheduler_stands_by_and_goes_on(apart: Scheduled, redis_factory: Servers, hangs: bool):
    """When it starts, and later for longer than a term; the latest missed fire is made."""
    ledger = redis_factory(name="ledger", appendonly=True)
    stage = apart(ledger, jobs={"tick": EVERY_SECOND, "hourly": HOURLY})
    goes, comes = (ledger.pause, ledger.resume) if hangs else (ledger.kill, ledger.start)
    goes()
    first = stage.beat(settled=False)
    first.wait_for_log("Standing by for", 30)
    comes()
    first.wait_for_log("This scheduler leads", 30)
    second = stage.beat()
    stage.worker()
    stage.wait_fires("tick", 2)
    due = stage.was_last_due("hourly", 3600 - 1) + HOUR_MS
    goes()
    stays(lambda: first.running and second.running, 2 * TERM, "they never exit")
    comes()
    stage.wait_fires("tick", 3, after=stage.now)
    # Leaders do not read entries that were changed without their knowledge: another scheduler has to take over.
    assert stage.leader().stop() == 0
    [fire] = stage.wait_fires("hourly")
    assert fire.due == due
    for beat in (first, second):
        assert "Traceback" not in beat.log()
    stage.all_fired_well()


@pytest.mark.slow
def test_a_scheduler_that_stops_does_not_wait_for_a_redis_that_hangs(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    beat = stage.beat()
    until(lambda: stage.entry("tick").get("fires"))
    stage.broker.redis.pause()
    assert beat.stop(timeout=30) == 0
    stage.broker.redis.resume()


@pytest.mark.slow
def test_an_emptied_ledger_gets_its_entries_back(apart: Scheduled, redis_factory: Servers):
    ledger = redis_factory(name="ledger")
    stage = apart(
        ledger,
        jobs={"tick": EVERY_SECOND, "always": {"mode": "continuous", "seconds": 0.05}},
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 1}},
    )
    beats = [stage.beat(), stage.beat()]
    stage.worker()
    for _ in range(2):
        stage.wait_fires("tick", after=stage.now)
        ledger.client().flushall()
        since = stage.now
        stage.wait_fires("tick", 2, after=since)
        for job in ("always", "plain"):
            before = len(stage.executions(job))
            until(lambda job=job, before=before: len(stage.executions(job)) > before + 1, 30, f"{job} goes on")
    stage.nothing_fired_twice()
    assert any("was emptied" in beat.log() for beat in beats)
    assert not any("Traceback" in beat.log() for beat in beats)


@pytest.mark.slow
def test_an_emptied_ledger_does_not_forget_what_people_decided(apart: Scheduled, redis_factory: Servers):
    """Nothing starts that people had stopped."""
    ledger = redis_factory(name="ledger")
    jobs = {"tick": EVERY_SECOND, "resting": EVERY_SECOND, "broken": EVERY_SECOND, "added": {}}
    stage = apart(ledger, jobs=jobs)
    stage.beat()
    stage.worker()
    stage.wait_fires("resting")
    person = Orchestration(stage.app)
    person.schedule.add("extra", "added", 1)
    person.schedule.pause("resting", "not now")
    person.disable("broken", "it is")
    stage.wait_fires("extra")
    person.pause("stocktaking")
    names = ("tick", "resting", "broken", "added")
    until(lambda: not person.status().running)
    stopped = {name: len(stage.executions(name)) for name in names}
    stays(lambda: {name: len(stage.executions(name)) for name in names} == stopped, 2, "some sweeps later")
    for number in range(2):
        ledger.client().flushall()
        until(lambda: any("restored: the pause" in problem for problem in person.status().problems), 30)
        stays(lambda: {name: len(stage.executions(name)) for name in names} == stopped, 5 if number else 1)
    problem = next(problem for problem in person.status().problems if "was emptied" in problem)
    assert "restored: the pause, disabled: broken, entries: extra, resting" in problem
    assert "restore" in [one.what for one in person.audit()]
    assert person.status().pause.why == "stocktaking"
    person.resume("done")
    stage.wait_fires("tick", after=stage.now)
    stage.wait_fires("extra", after=stage.now)
    assert [len(stage.executions(name)) for name in ("resting", "broken")] == [stopped["resting"], stopped["broken"]]


@pytest.mark.slow
def test_a_failover_does_not_forget_what_people_decided(
    schedule_on: Scheduled,
    redis_factory: Servers,
    redis_server: RedisServer,
    proxy: DroppingProxy,
    monkeypatch: pytest.MonkeyPatch,
):
    """A replica takes over that misses all decisions of people. Nothing starts that they had stopped."""
    replica = redis_factory(name="replica")
    replica.client().replicaof("127.0.0.1", redis_server.port)
    jobs = {"tick": EVERY_SECOND, "broken": EVERY_SECOND}
    others = redis_factory(name="broker")
    monkeypatch.setenv(URL, proxy.url())
    broker = Broker("redis", others.url(0), others.url(1), proxy.url(), redis_server)
    stage = schedule_on(broker, env={URL: proxy.url()}, jobs=jobs)
    stage.beat()
    stage.worker()
    stage.wait_fires("broken")
    until(lambda: replica.client().info("replication")["master_link_status"] == "up")
    until(lambda: replica.client().exists(key_of(stage.prefix, "job", "broken")), message="it has what there is so far")
    replica.client().replicaof("NO", "ONE")
    with closing(Orchestration(stage.app)) as person:
        person.disable("broken", "it is")
        person.pause("stocktaking")
        until(lambda: not person.status().running)
        stopped = {name: len(stage.executions(name)) for name in jobs}
        stays(lambda: {name: len(stage.executions(name)) for name in jobs} == stopped, 6, "some sweeps later")
        proxy.upstream_port = replica.port
        proxy.cut()
        until(
            lambda: replica.client().hget(key_of(stage.prefix, "ledger"), "paused") == "1", 30, "the pause is restored"
        )
        stays(lambda: {name: len(stage.executions(name)) for name in jobs} == stopped, 5)
        assert person.status().pause.why == "stocktaking"
        person.resume("done")
        until(lambda: len(stage.executions("tick")) > stopped["tick"])
        stays(lambda: len(stage.executions("broken")) == stopped["broken"], 3)


def test_scripts_that_redis_forgot_are_loaded_again(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    beat = stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    since = stage.now

    def forgets() -> bool:
        make_unknown(stage.ledger)
        return len([one for one in stage.ran("tick") if one.due > since]) >= 3

    until(forgets)
    assert "ERROR" not in beat.log()
    assert {(b.due - a.due) % 1000 for a, b in pairwise(stage.ran("tick"))} == {0}
    stage.all_fired_well()


@pytest.mark.slow
def test_a_full_redis_delays_fires_and_they_are_made_later(apart: Scheduled, redis_factory: Servers):
    ledger = redis_factory(name="ledger")
    stage = apart(ledger, jobs={"tick": EVERY_SECOND})
    beat = stage.beat()
    stage.worker()
    stage.wait_fires("tick")
    ledger.client().config_set("maxmemory", 1)
    beat.wait_for_log("is full", 30)
    last = stage.entry("tick")["last"]
    stays(lambda: stage.entry("tick")["last"] == last, 2 * TERM)
    assert stage.leader() is beat
    ledger.client().config_set("maxmemory", 0)
    stage.wait_fires("tick", 3, after=stage.now)
    assert "Traceback" not in beat.log()
    stage.all_fired_well()


# -- the broker is away


@pytest.mark.slow
@pytest.mark.parametrize("when", ["at start", "later"])
def test_without_the_broker_fires_wait_in_the_ledger(apart: Scheduled, redis_factory: Servers, when: str):
    ledger = redis_factory(name="ledger")
    stage = apart(
        ledger, jobs={"tick": EVERY_SECOND}, plain=["plain"], entries={"plain": {"task": "plain", "schedule": 1}}
    )
    with DroppingProxy(int(stage.broker.broker_url.rpartition(":")[2].partition("/")[0])) as proxy:
        if when == "at start":
            proxy.refuse()
        beat = stage.beat(broker_url=proxy.url(0), backend_url=proxy.url(1))
        stage.worker()
        if when == "later":
            stage.wait_fires("tick")
            until(lambda: stage.executions("plain"))
            proxy.refuse()
        beat.wait_for_log("The broker is unavailable: entry plain is sent again", 30)
        stays(lambda: stage.leader() is beat, 2 * TERM, "it goes on leading")
        plain = len(stage.executions("plain"))
        proxy.accept()
        stage.wait_fires("tick", 2, after=stage.now)
        until(lambda: len(stage.executions("plain")) > plain + 1)
        stage.all_fired_well()
    assert "Traceback" not in beat.log()


# -- clocks jump by an hour


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, -1])
def test_a_scheduler_s_clock_does_not_matter(scheduled: Scheduled, tmp_path: Path, hours: int):
    clock = Clock(tmp_path)
    stage = scheduled(
        jobs={"tick": EVERY_SECOND, "hourly": HOURLY},
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 1}},
    )
    beat = stage.beat(env=clock.of_python())
    stage.beat()
    stage.worker()
    stage.wait_fires("tick", 2)
    since = stage.now
    clock.set(hours * 3600)
    stage.wait_fires("tick", 4, after=since)
    until(lambda: len(stage.executions("plain")) > 4)
    assert stage.leader() is beat
    assert {(b.due - a.due) % 1000 for a, b in pairwise(stage.ran("tick"))} == {0}
    assert stage.executions("hourly") == []
    [line] = [line for line in beat.log().splitlines() if "Sending due task tick" in line][-1:]
    assert abs(datetime.fromisoformat(line[1:20]).timestamp() - time.time()) > 3000, "its clock did jump"
    stage.all_fired_well()


@pytest.mark.slow
@pytest.mark.parametrize("hours", [1, -1])
def test_when_redis_s_clock_jumps_nothing_is_fired_twice(
    schedule_on: Scheduled, redis_factory: Servers, tmp_path: Path, hours: int
):
    """If it was set back, fires may pause until that time has come again."""
    clock = Clock(tmp_path)
    server = redis_factory(**clock.of_redis())
    broker = Broker("redis", server.url(0), server.url(1), server.url(0), server)
    stage = schedule_on(broker, jobs={"tick": EVERY_SECOND, "slow": {"interval_seconds": 1, "seconds": 1.5}})
    first, second = stage.beat(), stage.beat()
    stage.worker(concurrency=4)
    stage.wait_fires("tick", 2)
    clock.set(hours * 3600)
    if hours < 0:
        stays(lambda: first.running and second.running, 2 * TERM)
        leader = stage.leader()
        leader.kill()
        stage.leader(but=leader)
        clock.set(0)
    since = stage.now
    stage.wait_fires("tick", 3, after=since)
    stage.wait_fires("slow", 1, after=since)
    stage.all_fired_well()


# -- what cannot work is named at start


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ({"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}, "a -> b -> a"),
        ({"a": {"depends_on": ["a"]}}, "a"),
        ({"fetch": HOURLY, "b": {"depends_on": ["fetsh"]}}, "did you mean 'fetch'"),
        ({"fetch": HOURLY, "b": {"blocks": ["fetsh"]}}, "did you mean 'fetch'"),
    ],
    ids=["cycle", "itself", "misspelt", "misspelt block"],
)
def test_mistakes_in_the_graph_are_reported_in_one_line(scheduled: Scheduled, jobs: dict[str, Any], said: str):
    stage = scheduled(jobs={"fine": HOURLY})
    schedule = {name: {**HOURLY, **options} for name, options in jobs.items()}
    beat = stage.beat(settled=False, env={"TEST_SCHEDULE": json.dumps({"jobs": schedule})})
    until(lambda: not beat.running)
    assert beat.returncode != 0
    [line] = [line for line in beat.log().splitlines() if "CRITICAL" in line or "Error" in line]
    assert said in line
    assert "Traceback" not in beat.log()


@pytest.mark.slow
def test_ten_thousand_jobs_that_depend_on_each_other_are_scheduled_soon(scheduled: Scheduled):
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    beat = stage.beat(env={"TEST_CHAIN": "10000"})
    until(lambda: stage.ledger.zcard(key_of(stage.prefix, "entries")) == 10_001, 60, "all have their entries")
    until(lambda: int(stage.entry("tick").get("fires", 0)) >= 1)
    assert "Traceback" not in beat.log()
    assert beat.stop() == 0


# -- keys that are corrupt


def wrong_type(stage: ScheduleStage, key: str) -> None:
    stage.ledger.delete(key)
    stage.ledger.set(key, "not what it should be")


def garbage(*fields: str) -> Callable[[ScheduleStage, str], None]:
    return lambda stage, key: stage.ledger.hset(key, mapping=dict.fromkeys(fields, "\xff garbage"))


def reported(stage: ScheduleStage, beat: SchedulerProcess) -> list[str]:
    """Keys about which the scheduler's log, or the ledger's own record, has a report."""
    with closing(Orchestration(stage.app)) as people:
        told = [one.about for one in people.audit() if one.what in ("corrupt", "lost")]
    errors = "".join(line for line in beat.log().splitlines() if "ERROR" in line).replace("'", "")
    in_log = [
        f"{kind}:{name}"
        for name in ("victim", "endless")
        for kind in ("entry", "history")
        if f"entry {name} is" in errors
    ]
    return [*in_log, *told, *(f"run:{run}" for run in told)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "harm"),
    [
        (("entry", "victim"), wrong_type),
        (("entry", "victim"), garbage("last")),
        (("job", "victim"), garbage("policy")),
        (("history", "victim"), wrong_type),
        (("run", "{run}"), garbage("record")),
        (("entry", "endless"), wrong_type),
    ],
    ids=["entry's type", "entry", "job", "history's type", "run", "endless entry's type"],
)
def test_a_corrupt_record_is_reported_and_all_others_fire(scheduled: Scheduled, record: tuple[str, str], harm: Any):
    stage = scheduled(
        jobs={
            "victim": {"interval_seconds": 1, "until": "released"},
            "tick": EVERY_SECOND,
            "endless": {"mode": "continuous", "until": "released"},
            "always": {"mode": "continuous", "seconds": 0.1},
        },
        plain=["plain"],
        entries={"plain": {"task": "plain", "schedule": 1}},
    )
    first, second = stage.beat(), stage.beat()
    stage.worker(concurrency=6)
    until(lambda: {event.job for event in stage.history.started()} == {"victim", "tick", "endless", "always", "plain"})
    kind, name = (part.format(run=stage.entry("victim")["run"]) for part in record)
    harm(stage, key_of(stage.prefix, kind, name))
    for beat in (first, second):
        assert stage.leader() is beat
        for job in ("tick", "always", "plain"):
            before = len(stage.executions(job))
            until(lambda job=job, before=before: len(stage.executions(job)) >= before + 2, 30, f"{job} goes on")
        until(lambda beat=beat: f"{kind}:{name}" in reported(stage, beat), message="it is reported")
        assert "Traceback" not in beat.log()
        beat.kill()
        if beat is first:
            stage.leader(but=first)


# -- two releases of the code


@pytest.mark.slow
def test_two_releases_lead_by_turns(scheduled: Scheduled):
    """Each fires the entries that it has; an entry of one release only continues when that release leads again."""
    both, old, new = (json.dumps({"jobs": jobs}) for jobs in releases())
    stage = scheduled(**json.loads(both))
    stage.worker()
    older = stage.beat(env={"TEST_SCHEDULE": old})
    newer = stage.beat(env={"TEST_SCHEDULE": new})
    with closing(Orchestration(stage.app)) as people:
        people.schedule.add("by hand", "kept", 1)
    generation = until(lambda: stage.entry("dropped").get("generation"))
    for leader, other, its, not_its in (
        (older, newer, "dropped", "added"),
        (newer, older, "added", "dropped"),
        (older, newer, "dropped", "added"),
    ):
        assert stage.leader() is leader
        since = stage.now
        for entry in ("kept", its, "by hand"):
            stage.wait_fires(entry, 2, after=since)
        assert [one for one in stage.ran(not_its) if one.due > since + 1000] == []
        assert stage.entry("dropped")["generation"] == generation
        assert leader.stop() == 0
        assert stage.leader(but=leader) is other
        leader.start()
        leader.wait_settled()
    stage.all_fired_well()


@pytest.mark.slow
def test_fires_of_a_job_that_no_live_worker_has_yet_wait_for_one_that_has_it(scheduled: Scheduled):
    """Beat is updated before the workers, or after them. Nothing is revoked or lost."""
    both, old, new = (json.dumps({"jobs": jobs}) for jobs in releases())
    stage = scheduled(**json.loads(both))
    first = stage.worker(env={"TEST_SCHEDULE": old})
    stage.beat(env={"TEST_SCHEDULE": new})
    stage.wait_fires("kept", 2)
    person = Orchestration(stage.app)

    def waits() -> list[str]:
        return [run.id for run in person.status().waits if run.job.endswith("added")]

    early = until(lambda: len(waits()) >= 2 and waits(), message="fires of a job that no worker has wait")
    stays(lambda: not stage.executions("added"), 1)
    stage.worker(env={"TEST_SCHEDULE": new})
    until(lambda: set(early) <= set(stage.executions("added")), 30, "all that waited have run")
    first.stop()
    stage.wait_fires("kept", 2, after=stage.now)
    assert all(len([run for run in stage.executions("added") if run == id]) == 1 for id in early)
    person.close()


def releases() -> Iterator[dict[str, Any]]:
    kept, dropped, added = (
        {name: {"interval_seconds": 1, "overlap": "allow"}} for name in ("kept", "dropped", "added")
    )
    yield {**kept, **dropped, **added}
    yield {**kept, **dropped}
    yield {**kept, **added}


def test_a_ledger_of_the_next_release_is_fine(scheduled: Scheduled):
    """One release may be ahead: N and N + 1 work together."""
    stage = scheduled(jobs={"tick": EVERY_SECOND})
    stage.beat()
    until(lambda: stage.ledger.hget(key_of(stage.prefix, "ledger"), "owner"))
    stage.ledger.hset(key_of(stage.prefix, "ledger"), "schema", keys.SCHEMA + 1)
    second = stage.beat()
    stage.worker()
    stage.schedulers[0].kill()
    assert stage.leader(but=stage.schedulers[0]) is second
    stage.wait_fires("tick", 2, after=stage.lead.since)
    stage.all_fired_well()

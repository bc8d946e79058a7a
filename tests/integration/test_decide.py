"""``testing.decide`` and the ledger: in the same situation, both give the same answer and the same reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from celery import Celery
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from celery_orchestration import Dependency, OrchestratedTask
from celery_orchestration.job.options import Priority
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Ledger, Outcome, Presence
from celery_orchestration.node import releases
from celery_orchestration.operate.status.reader import read_status
from celery_orchestration.testing import Decision, Ended, decide
from support.servers import RedisServer

NAMES = ["a", "b", "c", "d"]
OUTCOMES = ["succeeded"] * 3 + ["failed"]
SERVED, UNSERVED = "served", "unserved"
PAIRS = [(x, y) for i, x in enumerate(NAMES) for y in NAMES[i + 1 :]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("decide"))
    yield server.start()
    server.cleanup()


@dataclass(frozen=True)
class Call:
    job: str
    key: str
    priority: str


@dataclass(frozen=True)
class Situation:
    options: dict[str, dict[str, Any]]
    cap: int | None
    #: Runs that have ended, one after the other.
    past: list[tuple[str, str]]
    running: list[Call]
    waiting: list[Call]
    disabled: set[str]
    paused: bool
    job: Call


@st.composite
def options(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        cap = draw(st.sampled_from([None, 1, 1, 2]))
        found[name] = {"max_running": cap}
        if cap is not None and draw(st.booleans()):
            found[name]["key"] = "{key}"
    for name in NAMES:
        others = [other for other in NAMES if other != name]
        found[name]["blocks"] = sorted(draw(st.sets(st.sampled_from(others), max_size=1)))
        found[name]["depends_on"] = []
        found[name]["exclusive"] = draw(st.sampled_from([None, None, "g"]))
    for before, after in sorted(draw(st.sets(st.sampled_from(PAIRS), min_size=1, max_size=4))):
        # A dependency on the success of a job is refused if any number of its runs may run at once.
        countable = found[before]["max_running"] is not None and "key" not in found[before]
        on = draw(st.sampled_from(["success", "finish", "idle"] if countable else ["finish", "idle"]))
        more: dict[str, Any] = {}
        if on != "idle":
            more = {"fresh": draw(st.booleans()), "max_age_seconds": draw(st.sampled_from([None] * 3 + [0.001, 1000]))}
        found[after]["depends_on"].append(Dependency(before, on=on, **more))
    return found


keys, priorities = st.sampled_from(["", "k"]), st.sampled_from(["low", "normal", "normal", "high"])
calls = st.builds(Call, st.sampled_from(NAMES), keys, priorities)
situations = st.builds(
    Situation,
    options=options(),
    cap=st.sampled_from([None] * 5 + [1, 3]),
    past=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(OUTCOMES)), max_size=8),
    running=st.lists(calls, max_size=2),
    waiting=st.lists(calls, max_size=3),
    disabled=st.sets(st.sampled_from(NAMES), max_size=1),
    paused=st.sampled_from([False] * 19 + [True]),
    job=st.builds(Call, st.sampled_from([*NAMES, "c", "d", "d"]), keys, priorities),  # "c" and "d" depend on most
)


def app_of(now: Situation) -> Celery:
    app = Celery("decide", broker="memory://", set_as_current=False)
    app.conf.orchestration_max_running = now.cap
    for name, written in now.options.items():

        def body(key: str = "") -> None: ...

        app.task(base=OrchestratedTask, name=name, shared=False, **written)(body)
    app.finalize()
    return app


def decided(app: Celery, now: Situation) -> Decision:
    def call(one: Call) -> Any:
        return app.tasks[one.job].s(one.key).set(priority=one.priority)

    ended: dict[str, Any] = dict.fromkeys(NAMES, "never")
    started: dict[str, float] = {}
    for age, (job, outcome) in zip(range(len(now.past), 0, -1), now.past, strict=True):
        ended[job] = Ended(outcome=outcome, seconds_ago=10 * age)
        started[job] = 10 * age + 5
    started |= dict.fromkeys((one.job for one in now.running), 0)
    return decide(
        app,
        job=call(now.job),
        running=map(call, now.running),
        waiting=map(call, now.waiting),
        ended=ended,
        started=started,
        disabled=dict.fromkeys(now.disabled, "for a test (me)"),
        paused=now.paused,
    )


class Played:
    """The situation in a ledger: running and ended runs arrived while the gate was open for them."""

    def __init__(self, ledger: Ledger, app: Celery, now: Situation) -> None:
        self.ledger = ledger
        self.app = app
        self.count = 0
        release = releases.release(jobs_of(app), now.cap)
        merged = releases.merged([release.document])
        ledger.register(
            Presence(
                worker="w", name="w@host", host="h", pid=1, slots=9, kind="prefork", queues=(SERVED,),
                release=release.name, mode="enforce", lease_ms=3_600_000, owner="decide", done_ms=3_600_000,
                policies=release.document, jobs=tuple(NAMES),
            )
        )  # fmt: skip
        unbound = {"conflicts": [], "groups": [], "depends_on": [], "dependents": []}
        free = {
            name: {**job, **unbound, "max_running": 99 if job["keyed"] else None, "hash": "free"}
            for name, job in merged.jobs.items()
        }
        assert ledger.install_policies(release.name, None, free)
        for job, outcome in now.past:
            id, answer = self.arrives(Call(job, "", "normal"), SERVED)
            self.turn([Outcome(id, answer.fence, outcome)], [])
        for one in now.running:
            assert self.arrives(one, SERVED)[1].what == "start"
        time.sleep(0.003)  # longer than the shortest max_age_seconds
        assert ledger.install_policies(release.name, merged.cap, merged.jobs)
        for job in now.disabled:
            assert ledger.enable_or_disable(job, False, "me", "for a test") == []
        ledger.pause_or_resume(True, "me", "")
        for one in now.waiting:
            assert self.arrives(one, UNSERVED)[1].what == "wait"
        if not now.paused:
            assert ledger.pause_or_resume(False, "me", "") == []

    def turn(self, outcomes: list[Outcome], arrivals: list[Arrival]) -> Any:
        self.count += 1
        return self.ledger.turn("w", self.count, "enforce", 0, outcomes, arrivals)

    def arrives(self, call: Call, queue: str) -> tuple[str, Any]:
        id = f"r{self.count}"
        priority = int(Priority.parse(call.priority))
        [answer] = self.turn([], [Arrival(id, 0, call.job, call.key, priority, "", None, queue, "", b"")]).answers
        return id, answer

    def reason(self, id: str) -> str:
        status = read_status("decide", self.ledger.read_status(100, 100), {}, {})
        [run] = [run for run in status.waits if run.id == id]
        assert run.reason
        return run.reason


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    # Shrinking takes a minute or two. To understand a failure, add Phase.shrink for a while.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
)
@given(now=situations)
def test_decide_and_the_ledger_say_the_same(server: RedisServer, now: Situation) -> None:
    client = server.client()
    client.flushall()
    client.close()
    app = app_of(now)
    ledger = Ledger(redis.ConnectionPool.from_url(server.url()), "{decide}:")
    try:
        found = decided(app, now)
        played = Played(ledger, app, now)
        id, answer = played.arrives(now.job, SERVED)
        event(f"{found.rule}: {str(found.reason).rpartition(': ')[2]}")
        assert (answer.what == "start") is found.starts, (answer, found)
        if not found.starts:
            # The ledger also knows where a run is running, and for how long.
            assert played.reason(id).startswith(str(found.reason))
    finally:
        ledger.close()
        app.close()

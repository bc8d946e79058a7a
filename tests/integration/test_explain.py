"""Why something does not run: the chain of waits in the ledger, and the root cause that follows from it.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest

from celery_orchestration.ledger import TimedOut
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate.broker import Stranger
from celery_orchestration.operate.explain.chain import links
from celery_orchestration.operate.explain.models import Cause
from celery_orchestration.operate.status.reader import read_status
from support.hostile import TEXTS
from support.ledger import PREFIX, Desk, arrival
from support.wait import until


def on(*jobs: str, **more: Any) -> dict[str, Any]:
    return {"depends_on": [{"job": job, **more} for job in jobs]}


# -- chains


def test_it_goes_down_to_what_holds_everybody_up(desk: Desk):
    desk.install({"a": on("b"), "b": on("c"), "c": {"max_running": 1}, "d": {"blocks": ["c"]}})
    assert desk.come("d1", "d") == "start"
    assert [desk.come(id, job) for id, job in (("c1", "c"), ("b1", "b"), ("a1", "a"))] == ["wait"] * 3
    assert desk.path("a") == desk.path("a1", "run") == ["a1", "b1", "c1", "d1"]
    assert desk.why("a") == ("blocked", "d")
    assert desk.path("d") == ["d1"]
    assert desk.why("d") == ("running", "d")


def test_of_several_that_hold_the_room_it_names_the_one_that_hangs(desk: Desk):
    desk.install({"a": {"max_running": 3}})
    desk.register("w2")
    for id, worker in (("first", "w1"), ("hangs", "w2"), ("last", "w1")):
        assert desk.turn(worker=worker, come=[arrival(id, "a")]).answers[0].what == "start"
    assert desk.come("next", "a") == "wait"
    assert desk.path("a") == ["next", "first"]
    assert desk.why("a") == ("room", "a")
    desk.silence("w2", 16_000)
    assert desk.path("a") == ["next", "hangs"]
    cause = desk.root("a")
    assert cause.code == "worker_died"
    assert "silent for 16 s: the run is recovered in 14 s" in cause.text


def test_a_lost_run_that_nobody_can_recover_names_the_worker_to_start(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("one", "a")
    desk.silence("w1", 60_000)
    cause = desk.root("a")
    assert (cause.code, cause.fix) == ("worker_died", "celery -A … worker")
    assert "nobody is alive" in cause.text
    desk.ledger.lead("s1", "s1@host", 10_000, "")
    assert desk.root("a").text.endswith("the run is recovered at the next sweep")


def test_room_is_looked_for_under_the_key(desk: Desk):
    desk.install({"a": {"max_running": 1, "keyed": True}})
    assert desk.come("x1", "a", key="x") == desk.come("y1", "a", key="y") == "start"
    assert desk.come("y2", "a", key="y") == "wait"
    assert desk.path("a") == desk.path("y2", "run") == ["y2", "y1"]
    assert "key 'y'" in links(desk.chain("a"))[0].text


def test_a_run_behind_another_one_has_the_cause_of_that_one(desk: Desk):
    """A run that ranks before it waits for a busy dependency of its own, or for global room."""
    desk.install({"a": {"blocks": ["b"]}, "b": {}, "c": {}}, cap=1)
    assert desk.come("c1", "c") == "start"
    assert desk.come("a1", "a") == desk.come("b1", "b") == "wait"
    cause = desk.root("b")
    assert cause.code == "global_cap"
    assert cause.text.endswith("1 of 1")


def test_a_run_of_the_schedule_that_came_first(desk: Desk):
    desk.install({"a": on("b"), "b": {"max_running": 1}})
    desk.come("b0", "b")
    desk.end("b0")
    desk.fire("b", queue="nobody's")
    assert desk.come("a1", "a") == "wait"
    assert desk.path("a") == ["a1", "fired"]
    assert desk.why("a") == ("unserved_queue", "b")


def test_a_dependency_that_is_to_be_tried_again(desk: Desk):
    desk.install({"a": on("b"), "b": {}})
    desk.come("b1", "b")
    desk.turn(ends={"b1": "retry"})
    assert desk.come("a1", "a") == "wait"
    assert desk.why("a") == ("retrying", "b")


def test_a_dependency_that_is_tried_again_later(desk: Desk):
    desk.install({"a": on("b"), "b": {}})
    desk.come("b1", "b")
    desk.turn(ends={"b1": "retry"})
    later = replace(arrival("b1", "b", attempt=1), eta_ms=int(desk.redis.time()[0] + 3600) * 1000)
    assert desk.turn(come=[later]).answers[0].what == "wait"
    desk.come("a1", "a")
    assert desk.path("a") == ["a1", "b1"]
    assert desk.why("a") == ("due_later", "b")


def test_an_attempt_waits_for_the_one_before_it(desk: Desk):
    desk.install({"a": {}})
    desk.come("a1", "a")
    desk.turn(come=[arrival("a1", "a", attempt=1)])
    assert [(step.rule, step.run.state) for step in desk.chain("a1", "run")] == [("attempt", "early"), ("", "running")]
    assert desk.why("a1", "run") == ("running", "a")


def test_a_cycle_ends(desk: Desk):
    desk.install({"a": on("b"), "b": on("c"), "c": on("a")})
    assert desk.root("b").text == "they wait for each other: b → c → a → b"
    assert desk.come("a1", "a") == "wait"
    assert desk.why("a") == ("cycle", "a")
    assert desk.come("b1", "b") == "wait"
    assert desk.root("a").text == "they wait for each other: a → b → c → a"


def test_a_long_chain_is_cut(desk: Desk):
    desk.install({f"j{n}": on(f"j{n + 1}") if n < 300 else {} for n in range(301)})
    assert len(desk.chain("j0")) == 100
    assert desk.root("j0").job == "j100"


# -- roots


def test_the_reasons_of_the_gate_are_explained(desk: Desk):
    desk.install({"a": {}, "b": on("a")}, cap=5)
    desk.ledger.pause_or_resume(True, "me", "lunch")
    assert desk.root("a").text.endswith("by me 0 s ago: lunch")
    desk.ledger.pause_or_resume(False, "me", "")
    desk.ledger.enable_or_disable("a", False, "me", "")
    assert desk.why("b") == ("disabled_by_person", "a")
    desk.ledger.enable_or_disable("a", True, "me", "")
    desk.redis.hset(
        key_of(PREFIX, "ledger"), "opens", int(desk.redis.hget(key_of(PREFIX, "ledger"), "clock") or 0) + 7000
    )
    assert desk.root("a").text.endswith("nothing starts for 7 s")


def test_a_probe_is_shown(desk: Desk):
    desk.install({"a": {"max_consecutive_failures": 1, "cool_down_seconds": 60, "max_running": 1}})
    desk.come("a1", "a")
    desk.end("a1", "failed")
    assert desk.come("a2", "a") == "wait"
    assert "a run tries it again in" in desk.root("a").text
    desk.redis.zadd(key_of(PREFIX, "timers"), {"cool_down:a": 1})
    desk.sweep()
    assert "tests whether it works again" in desk.root("a").text or desk.why("a")[0] == "handed_over"


def test_a_delayed_run_is_explained(desk: Desk):
    desk.install({"a": {}})
    desk.turn(come=[replace(arrival("a1", "a"), eta_ms=int(desk.redis.time()[0] + 3600) * 1000)])
    assert desk.why("a") == desk.why("a1", "run") == ("due_later", "a")


def test_a_run_that_is_tried_alone(desk: Desk):
    desk.install({"bad": {}, "fine": {}})
    assert desk.come("long", "fine") == "start"
    desk.takes_workers_down()
    assert desk.why("bad") == desk.why("bad", "run") == ("alone", "bad")


def test_a_run_past_its_time_limit(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.ledger.time_out(TimedOut("a1", desk.fences["a1"], "TimeLimitExceeded", failed=True))
    desk.come("a2", "a")
    assert desk.why("a") == ("past_time_limit", "a")


def test_a_run_on_its_way_to_a_worker_says_so(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.come("a2", "a")
    [grant] = desk.turn(ends={"a1": "succeeded"}).grants
    assert desk.why("a") == ("handed_over", "a")
    desk.ledger.confirm_published([grant])
    assert desk.why("a2", "run") == ("handed_over", "a")
    desk.register("w1", queues=("other",))
    assert desk.why("a") == ("unserved_queue", "a")
    at_rest = desk.root("a", supervised=lambda _: ("images", 0))
    assert (at_rest.code, at_rest.wrong, at_rest.fix) == ("pool_at_rest", False, None)
    assert at_rest.text == "pool images has no worker now: its supervisor starts one when runs are ready"
    starting = desk.root("a", supervised=lambda _: ("images", 2))
    assert (starting.code, starting.wrong) == ("unserved_queue", True)
    assert starting.fix.endswith("explain pool:images")
    desk.silence("w1", 60_000)
    assert desk.why("a") == ("no_worker", "a")


def test_a_run_that_waits_for_a_slot(desk: Desk):
    desk.install({"a": {"max_running": 1}, "b": {"max_running": 1}})
    desk.register("w1", slots=1)
    for id, job in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")):
        desk.come(id, job)
    desk.turn(ends={"b1": "succeeded"})
    desk.turn(ends={"a1": "succeeded"})
    assert desk.why("b") == ("handed_over", "b")
    assert desk.why("a") == ("no_slot", "a")


def test_an_ending_needs_a_worker_that_reports_it_to_celery(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.come("a2", "a")
    desk.ledger.cancel("w1", 5, "revoked", ["a2"])
    assert desk.why("a2", "run") == ("ending", "a")
    desk.silence("w1", 60_000)
    assert desk.why("a2", "run") == ("no_worker", "a")


@pytest.mark.parametrize(
    ("dependency", "outcome", "code"),
    [
        ({}, None, "never_ran"),
        ({"on": "finish"}, None, "never_ran"),
        ({}, "failed", "failed"),
        ({"max_age_seconds": 0.001}, "succeeded", "old"),
        ({"fresh": True}, "succeeded", "stale"),
    ],
)
def test_the_missing_condition_of_a_dependency_is_named(
    desk: Desk, dependency: dict[str, Any], outcome: str | None, code: str
):
    desk.install({"a": on("b", **dependency), "b": {}})
    if outcome:
        desk.come("b1", "b")
        desk.end("b1", outcome)
    if code == "stale":
        desk.come("a0", "a")
        desk.end("a0")
    ended = desk.now()
    until(lambda: desk.now() > ended + 2)
    assert desk.come("a1", "a") == "wait"
    cause = desk.root("a", queue_of={"b": "q"})
    assert (cause.code, cause.job, cause.wrong) == (code, "b", True)
    assert cause.fix == "celery -A … orchestration trigger b"
    assert desk.root("a").fix == "call 'b' from the app that has it"
    desk.fire("b", eta_ms=int(desk.redis.time()[0] + 3600) * 1000)
    assert desk.why("a") == ("due_later", "b")


def test_a_scheduled_dependency_that_failed_needs_somebody_and_one_that_is_only_old_does_not(desk: Desk):
    desk.install({"a": on("b"), "b": {}, "c": on("d", max_age_seconds=0.001), "d": {}})
    for job, outcome in (("b", "failed"), ("d", "succeeded")):
        desk.fire(job, f"{job}1", f"entry of {job}")
        desk.ledger.cancel("w1", desk.number, "revoked", [f"{job}1"])
        desk.ledger.confirm_end([(f"{job}1", 0)])
        desk.come(f"{job}2", job)
        desk.end(f"{job}2", outcome)
    ended = desk.now()
    until(lambda: desk.now() > ended + 2)
    assert [desk.come("a1", "a"), desk.come("c1", "c")] == ["wait", "wait"]
    failed, old = desk.root("a"), desk.root("c")
    assert (failed.code, failed.job, failed.wrong, failed.fix) == ("failed", "b", True, None)
    assert (old.code, old.job, old.wrong, old.fix) == ("old", "d", False, None)
    assert "its next run is due in " in failed.text


def test_a_dependency_that_no_worker_has_registered(desk: Desk):
    desk.install({"a": on("elsewhere")})
    assert desk.come("a1", "a") == "wait"
    assert desk.why("a") == ("unknown_job", "elsewhere")
    assert desk.why("a", queue_of={"elsewhere": "q"}, strangers=lambda queue: [Stranger("plain@host", ("q",))]) == (
        "worker_without_extension",
        "elsewhere",
    )


def test_a_worker_of_another_app_takes_its_messages(desk: Desk):
    desk.install({"a": {}})
    around = {"queue_of": {"a": "q"}, "strangers": lambda queue: [Stranger("w9@host", ("q",), "mail")]}
    assert desk.why("a", **around) == ("worker_of_another_app", "a")
    assert "queue q is served by w9@host of namespace mail" in desk.root("a", **around).text


def test_an_idle_job_names_who_could_ask_for_its_next_run(desk: Desk):
    desk.install({"a": {}})
    assert desk.root("a", queue_of={"a": "q"}) == Cause(
        code="not_asked_for",
        job="a",
        text="it has no schedule: it runs when somebody calls it",
        fix="celery -A … orchestration trigger a",
    )
    assert desk.why("a", scheduled=frozenset(["a"])) == ("no_scheduler", "a")
    assert desk.why("a", elsewhere=frozenset(["a"])) == ("scheduled", "a")
    assert desk.why("a", queue_of={"a": "unheard of"}) == ("unserved_queue", "a")
    term = desk.fire("a")
    desk.ledger.cancel("w1", 5, "revoked", ["fired"])
    desk.ledger.confirm_end([("fired", 0)])
    assert desk.root("a").text.startswith("its next run is due in ")
    desk.ledger.change_schedule("me", "pause", "entry", "enough")
    assert desk.root("a").text == "entry entry of the schedule is paused by me: enough"
    desk.ledger.change_schedule("me", "resume", "entry", "")
    desk.ledger.resign("s1", term)
    assert desk.why("a") == ("no_scheduler", "a")


def test_a_job_that_the_scheduler_that_leads_does_not_know(desk: Desk):
    """It has other code: it does not have the entries of ours."""
    desk.install({"a": {}, "b": {}})
    desk.fire("b")
    cause = desk.root("a", scheduled=frozenset(["a"]))
    assert (cause.code, cause.wrong) == ("entry_missing", True)
    desk.fire("a", "fired too", "left")
    for run in ("fired", "fired too"):
        desk.ledger.cancel("w1", desk.number, "revoked", [run])
        desk.ledger.confirm_end([(run, 0)])
    assert desk.why("a", scheduled=frozenset(["a"])) == ("scheduled", "a")
    now = desk.now()
    desk.redis.zadd(key_of(PREFIX, "entries"), {"left": now - 100_000})
    desk.redis.hset(key_of(PREFIX, "leader"), "since", now - 90_000)
    assert desk.why("a", scheduled=frozenset(["a"])) == ("entry_missing", "a")
    assert desk.why("a") == ("not_asked_for", "a")
    assert "a" not in desk.status()["fires"]


def test_entries_are_called_what_people_call_them(desk: Desk):
    desk.install({"a": {}})
    name = "100%25 'sure'"
    desk.ledger.change_schedule("me", "add", name, "", ("a", "a", "every 5 s", "{}"))
    desk.ledger.change_schedule("me", "pause", name, "")
    cause = desk.root("a")
    assert cause.text == f"entry {name} of the schedule is paused by me"
    assert shlex.split(cause.fix or "")[-1] == name


def test_a_disabled_job_whose_next_run_tries_it(desk: Desk):
    desk.install({"a": on("b"), "b": {"max_consecutive_failures": 1, "cool_down_seconds": 0.001}})
    desk.come("b1", "b")
    desk.end("b1", "failed")
    until(lambda: desk.sweep() and desk.told("b").get("probe") == "")
    assert desk.come("a1", "a") == "wait"
    for name in ("a", "b"):
        cause = desk.root(name, queue_of={"a": "q", "b": "q"})
        assert (cause.code, cause.job, cause.wrong) == ("disabled_by_failures", "b", True)
        assert "its next run tests whether it works again: it has no schedule" in cause.text


def test_slots_of_dead_workers_do_not_count(desk: Desk):
    """They are counted until a node sweeps."""
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.come("a2", "a")
    desk.turn(ends={"a1": "succeeded"})
    assert desk.why("a") == ("handed_over", "a")
    desk.silence("w1", 60_000)
    assert desk.why("a") == ("no_worker", "a")


def test_a_run_that_nobody_has_asked_for_has_its_own_priority(desk: Desk):
    desk.install({"a": {"blocks": ["b"]}, "b": {}, "c": {"blocks": ["a"]}})
    assert desk.come("c1", "c") == "start"
    assert desk.come("a1", "a") == "wait"
    words = {n: (desk.ledger.explain("job", "b", priority=n) or {})["chain"][0].get("why") for n in (0, 1, 2, 3)}
    assert words == {0: ["behind", "a"], 1: ["behind", "a"], 2: None, 3: None}


def test_a_waiting_run_whose_job_is_gone(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.come("a2", "a")
    desk.redis.delete(key_of(PREFIX, "job", "a"))
    assert desk.why("a2", "run") == ("disabled_by_person", "a")
    [wait] = desk.status()["waits"]
    assert wait["reason"][0] == "disabled"
    assert json.loads(wait["reason"][1])["by"] == "ledger", "until its policy is installed again"


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "1e300", "1.5", "x"])
def test_invalid_times_do_no_harm(desk: Desk, number: str):
    desk.install({"a": {}})
    desk.fire("a")
    desk.ledger.cancel("w1", desk.number, "revoked", ["fired"])
    desk.ledger.confirm_end([("fired", 0)])
    for field in ("last", "at", "next", "prev", "gap"):
        before = desk.redis.hget(key_of(PREFIX, "entry", "entry"), field)
        desk.redis.hset(key_of(PREFIX, "entry", "entry"), field, number)
        assert desk.why("a") == ("scheduled", "a")
        assert read_status("shop", desk.status(), {}, {}).jobs[0].name == "a"
        if before is not None:
            desk.redis.hset(key_of(PREFIX, "entry", "entry"), field, before)


def test_no_runs_are_read_if_none_are_wanted(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    for id in ("a1", "a2", "a3"):
        desk.come(id, "a")
    desk.turn(ends={"a1": "succeeded"})
    found = desk.ledger.read_status(0, 0)
    assert (found["running"] or [], found["waits"] or [], found["waiting"]) == ([], [], 1)


def test_many_jobs_and_entries_are_read_a_part_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("celery_orchestration.ledger.client.operator.JOBS_AT_ONCE", 2)
    monkeypatch.setattr("celery_orchestration.ledger.client.operator.ENTRIES_AT_ONCE", 2)
    names = [f"job{n}" for n in range(7)]
    desk.install({name: {"blocks": [other for other in names if other != name]} for name in names})
    for name in names:
        desk.ledger.change_schedule("me", "add", f"of {name}", "", (name, name, "every 5 s", "{}"))
    status, graph = desk.status(), desk.ledger.read_graph()
    assert sorted(job["name"] for job in status["jobs"]) == sorted(job["name"] for job in graph["jobs"]) == names
    assert sorted(status["fires"]) == names
    assert len({tuple(job["groups"]) for job in graph["jobs"]}) == 1, "jobs that all block each other are a group"
    for name in names:
        assert [entry["job"] for entry in (desk.ledger.explain("job", name) or {})["fires"][name]] == [name]


def test_no_worker_starts_with_such_a_redis_or_such_code(desk: Desk):
    desk.install({"a": {}})
    desk.silence("w1", 60_000)
    desk.ledger.leave("w1")
    around: dict[str, Any] = {"queue_of": {"a": "q"}}
    assert desk.why("a", **around) == ("no_worker", "a")
    desk.redis.config_set("maxmemory-policy", "allkeys-lru")
    assert desk.why("a", **around) == ("redis_evicts", "a")
    assert desk.why("a", **around, allow_eviction=True) == ("no_worker", "a")
    assert desk.root("a", **around, cycles=[["a", "b"]]).text.endswith("a → b → a")


def test_a_full_redis_is_why_nothing_new_is_heard_of(desk: Desk):
    desk.install({"a": {}, "b": on("a")})
    desk.redis.config_set("maxmemory", 1)
    assert desk.why("a") == desk.why("b") == ("redis_full", "a")
    desk.redis.config_set("maxmemory", 0)
    assert desk.why("a")[0] != "redis_full"


def test_hostile_names_do_no_harm(desk: Desk):
    names = [text for text in TEXTS if 0 < len(text) < 60 and text.isprintable()]
    desk.install({name: on(names[0]) if name != names[0] else {} for name in names})
    for name in names[1:]:
        assert desk.why(name) == ("never_ran", names[0])


def test_where_workers_only_observe_nothing_would_wait(desk: Desk):
    desk.install({"a": on("b"), "b": {}})
    assert desk.path("a") == ["a", "b"]
    desk.redis.hset(key_of(PREFIX, "worker", "w1"), "mode", "observe")
    assert desk.path("a") == ["a"]
    desk.register("w2")
    assert desk.path("a") == ["a", "b"]


def test_nothing_is_known_of_what_is_not_there(desk: Desk):
    desk.install({"a": {}})
    assert desk.ledger.explain("job", "b") is None
    assert desk.ledger.explain("run", "a") is None


def test_a_corrupt_neighbour_does_no_harm(desk: Desk):
    desk.install({"a": {"max_running": 1}})
    desk.come("a1", "a")
    desk.come("a2", "a")
    desk.redis.set(key_of(PREFIX, "entries"), "nonsense")
    desk.redis.set(key_of(PREFIX, "leader"), "nonsense")
    assert desk.path("a") == ["a2", "a1"]

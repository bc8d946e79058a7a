"""Each check by itself, with given facts: every problem has a command that fixes it, and nothing else is a problem.

This file is long because it is a list: each test stands alone.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest

from celery_orchestration.cli.show.check import health_line, print_diagnosis
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.options import read_options
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import ListedNode, Nodes
from celery_orchestration.node import releases
from celery_orchestration.node.stores import Store
from celery_orchestration.operate import Check, Death, Diagnosis, Disabled, EntryStatus, JobStatus, Status
from celery_orchestration.operate.broker import Answers, Kept, Stranger
from celery_orchestration.operate.doctor.checks import CHECKS, code, events, examine, fetch, redis, workers
from celery_orchestration.operate.doctor.checks.facts import Facts
from celery_orchestration.operate.doctor.diagnose import diagnose_invalid_settings
from celery_orchestration.operate.doctor.health import health
from celery_orchestration.operate.hints import command, redis_cli, worker_for
from celery_orchestration.operate.models import SchedulerStatus, WorkerStatus
from celery_orchestration.operate.status.reader import read_status
from support.hostile import TEXTS

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
MS = int(NOW.timestamp() * 1000)
INFO = {
    **{"redis_version": "7.0.15", "role": "master", "maxmemory_policy": "noeviction", "aof_enabled": "1"},
    **{"used_memory": str(10 << 20), "maxmemory": "0", "rdb_last_bgsave_status": "ok"},
}


def job(name: str, **options: Any) -> Policy:
    return Policy.resolve(name, read_options(name, options), {})


def status(**more: Any) -> Status:
    nothing: dict[str, Any] = {
        **{"namespace": "shop", "at": NOW, "paused": False, "running": 0, "max_running": None, "waiting": 0},
        **{"later": 0, "dead_letters": 0, "jobs": [], "runs": [], "waits": [], "workers": [], "died": [], "queues": []},
        **{"problems": []},
    }
    return Status(**{**nothing, **more})


def worker(name: str, state: Any = "idle") -> WorkerStatus:
    return WorkerStatus(
        **{"name": name, "host": "h", "pid": 1, "state": state, "execution_pool": "prefork", "slots": 2, "running": 0},
        **{"done": 0, "failed": 0, "queues": ["celery"], "mode": "enforce", "since": NOW, "last_beat": NOW},
    )


def member(name: str, release: str = "r1", mode: str = "enforce", ago: timedelta = timedelta(0), kind: str = "prefork"):
    return ListedNode(name, kind, release, mode, MS - int(ago.total_seconds() * 1000))


SOUND = Facts(
    status=status(),
    settings=Settings(),
    address="redis://there:6379/0",
    nodes=Nodes("r1", 7_200_000, []),
    info=INFO,
    save="",
    jobs={"a": job("a")},
)


def facts(**more: Any) -> Facts:
    return replace(SOUND, **more)


def one(check: Any, **more: Any) -> Check:
    [found] = check(facts(**more))
    # Each result is one line, in words; and a problem has a fix.
    assert "\n" not in found.found + found.why + (found.fix or "")
    assert found.state != "problem" or found.fix
    assert found.why
    return found


def test_a_healthy_system_has_no_problem():
    found = examine(SOUND)
    assert {check.state for check in found} == {"fine"}
    assert len(found) == len(CHECKS)
    assert all(check.fix is None for check in found)


# -- Redis


@pytest.mark.parametrize(
    ("version", "role", "state"),
    [
        ("6.2.0", "master", "fine"),
        ("10.0.1", "master", "fine"),
        ("6.0.16", "master", "problem"),
        ("5.0.14", "master", "problem"),
        ("7.0.15", "slave", "problem"),
        ("", "master", "fine"),
    ],
)
def test_redis_is_new_enough_and_takes_writes(version, role, state):
    found = one(redis.redis, info={**INFO, "redis_version": version, "role": role})
    assert found.state == state
    assert "redis://there:6379/0" in found.found
    assert version in found.found


@pytest.mark.parametrize(
    ("policy", "state", "has_fix"),
    [
        ("noeviction", "fine", False),
        ("volatile-lru", "fine", True),
        ("volatile-ttl", "fine", True),
        ("allkeys-lru", "problem", True),
        ("allkeys-random", "problem", True),
    ],
)
def test_an_eviction_policy_that_loses_keys_is_a_problem(policy, state, has_fix):
    found = one(redis.eviction, info={**INFO, "maxmemory_policy": policy})
    assert (found.state, found.fix is not None) == (state, has_fix)
    assert policy in found.found


@pytest.mark.parametrize(
    ("info", "save", "state", "words"),
    [
        ({"aof_enabled": "1"}, "", "fine", "every change"),
        ({"aof_enabled": "0"}, "3600 1 300 100", "fine", "after 3600 s if 1 key changed, after 300 s if 100 keys"),
        ({"aof_enabled": "0"}, "", "problem", "runs that wait are lost"),
        ({"aof_enabled": "0"}, None, "unknown", "CONFIG is not allowed"),
        ({"aof_enabled": "1", "aof_last_write_status": "err"}, "", "problem", "aof_last_write_status"),
        ({"aof_enabled": "0", "rdb_last_bgsave_status": "err"}, "60 1", "problem", "rdb_last_bgsave_status"),
    ],
)
def test_the_persistence_check_judges_how_redis_writes_to_disk(info, save, state, words):
    found = one(redis.persistence, info={**INFO, **info}, save=save)
    assert (found.state, words in found.found) == (state, True)


@pytest.mark.parametrize(
    ("used", "most", "state"), [(1 << 30, 0, "fine"), (80, 100, "fine"), (91, 100, "problem"), (120, 100, "problem")]
)
def test_the_memory_check_judges_how_full_redis_is(used, most, state):
    assert one(redis.memory, info={**INFO, "used_memory": str(used), "maxmemory": str(most)}).state == state


@pytest.mark.parametrize(("there", "fix"), [(100, "maxmemory 20971520"), (28, "redis_url"), (0, "redis_url")])
def test_the_suggested_maxmemory_fits_the_machine(there, fix):
    info = {**INFO, "used_memory": "10485760", "maxmemory": "10485760", "total_system_memory": str(there << 20)}
    assert fix in one(redis.memory, info=info).fix


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("redis://there:6379/0", "-h there -p 6379"),
        ("redis://", "-h localhost -p 6379"),
        ("redis://there", "-h there -p 6379"),
        ("rediss://:**@there:6380/2", "-h there -p 6380 --tls --askpass"),
        ("redis://me:**@there:1/0;redis://other:2/0", "-h there -p 1 --user me --askpass"),
        ("redis://[::1]:7/0", "-h ::1 -p 7"),
        ("redis://[::1]", "-h ::1 -p 6379"),
        ("redis+socket:///run/my redis.sock", "-s '/run/my redis.sock'"),
        ("sentinel://one:26379;sentinel://two:26379", "-h …"),
        ("redis://**", "-h …"),
        ("redis://$(reboot):1", "-h '$(reboot)' -p 1"),
    ],
)
def test_suggested_commands_address_the_redis_in_question(address, where):
    """And not the Redis on the machine of the person who types them."""
    assert redis_cli(address, "PING") == f"redis-cli {where} PING"
    found = one(redis.eviction, address=address, info={**INFO, "maxmemory_policy": "allkeys-lru"})
    assert found.fix.startswith(f"redis-cli {where} CONFIG SET maxmemory-policy noeviction")


def test_a_redis_that_may_not_be_asked_is_unknown_not_fine():
    for check in (redis.redis, redis.eviction, redis.persistence, redis.memory):
        assert one(check, info={}, save=None).state == "unknown"


# -- the code


def test_code_that_cannot_be_read_is_reported_line_by_line():
    mistakes, misnamed = ["job 'a': unknown option 'prio'"], ["job 'b': depends_on names an unknown job 'c'"]
    found = list(code.code(facts(mistakes=mistakes, misnamed=misnamed)))
    assert [check.state for check in found] == ["problem", "problem"]
    cycle = "dependency cycle: a -> b -> a"
    assert one(code.cycles, cycles=[cycle]).found == f"this code has a {cycle}"
    wrong = diagnose_invalid_settings(ConfigurationError("unknown setting 'x'\norchestration_mode should be …"))
    assert [check.found for check in wrong.checks] == ["unknown setting 'x'", "orchestration_mode should be …"]
    assert not wrong.ok


def documents(**jobs: Policy) -> str:
    return releases.release(jobs, None).document


def test_a_cycle_of_live_releases_names_its_jobs_and_the_workers_to_end():
    found = one(
        code.cycles,
        releases={
            "old": documents(a=job("a", depends_on=["b"]), b=job("b", max_running=1)),
            "new": documents(a=job("a", max_running=1), b=job("b", depends_on=["a"])),
        },
        nodes=Nodes("old new", 0, [member("w1@h", "old"), member("w2@h", "old"), member("w3@h", "new")]),
    )
    assert found.state == "problem"
    assert "dependency cycle: a → b → a" in found.found
    assert "'a' depends on 'b' in release old (w1@h, w2@h)" in found.found
    assert "'b' depends on 'a' in release new (w3@h)" in found.found
    assert "control shutdown -d w1@h,w2@h" in str(found.fix)


def test_releases_that_differ_for_long_are_a_problem_those_that_agree_are_not():
    one_job, other = documents(a=job("a", max_running=1)), documents(a=job("a", max_running=2))
    more = documents(a=job("a", max_running=1), b=job("b"))

    def live(first: str, second: str, ago: timedelta) -> Check:
        members = [member("w1@h", "r1", ago=timedelta(days=9)), member("w2@h", "r2", ago=ago)]
        return one(code.releases, releases={"r1": first, "r2": second}, nodes=Nodes("r1 r2", 0, members))

    assert live(one_job, other, timedelta(minutes=5)).state == "fine"
    long = live(one_job, other, timedelta(hours=2))
    assert (long.state, "w1@h" in str(long.fix), "differ in a" in long.found) == ("problem", True, True)
    assert live(one_job, more, timedelta(hours=2)).state == "fine"


def test_live_workers_in_different_modes_are_a_problem():
    mixed = Nodes("r1", 0, [member("w1@h"), member("w2@h", mode="observe")])
    assert one(code.modes, nodes=mixed).found.endswith("different modes: enforce: w1@h; observe: w2@h")
    assert one(code.modes, nodes=mixed).state == "problem"
    assert one(code.modes, nodes=Nodes("r1", 0, [member("w1@h")])).state == "fine"
    assert one(code.modes, settings=Settings(mode="off")).state == "problem"


# -- workers and the broker


def test_a_queue_without_a_worker_comes_with_the_command_that_starts_one():
    sentence = "no live worker serves queue images.low, where resize is sent"
    found = one(workers.queues, status=status(problems=[sentence]))
    assert (found.state, found.found) == ("problem", sentence)
    assert found.fix == worker_for("images.low")
    assert one(workers.queues, status=status(problems=["no worker is alive"])).fix == command(program="worker")


def test_strangers_are_a_problem_and_a_silent_broker_leaves_them_unknown():
    found = one(workers.strangers, strangers=[Stranger("w9@h", ("celery",))])
    assert (found.state, "w9@h" in found.found, "shutdown -d w9@h" in str(found.fix)) == ("problem", True, True)
    assert one(workers.strangers, broker_problem="the broker …").state == "unknown"
    of_others = one(workers.strangers, strangers=[Stranger("w9@h", ("default.high",), "mail")])
    assert of_others.found == "worker w9@h of namespace 'mail' serves default.high, too"
    assert one(workers.broker, broker_problem="the broker …").state == "problem"


def test_a_long_list_shows_the_first_and_counts_the_rest():
    crowd = [Stranger(f"w{n}@h", ("celery",)) for n in range(25)]
    found = list(workers.strangers(facts(strangers=crowd)))
    assert [check.found for check in found][-1] == "15 more workers"
    assert len(found) == 11


def test_names_in_suggested_commands_are_quoted_for_the_shell():
    name = "w; rm -rf $HOME@h"
    assert f"-d '{name}'" in str(one(workers.strangers, strangers=[Stranger(name, ("celery",))]).fix)


@pytest.mark.parametrize(
    ("multiplier", "strict", "options", "state", "fix"),
    [
        (4, False, {}, "fine", None),
        (0, False, {}, "problem", "worker_prefetch_multiplier = 1"),
        (0, True, {}, "problem", "worker_prefetch_multiplier = 1"),
        (4, False, {"priority": "high"}, "fine", "orchestration_strict_priority = True"),
        (1, False, {"priority": "high"}, "fine", None),
        (4, True, {"priority": "high"}, "fine", None),
        (4, False, {"timeout_seconds": 3600}, "fine", "worker_prefetch_multiplier = 1"),
    ],
)
def test_the_prefetch_check_judges_multiplier_and_strict_priority(multiplier, strict, options, state, fix):
    found = one(
        fetch.prefetch,
        prefetch=multiplier,
        settings=Settings(strict_priority=strict, fetch="celery"),
        jobs={"a": job("a"), "b": job("b", **options)},
    )
    assert (found.state, found.fix) == (state, fix and f"app.conf.{fix}")


def test_strict_priority_is_not_reported_to_fetch_nothing_ahead_where_it_does():
    strict = Settings(strict_priority=True)
    assert "fetches only for free slots" in one(fetch.prefetch, settings=strict).found
    rabbit = {"broker_is_redis": False, "broker_is_amqp": True}
    assert "fetches only for free slots" in one(fetch.prefetch, settings=strict, **rabbit).found
    quorum = Answers({"w1@h": {"prefetches_because": "quorum queues have a count for each consumer"}})
    elsewhere = one(fetch.prefetch, settings=strict, replies=quorum, **rabbit).found
    assert "nothing is fetched" not in elsewhere
    assert "from each queue up to one message more than they have slots" in elsewhere
    assert "w1@h (quorum queues" in elsewhere


def test_on_rabbitmq_prefetching_is_bounded_unless_a_worker_says_otherwise():
    rabbit = {"broker_is_redis": False, "broker_is_amqp": True, "prefetch": 4}
    assert "within 1 s" in one(fetch.prefetch, **rabbit).found
    assert "up to 4 messages" in one(fetch.prefetch, **rabbit, settings=Settings(fetch="celery")).found
    refused = Answers({"w1@h": {"prefetches_because": "ACCESS_REFUSED"}})
    assert "up to 4 messages" in one(fetch.prefetch, **rabbit, replies=refused).found


@pytest.mark.parametrize(
    ("more", "state", "words"),
    [
        ({}, "fine", "3600 s"),
        ({"visibility": 10.0}, "problem", "shorter than a lease"),
        ({"late": {"a": 7200.0}}, "problem", "the hard time limit of a (7200 s)"),
        ({"late": {"a": 60.0, "b": None}}, "fine", ""),
        ({"visibility": 10.0, "broker_is_redis": False}, "fine", "not Redis"),
        ({"visibility": 9000.0, "nodes": Nodes("r1", 7_200_000, [member("w1@h")])}, "problem", "runs again"),
    ],
)
def test_the_visibility_timeout_check_compares_leases_limits_and_delays(more, state, words):
    found = one(fetch.visibility, **{"settings": Settings(fetch="celery"), **more})
    assert (found.state, words in found.found) == (state, True)


def test_reliable_fetch_needs_no_change_of_prefetch_or_visibility_timeout():
    assert "within 1 s" in one(fetch.prefetch, prefetch=0).found
    assert one(fetch.visibility, visibility=1.0).state == "fine"


@pytest.mark.parametrize(
    ("more", "state", "words"),
    [
        ({}, "fine", "until they are acknowledged"),
        ({"broker_is_redis": False}, "fine", "not Redis"),
        ({"kept": Kept(version="5.0.7")}, "problem", "Redis 5.0.7, older than 6.2"),
        ({"kept": Kept(version="8.0.1")}, "fine", ""),
        ({"replies": Answers({"w1@h": {"fetch": "celery"}})}, "problem", "w1@h"),
        ({"replies": Answers({"w1@h": {"fetch": "reliable"}, "w2@h": {"error": "?"}})}, "fine", ""),
        (
            {"replies": Answers({"w1@h": {"fetch": "reliable", "fetch_polls_because": "NOPERM"}})},
            "problem",
            "of messages (NOPERM)",
        ),
    ],
)
def test_the_fetch_check_says_how_messages_are_fetched(more, state, words):
    found = one(fetch.fetch, **more)
    assert (found.state, words in found.found) == (state, True)


@pytest.mark.parametrize(
    ("crew", "kept", "state", "words"),
    [
        (["w1@h"], Kept([(Store("a", "1", "w1@h"), 3)]), "fine", "3 messages fetched"),
        (["w1@h"], Kept([(Store("a", "1", "w2@h"), 3)]), "fine", "within seconds"),
        ([], Kept([(Store("a", "1", "w2@h"), 1)]), "problem", "1 message that w2@h had fetched"),
        ([], Kept([(Store("a", "1", "w2@h"), 0)]), "fine", "0 messages"),
        ([], Kept(problem="no answer"), "unknown", "does not answer"),
    ],
)
def test_messages_kept_by_workers_that_are_gone_are_found(crew, kept, state, words):
    found = one(fetch.stores, status=status(workers=[worker(name) for name in crew]), kept=kept)
    assert (found.state, words in found.found) == (state, True)


def test_clocks_that_differ_from_redis_are_found():
    crew = status(workers=[worker("w1@h"), worker("w2@h"), worker("w3@h", "dead")])
    told = {"w1@h": {"clock_ahead_seconds": 0.1}, "w2@h": {"clock_ahead_seconds": -90.0}}
    assert one(workers.clocks, ahead=7.0).found == "the clock of this machine is 7 s ahead of Redis's"
    assert one(workers.clocks, status=crew, replies=Answers(told)).found == "the clock of w2@h is 90 s behind Redis's"
    told["w2@h"] = {"error": "KeyError('orchestration')"}
    found = one(workers.clocks, status=crew, replies=Answers(told))
    assert (found.state, "w2@h" in found.found, "w3@h" in found.found) == ("unknown", True, False)
    told["w2@h"] = {"clock_ahead_seconds": 0.0}
    assert one(workers.clocks, status=crew, replies=Answers(told)).state == "fine"


# -- what happened


def test_jobs_that_failures_disabled_are_a_problem_and_jobs_that_people_disabled_are_not():
    def off(by: str, failures: str | None = None) -> JobStatus:
        return JobStatus.model_construct(
            name="shop.fetch", disabled=Disabled(by=by, why="5 failures in a row", at=NOW, failures=failures)
        )

    found = one(events.disabled, status=status().model_copy(update={"jobs": [off("failures")]}))
    assert (found.state, found.fix) == ("problem", command("enable", "shop.fetch"))
    assert "5 failures in a row" in found.found
    assert one(events.disabled, status=status().model_copy(update={"jobs": [off("ann@desk")]})).state == "fine"
    both = one(events.disabled, status=status().model_copy(update={"jobs": [off("ann@desk", "9 in a row")]}))
    assert (both.state, "9 in a row" in both.found) == ("problem", True)


def test_workers_that_died_within_the_last_hour_are_named():
    died = [Death(name=f"w{n}@h", at=NOW - timedelta(minutes=50 * n), runs=n) for n in (1, 2)]
    found = one(events.deaths, status=status(died=died))
    assert found.found == "worker w1@h died at 2026-01-02 02:14:05 UTC, with 1 run"


def test_entries_that_cannot_fire_are_named():
    entry = EntryStatus(name="nightly", task="x", is_job=True, every="…", source="people", continuous=False)
    assert one(events.entries, entries=[entry]).state == "fine"
    found = one(events.entries, entries=[entry, entry.model_copy(update={"problem": "its record is corrupt"})])
    assert found.found == "entry 'nightly': its record is corrupt"
    assert found.fix == command("schedule", "remove", "nightly")


def test_every_sentence_of_status_is_reported_once_by_a_check_with_a_fix():
    """If the words of ``status`` change, the check that claims them has to change, too."""
    bad = json.dumps({"at": MS, "why": "it is a string"})
    document = {
        **{
            "now": MS,
            "paused": True,
            "max_running": None,
            "total": 0,
            "waiting": 0,
            "later": 0,
            "dead_letters": 0,
            "jobs": [],
        },
        **{"running": [], "waits": [], "gone": [], "slots": {"celery": 2}, "under_way": {}, "bad": {"j:a": bad}},
        **{"eviction": "allkeys-lru", "entries": 1, "epoch": {"name": str(MS * 1000), "why": "moved", "left": 5000}},
        "workers": [
            {
                **{"id": "w1", "name": "w1@h", "host": "h", "pid": 1, "slots": 2, "kind": "thread", "mode": "enforce"},
                **{"queues": ["celery"], "since": MS, "heartbeat": MS, "running": 0, "lease": 30_000, "left": 30_000},
                **{"done": 0, "failed": 0, "draining": False},
            }
        ],
    }
    limits = {"a": (70.0, 60.0)}
    seen = read_status("shop", document, {"celery": ["a"], "images.low": ["b"]}, limits, lambda: True)
    none = read_status("shop", {**document, "workers": []}, {"celery": ["a"]}, limits, lambda: True)
    told = examine(facts(status=seen, info={**INFO, "maxmemory_policy": "allkeys-lru"}, limits={"thread": limits}))
    problems = {check.found: check.name for check in told if check.state == "problem"}
    assert sorted(problems) == sorted(seen.problems)
    assert set(problems.values()) == {
        *("eviction", "queues", "time limits", "scheduler", "records", "epoch", "pause"),
    }
    assert "no worker is alive" in none.problems
    assert {check.name for check in examine(facts(status=none)) if check.found == "no worker is alive"} == {"queues"}


def test_an_unknown_problem_of_status_is_still_shown():
    told = examine(facts(status=status(problems=["the moon is full"])))
    [found] = [check for check in told if check.state == "problem"]
    assert (found.name, found.found) == ("status", "the moon is full")


# -- as it is shown


def test_hostile_text_does_not_reach_the_terminal(tmp_path):
    text = "".join(TEXTS.values())
    checks = [Check(name="queues", state="problem", found=text, why=text, fix=text)]
    with (tmp_path / "out").open("w+") as file:
        print_diagnosis(Diagnosis(at=NOW, checks=checks, ok=False), file)
        file.seek(0)
        shown = file.read()
    assert all(line.isprintable() for line in shown.splitlines())
    assert shown.endswith("1 problem\n")
    assert "[bold]x[/bold]" in shown.replace("\n", "").replace("   ", "")


def test_a_line_to_copy_is_whole_and_the_rest_folds(tmp_path):
    fix = "celery -A examples.pipeline orchestration schedule resume examples.pipeline.fetch_data_of_the_other_shop"
    checks = [Check(name="schedule", state="problem", found="an entry " * 12, why="nothing is fired " * 6, fix=fix)]
    with (tmp_path / "out").open("w+") as file:
        print_diagnosis(Diagnosis(at=NOW, checks=checks, ok=False), file)
        file.seek(0)
        lines = file.read().splitlines()
    assert f"   -> {fix}" in lines
    assert all(len(line) <= 80 or "->" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
    assert all(line.startswith("   ") for line in lines[1:-1])


# -- health


FOUND: dict[str, Any] = {
    **{"now": MS, "owner": "shop", "schema": 1, "workers": 3, "lead": "beat@h", "epoch": {"left": 0}, "replica": False},
    "full": False,
}
REPLICA = {**FOUND, "replica": True}
CLOSED = {**FOUND, "epoch": {"left": 4000, "why": "moved"}}
HELD = {**FOUND, "worker": {"left": 20_000, "silent": 1000, "lease": 30_000}}


@pytest.mark.parametrize(
    ("found", "asked", "line"),
    [
        (FOUND, (None, False), "ok: 3 workers live, beat@h leads"),
        ({**FOUND, "workers": 1, "lead": None}, (None, False), "ok: 1 worker lives"),
        (REPLICA, (None, False), "is a replica, and takes no writes"),
        (REPLICA, (None, True), "ok: "),
        ({**FOUND, "full": True}, (None, False), "Redis is full"),
        ({**FOUND, "full": True}, (None, True), "ok: "),
        (CLOSED, (None, False), "nothing starts for 4 s"),
        (CLOSED, (None, True), "ok: "),
        ({**CLOSED, "worker": HELD["worker"]}, ("w1@h", False), "ok: the lease of w1@h holds for 20 s"),
        (FOUND, ("w1@h", False), "no worker 'w1@h'"),
        ({**FOUND, "worker": {"left": 20_000, "silent": 31_000, "lease": 30_000}}, ("w1@h", False), "has run out"),
        ({**FOUND, "worker": {"left": 0, "silent": 1000, "lease": 30_000}}, ("w1@h", False), "has run out"),
        ({**FOUND, "lead": None}, (None, True), "no scheduler leads"),
    ],
)
def test_the_health_line_says_what_is_wrong(found, asked, line):
    said = health(found, "redis://there", "shop", *asked)
    assert line in health_line(said)
    assert said.ok == health_line(said).startswith("ok: ")


def test_the_scheduler_that_leads_is_named():
    leads = status(scheduler=SchedulerStatus(leader="beat@h"))
    assert one(events.scheduler, status=leads).found == "beat@h leads"


def test_a_beat_that_is_not_ours_fires_what_is_not_continuous():
    fired = one(events.scheduler, jobs={"a": job("a", interval_seconds=5)}, beat_is_ours=False)
    assert (fired.state, "another beat fires the schedule" in fired.found) == ("fine", True)
    jobs = {"a": job("a", mode="continuous")}
    never = one(events.scheduler, jobs=jobs, beat_is_ours=False)
    assert never.state == "problem"
    assert never.fix.endswith("beat -S celery_orchestration:OrchestratedScheduler")
    leads = status(scheduler=SchedulerStatus(leader="beat@h"))
    assert one(events.scheduler, jobs=jobs, beat_is_ours=False, status=leads).state == "fine"


@pytest.mark.parametrize("columns", ["20", "80"])
def test_lines_to_type_are_neither_wrapped_nor_cut(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    long = command("enable", "x" * 200)
    shown = StringIO()
    check = Check(name="a", state="problem", found="b", why="c", fix=long)
    print_diagnosis(Diagnosis(at=NOW, checks=[check], ok=False), shown)
    assert f"   -> {long}\n" in shown.getvalue()


@pytest.mark.parametrize("name", [*TEXTS.values(), "--help", "-", "$(reboot)", "'; reboot; '"])
def test_a_line_to_type_has_the_name_as_one_word_and_never_as_an_option(name):
    words = shlex.split(command("cancel", "--terminate", name))
    assert words[-1] == name
    assert words[-2] == ("--" if name.startswith("-") else "--terminate")

"""The ledger counts what each job does, by the minute and by the hour, and keeps it bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_orchestration.job import tracing
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Outcome, packed
from celery_orchestration.ledger.client import operator
from celery_orchestration.ledger.records import key_of
from celery_orchestration.operate.history import statistics
from celery_orchestration.operate.history.statistics import Counts, Durations, Statistics
from support.clocks import Clock
from support.ledger import PREFIX, Shop, arrival
from support.servers import RedisServer

MINUTE, HOUR, DAY = 60, 3600, 86400


def all_of(shop: Shop, job: str) -> Counts:
    (found,) = statistics.read(shop.ledger, [job], "all").jobs
    return found.counts[0]


def run(shop: Shop, id: str, job: str = "one", outcome: str = "succeeded", ran_ms: int = 100) -> None:
    assert shop.come(id, job) == "start"
    shop.number += 1
    told = Outcome(id, shop.fences[id], outcome, "it broke" if outcome == "failed" else "", ran_ms=ran_ms)
    shop.ledger.turn("w1", shop.number, "enforce", 0, [told], [])


def counted(durations: Durations, limits: list[float]) -> dict[float, int]:
    """Counts by the upper end of their bucket."""
    ends = [*limits, float("inf")]
    return {ends[i]: count for i, count in enumerate(durations.buckets) if count}


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


@pytest.fixture
def timed(clock: Clock, redis_factory: Any) -> Shop:
    """The ledger on a Redis whose clock a test can set."""
    made = Shop(redis_factory(**clock.of_redis()))
    made.install({"one": {}})
    return made


def test_outcomes_are_counted_and_run_times_are_in_buckets(shop: Shop):
    shop.install({"one": {}})
    run(shop, "a", ran_ms=70)
    run(shop, "b", ran_ms=7000)
    run(shop, "c", outcome="failed", ran_ms=9_999_999)
    found = statistics.read(shop.ledger, ["one"], "all")
    (counts,) = found.jobs[0].counts
    assert counts.counters == {"started": 3, "succeeded": 2, "failed": 1}
    assert counted(counts.run, found.limits) == {0.1: 1, 10.0: 1, float("inf"): 1}
    assert counts.run.seconds == pytest.approx(0.07 + 7 + 9999.999)


def test_queue_wait_gate_wait_hand_over_and_requested_delay_are_separate_figures(shop: Shop):
    shop.install({"one": {"max_running": 1}})
    assert shop.come("a", "one", queued_ms=2000) == "start"
    assert shop.come("b", "one", queued_ms=40) == "wait"
    now = int(time.time() * 1000)
    assert shop.come("c", "one", eta_ms=now + 50) == "wait"
    time.sleep(0.1)  # this test measures time
    grant = shop.turn(ends={"a": "succeeded"}).grants[0]
    time.sleep(0.02)
    assert shop.turn(come=[arrival("b", "one", grant=grant.number)]).answers[0].what == "start"
    assert [start.id for start in shop.turn(ends={"b": "succeeded"}, free=1).starts] == ["c"]
    counts = all_of(shop, "one")
    assert counts.counters["waited"] == 2
    assert counts.queue.count == 2
    assert counts.queue.seconds == pytest.approx(2.04)
    assert counts.hand_over.count == 1
    assert 0.02 <= counts.hand_over.seconds < 5
    assert counts.delay.count == 1
    assert 0.05 <= counts.delay.seconds < 5
    assert set(counts.gate) <= {"room", "behind"}
    assert counts.gate["room"].count >= 1
    assert 0.1 <= counts.gate["room"].seconds < 5


def test_a_run_that_never_waited_is_in_no_wait(shop: Shop):
    shop.install({"one": {}})
    run(shop, "a")
    counts = all_of(shop, "one")
    assert counts.gate == {}
    assert (counts.delay.count, counts.hand_over.count, counts.queue.count) == (0, 0, 0)


def test_retries_and_recoveries_are_counted(shop: Shop):
    shop.install({"one": {}})
    shop.come("a", "one")
    shop.end("a", "retry", free=0)
    assert shop.come("a", "one", attempt=1) == "start"
    assert shop.turn(ends={"a": "crashed"}).settled == ["waits"]
    counters = all_of(shop, "one").counters
    assert (counters["started"], counters["retried"], counters["recovered"]) == (2, 1, 1)
    assert "succeeded" not in counters


def test_a_turn_whose_reply_was_lost_counts_once(shop: Shop):
    shop.install({"one": {}})
    for _ in range(2):
        shop.ledger.turn("w1", 7, "enforce", 0, [], [arrival("a", "one")])
    assert all_of(shop, "one").counters == {"started": 1}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(id: str, job: str, trace: str = TRACE, **more: Any) -> Any:
    headers = {"id": id, "task": job, **({"traceparent": trace} if trace else {})}
    message = Envelope(headers, {}, "application/json", "utf-8", "", "q", b"[[], {}, {}]").pack()
    return replace(arrival(id, job, **more), message=message)


def test_the_waits_of_a_traced_run_are_returned_with_its_start(shop: Shop):
    """Whatever the gate made it wait for; and again if the reply was lost."""
    other = TRACE.replace("b7ad", "c7ad")
    shop.install({"one": {"max_running": 1}})
    assert shop.turn(come=[traced("a", "one", other)]).answers[0].what == "start"
    assert shop.turn(come=[traced("b", "one")]).answers[0].what == "wait"
    time.sleep(0.02)  # this test measures time
    turn = shop.turn(ends={"a": "succeeded"}, free=1)
    shop.number -= 1
    assert turn.traces == shop.turn(ends={"a": "succeeded"}, free=1).traces
    (wait,) = tracing.read(turn.traces["b"])
    assert (wait.kind, wait.why, wait.blocking_job) == ("gate", ("room", "one"), "one")
    assert (wait.run, wait.fence, wait.traceparent) == ("a", shop.fences["a"], other)
    assert wait.to_ms - wait.from_ms >= 20


def test_a_handed_over_run_reports_its_wait_and_its_hand_over(shop: Shop):
    shop.install({"one": {"max_running": 1}})
    shop.come("a", "one")
    assert shop.turn(come=[traced("b", "one")]).answers[0].what == "wait"
    time.sleep(0.02)
    (grant,) = shop.turn(ends={"a": "succeeded"}).grants
    time.sleep(0.02)
    assert shop.ledger.confirm_published([grant]) == 1
    time.sleep(0.02)
    turn = shop.turn(come=[traced("b", "one", grant=grant.number)])
    waits = tracing.read(turn.traces["b"])
    assert [wait.kind for wait in waits] == ["gate", "hand_over"]
    assert waits[0].to_ms == waits[1].from_ms
    assert waits[0].traceparent == "", "nobody traced the run that it waited for"


def test_a_run_without_a_trace_reports_no_waits(shop: Shop):
    shop.install({"one": {"max_running": 1}})
    shop.come("a", "one")
    assert shop.turn(come=[traced("b", "one", "")]).answers[0].what == "wait"
    time.sleep(0.02)
    turn = shop.turn(ends={"a": "succeeded"}, free=1)
    assert ([start.id for start in turn.starts], turn.traces) == (["b"], {})


def over_time(shop: Shop, unit: Any) -> list[dict[str, int]]:
    found: Statistics = statistics.read(shop.ledger, ["one"], unit)
    return [one.counters for one in found.jobs[0].counts]


def test_minutes_become_hours_and_nothing_is_counted_twice(timed: Shop, clock: Clock):
    """An hour and a minute pass between two runs: both units have both runs, and so has the sum of all time."""
    run(timed, "a")
    run(timed, "b")
    clock.set(MINUTE)
    run(timed, "c")
    clock.set(HOUR + 2 * MINUTE)
    run(timed, "d")
    assert [one["succeeded"] for one in over_time(timed, "minute")] in ([2, 1, 1], [1, 1, 1, 1])
    hours = [one["succeeded"] for one in over_time(timed, "hour")]
    assert (sum(hours), 2 <= len(hours) <= 3) == (4, True)
    assert all_of(timed, "one").counters == {"started": 4, "succeeded": 4}


def test_minutes_are_kept_for_a_day_and_hours_for_thirty(timed: Shop, clock: Clock):
    for days in range(40):
        clock.set(days * DAY)
        run(timed, f"run {days}")
    assert len(over_time(timed, "minute")) == 1
    assert 29 <= len(over_time(timed, "hour")) <= 30
    assert all_of(timed, "one").counters["succeeded"] == 40


def test_the_statistics_of_a_job_are_bounded(timed: Shop, clock: Clock):
    """However long it runs: places in a ring are overwritten when their time comes again, and no key has a TTL."""
    for hours in range(0, 24 * 65, 5):
        clock.set(hours * HOUR)
        run(timed, f"run {hours}")
    found = [key for name in ("totals", "minutes", "hours") for key in timed.redis.keys(key_of(PREFIX, name, "*"))]
    assert len([key for key in found if key.startswith(key_of(PREFIX, "minutes", "one", ""))]) == 24
    assert len([key for key in found if key.startswith(key_of(PREFIX, "hours", "one", ""))]) == 30
    assert len(found) == 24 + 30 + 1
    assert max(timed.redis.hlen(key) for key in found) <= 61
    assert {timed.redis.ttl(key) for key in found} == {-1}


def test_a_clock_that_was_set_back_loses_nothing(timed: Shop, clock: Clock):
    clock.set(10 * MINUTE)
    run(timed, "a")
    clock.set(0)
    run(timed, "b")
    assert all_of(timed, "one").counters["succeeded"] == 2


@pytest.mark.parametrize("record", [("totals",), ("minutes", "{}"), ("job",)], ids=" ".join)
def test_a_record_that_somebody_wrote_over_does_not_stop_a_run(timed: Shop, clock: Clock, record: tuple[str, ...]):
    run(timed, "a")
    clock.set(MINUTE)
    name, *more = record
    if name == "job":
        timed.redis.hset(key_of(PREFIX, "job", "one"), "minute", "no statistics")
    else:
        for hour in range(24):
            timed.redis.set(key_of(PREFIX, name, "one", *(one.format(hour) for one in more)), "x")
    run(timed, "b")
    assert all_of(timed, "one").counters["succeeded"] >= 1


def test_the_statistics_of_a_deleted_job_go_with_it_but_for_the_sum_of_all(shop: Shop):
    shop.install({"one": {}, "two": {}})
    run(shop, "a")
    shop.install({"two": {}})
    assert [
        key for name in ("totals", "minutes", "hours") for key in shop.redis.keys(key_of(PREFIX, name, "one*"))
    ] == []
    told = shop.ledger.read_statistics("all", [""])["jobs"][0]["sums"][0]
    assert told["succeeded"] == 1


#: A whole day of minutes and 30 days of hours of a job that does a lot, as the ledger would have them. KEYS: those of
#: its 24 hours of minutes, then those of its 30 days of hours. ARGV: now, in minutes.
FILL = """
local now, sum = tonumber(ARGV[1]), {}
for id = 1, 200, 11 do sum[id] = id * 1000 end
local packed = cmsgpack.pack(sum)
for minute = now - 1430, now - 1 do
  local hour = math.floor(minute / 60)
  redis.call('HSET', KEYS[1 + hour % 24], 'at', hour, minute % 60, packed)
end
for hour = math.floor(now / 60) - 700, math.floor(now / 60) - 1 do
  local day = math.floor(hour / 24)
  redis.call('HSET', KEYS[25 + day % 30], 'at', day, hour % 24, packed)
end
"""


def test_thousand_jobs_are_read_in_parts_that_keep_redis_busy_for_less_than_20_ms(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
):
    names = [f"job{number}" for number in range(1000)]
    shop.install({name: {} for name in names})
    for name in names:
        run(shop, f"run of {name}", name, ran_ms=50)
    for name in names[:20]:
        keys = [key_of(PREFIX, "minutes", name, hour) for hour in range(24)]
        keys += [key_of(PREFIX, "hours", name, day) for day in range(30)]
        shop.redis.eval(FILL, len(keys), *keys, int(time.time() // 60))
    shop.redis.config_set("slowlog-log-slower-than", 0)
    shop.redis.config_set("slowlog-max-len", 10_000)
    found = statistics.read(shop.ledger, names, "all")
    assert sum(one.counts[0].counters["succeeded"] for one in found.jobs) == 1000
    found = statistics.read(shop.ledger, names, "minute", hours=1)
    assert len(found.jobs) == 1000
    found = statistics.read(shop.ledger, names[:20], "minute")
    assert {1400 < len(one.counts) <= 1441 for one in found.jobs} == {True}
    # Only Redis's time counts now: nothing is unpacked.
    monkeypatch.setattr(operator, "_sums", lambda job, unit: {})
    # A busy machine may slow down any one script, but hardly the same one three times.
    rounds = [scripts_of(shop, lambda: read_all(shop, names)) for _ in range(3)]
    assert len({len(one) for one in rounds}) == 1
    yardstick = min(yardstick_of(shop) for _ in range(3))
    assert max(min(times) for times in zip(*rounds, strict=True)) < 2 * yardstick


def read_all(shop: Shop, names: list[str]) -> None:
    statistics.read(shop.ledger, names, "all")
    statistics.read(shop.ledger, names, "minute", hours=1)
    statistics.read(shop.ledger, names[:20], "minute")
    statistics.read(shop.ledger, names[:20], "hour")


def yardstick_of(shop: Shop) -> int:
    """How long Redis takes for a script that takes about 10 ms on an idle machine, in microseconds."""
    begun = time.perf_counter()
    shop.redis.eval("local sum = {} for i = 1, 200000 do sum[i % 1000] = (sum[i % 1000] or 0) + i end return #sum", 0)
    return int((time.perf_counter() - begun) * 1_000_000)


def scripts_of(shop: Shop, function: Callable[[], None]) -> list[int]:
    """How long each script took by Redis's own account, in microseconds, the latest first."""
    shop.redis.slowlog_reset()
    function()
    found = shop.redis.slowlog_get(10_000)
    return [one["duration"] for one in found if one["command"].split()[0] in (b"FCALL", b"EVALSHA")]


@given(
    found=st.dictionaries(
        st.integers(1, 600), st.one_of(st.integers(0, 2**53), st.floats(0, 1e12, allow_nan=False)), max_size=60
    )
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sums_that_redis_packs_are_unpacked(redis_server: RedisServer, found: dict[int, float]):
    pack = """
local sum = {}
for i = 1, #ARGV, 2 do sum[tonumber(ARGV[i])] = tonumber(ARGV[i + 1]) end
return { cmsgpack.pack(sum), cmsgpack.pack(29000000, sum) }
"""
    pairs = [part for number, value in found.items() for part in (number, repr(value))]
    one, opened = redis_server.client(decode_responses=False).eval(pack, 0, *pairs)
    assert packed.unpack_sum(one) == pytest.approx(found)
    assert packed.unpack_open(opened) == (29_000_000, pytest.approx(found))


@given(data=st.binary(max_size=40))
def test_any_bytes_are_read_as_a_sum_without_an_error(data: bytes):
    assert isinstance(packed.unpack_sum(data), dict)
    assert packed.unpack_open(data) is None or isinstance(packed.unpack_open(data), tuple)

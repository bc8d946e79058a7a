"""(d) Runs with a start time: how late they start, and how much memory they cost the worker.

Lateness: calls with ``countdown=1`` and runs that retry after one second, while 1,000 runs of another job wait; and the
same with plain Celery, whose timers are in the worker's memory. Each run records when it began.

Memory: 10,000 calls with a countdown. The figure is the growth of the worker's main process when it has received all of
them. Then the worker is killed, another one is started, and every call has to run once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import redis
from celery import Celery

from bench.stage import PATIENCE, Others, Stage, client
from celery_orchestration.ledger.records import key_of
from support.servers import RedisServer
from support.workers import WorkerProcess

VARIANTS = (("plain", "plain Celery"), ("later", "job"))
DELAY = 1.0
#: Seconds between two calls, so that they are due one after the other.
SPACING = 0.03


def measure(stage: Stage) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, title in VARIANTS:
        with stage.redis() as server:
            trace = stage.directory / f"times-{name}.trace"
            with stage.worker(name, server.url(0), BENCH_TRACE=str(trace)), client(server.url(0)) as app:
                if name == "later":
                    _hold_others(app, server, stage.size.held_runs)
                _lateness(app, trace, "bench.later", 20, {})  # every slot has run something
                others = Others()
                results[name] = {
                    "title": title,
                    "countdown": _lateness(app, trace, "bench.later", stage.size.late_runs, {"countdown": DELAY}),
                    "retry": _lateness(app, trace, "bench.retried", stage.size.late_runs, {}),
                    "others": others.share(),
                }
        for kind in ("countdown", "retry"):
            found = results[name][kind]
            late = f"{found['median']:.3f} s (worst {found['worst']:.3f})"
            stage.say(f"times: {name:6} {kind:9} of 1 s starts after {late}")
    for name, _ in VARIANTS:
        results[name]["memory"] = _memory(stage, name)
    return results


def _hold_others(app: Celery, server: RedisServer, count: int) -> None:
    """Makes this many runs of another job wait, behind one that runs until the end."""
    with app.producer_or_acquire() as producer:
        for _ in range(count + 1):
            app.send_task("bench.held", producer=producer, ignore_result=True)
    deadline = time.monotonic() + PATIENCE
    with redis.Redis.from_url(server.url(0)) as looking:
        while looking.zcard(key_of("{bench}:", "waiting")) < count:
            if time.monotonic() > deadline:
                raise RuntimeError("the others do not wait")
            time.sleep(0.05)


def _lateness(app: Celery, trace: Path, task: str, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Seconds from the call (for a retry: from the failure) to the start of the run."""
    batch = f"{task}-{time.monotonic_ns()}"
    with app.producer_or_acquire() as producer:
        for index in range(count):
            sent = time.monotonic_ns()
            app.send_task(task, (batch, sent, index), producer=producer, ignore_result=True, **options)
            time.sleep(SPACING)
    took = sorted((began - since) / 1e9 for since, began, _ in _wait_for(trace, batch, count))
    return {"median": median(took), "p99": took[int(len(took) * 0.99)], "worst": took[-1], "runs": len(took)}


def _wait_for(trace: Path, batch: str, count: int) -> list[tuple[int, ...]]:
    deadline = time.monotonic() + PATIENCE
    while len(lines := _lines(trace, batch)) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{batch}: only {len(lines)} of {count} runs within {PATIENCE:.0f} s")
        time.sleep(0.1)
    return lines


def _lines(trace: Path, batch: str) -> list[tuple[int, ...]]:
    if not trace.exists():
        return []
    found = (line.split() for line in trace.read_text().splitlines())
    return [tuple(map(int, parts[1:])) for parts in found if parts[0] == batch]


def _memory(stage: Stage, name: str) -> dict[str, Any]:
    count, delay = stage.size.put_off_runs, stage.size.put_off_seconds
    trace, batch = stage.directory / f"memory-{name}.trace", "memory"
    with stage.redis() as server, client(server.url(0)) as app, redis.Redis.from_url(server.url(0)) as looking:
        with stage.worker(name, server.url(0), BENCH_TRACE=str(trace)) as worker:
            _lateness(app, trace, "bench.later", 20, {"countdown": 0.1})  # everything is loaded
            before = _rss(worker)
            with app.producer_or_acquire() as producer:
                for index in range(count):
                    options = {"countdown": delay, "ignore_result": True, "producer": producer}
                    app.send_task("bench.later", (batch, 0, index), **options)
            _wait_taken_in(looking, name, count)
            grown = _rss(worker) - before
            worker.kill()
        lost = 0
        if name == "later":  # plain Celery's calls are known to come back after the visibility timeout of an hour
            with contextlib.ExitStack() as stack:
                stack.enter_context(stage.worker(name, server.url(0), BENCH_TRACE=str(trace)))
                _wait_for(trace, batch, count)
            starts = Counter(index for _, _, index in _lines(trace, batch))
            lost = count - len(starts)
            if any(times > 1 for times in starts.values()):
                stage.problem(f"times: {sum(times > 1 for times in starts.values())} runs were run more than once")
    stage.say(f"times: {name:6} {count} calls put off by {delay} s: the worker grew by {grown / 1e6:.1f} MB")
    return {"runs": count, "seconds": delay, "grown_bytes": grown, "lost": lost}


def _wait_taken_in(looking: redis.Redis, name: str, count: int) -> None:
    """Waits until the worker, or the ledger, has taken all calls."""
    deadline = time.monotonic() + PATIENCE
    while (looking.zcard(key_of("{bench}:", "later")) if name == "later" else looking.hlen("unacked")) < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the worker does not take the calls in")
        time.sleep(0.1)
    time.sleep(0.5)


def _rss(worker: WorkerProcess) -> int:
    with open(f"/proc/{worker.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

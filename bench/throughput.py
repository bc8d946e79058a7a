"""(a) How many empty tasks a stock worker with two prefork slots executes in a second.

All messages are in the queue before the worker starts, so that only the worker is measured. The measurement covers the
messages between the first and the last twentieth, so that the worker is warm and no slot is idle. The broker is asked
how many messages are left; the tasks have no part in the measurement. Processor time is the kernel's account of the
main process, its children and redis-server over the same time: other load on the machine affects it less.

Messages are made once for each variant, and copied for each round. Variants alternate, forwards and backwards, and a
ratio is the median of the ratios within rounds, so that a machine that becomes slower does not favour one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import redis

from bench.apps import EMPTY
from bench.stage import PATIENCE, Cpu, Depth, Stage, client
from celery_orchestration.ledger.records import key_of
from support.servers import RedisServer
from support.workers import WorkerProcess, environment

#: Seconds between two checks of the queue.
POLL = 0.02
RUN_DB = 0


@dataclass(frozen=True)
class Variant:
    name: str
    app: str
    payload: int
    against: str
    title: str


VARIANTS = (
    Variant("plain", "plain", 0, "plain", "plain Celery"),
    Variant("beside", "beside", 0, "plain", "plain tasks in an app that also has jobs"),
    Variant("job", "job", 0, "plain", "job (OrchestratedTask)"),
    Variant("singleton", "singleton", 0, "plain", "celery-singleton"),
    Variant("plain10k", "plain", 10_000, "plain10k", "plain Celery, 10 kB argument"),
    Variant("job10k", "job", 10_000, "plain10k", "job, 10 kB argument"),
    Variant("singleton10k", "singleton", 10_000, "plain10k", "celery-singleton, 10 kB argument"),
)


@dataclass(frozen=True)
class Sample:
    per_second: float
    #: Processor microseconds for each task.
    main_us: float
    children_us: float
    redis_us: float
    #: The share of the machine that other programs took.
    others: float

    @property
    def total_us(self) -> float:
        return self.main_us + self.children_us + self.redis_us


def measure(stage: Stage, names: list[str] | None = None) -> dict[str, Any]:
    variants = [v for v in VARIANTS if names is None or v.name in names]
    samples: dict[str, list[Sample]] = {v.name: [] for v in variants}
    with stage.redis() as server:
        stage.say(f"throughput: making {stage.size.tasks} messages for each of {len(variants)} variants")
        for db, variant in enumerate(variants, start=1):
            _make_messages(server, db, variant, stage.size.tasks)
        for number in range(stage.size.rounds):
            order = list(enumerate(variants, start=1))
            for db, variant in order if number % 2 == 0 else reversed(order):
                sample = _one(stage, server, db, variant)
                samples[variant.name].append(sample)
                stage.say(
                    f"throughput {number + 1}/{stage.size.rounds}: {variant.name:12} {sample.per_second:6.0f}/s, "
                    f"{sample.total_us:5.0f} us of CPU each (main {sample.main_us:.0f}, children "
                    f"{sample.children_us:.0f}, redis {sample.redis_us:.0f})"
                )
    return {v.name: _summary(v, samples) for v in variants}


def _make_messages(server: RedisServer, db: int, variant: Variant, count: int) -> None:
    subprocess.run(
        [sys.executable, "-m", "bench.fill", str(count), str(variant.payload)],
        env={**environment(), "BENCH_APP": variant.app, "BENCH_BROKER": server.url(db)},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _one(stage: Stage, server: RedisServer, db: int, variant: Variant) -> Sample:
    count = stage.size.tasks
    _copy(server, db)
    depth = Depth(server.port, RUN_DB)
    found = depth.read()
    if found != count:
        stage.problem(f"{variant.name}: {found} messages instead of {count} before the worker starts")
    try:
        with stage.worker(variant.app, server.url(RUN_DB)) as worker:
            sample = _watch(depth, worker, server, count)
            _drain(depth, worker)
            _check(stage, server, worker, variant, count)
    finally:
        depth.close()
    return sample


def _copy(server: RedisServer, db: int) -> None:
    """Restores the messages, and celery-singleton's locks, as they were after sending."""
    with redis.Redis.from_url(server.url(RUN_DB)) as target, redis.Redis.from_url(server.url(db)) as source:
        target.flushdb()
        pipe = source.pipeline(transaction=False)
        for key in source.scan_iter(count=1000):
            pipe.copy(key, key, destination_db=RUN_DB)
        pipe.execute()


def _watch(depth: Depth, worker: WorkerProcess, server: RedisServer, count: int) -> Sample:
    _until_left(depth, worker, int(count * 0.95))
    pids = (worker.pid, worker.children(), server.process.pid)
    cpu, begun, left = Cpu.read(*pids), time.monotonic(), depth.read()
    _until_left(depth, worker, int(count * 0.05))
    seconds, done = time.monotonic() - begun, left - depth.read()
    used = Cpu.read(*pids) - cpu
    return Sample(
        per_second=done / seconds,
        main_us=used.main / done * 1e6,
        children_us=used.children / done * 1e6,
        redis_us=used.redis / done * 1e6,
        others=used.others / seconds,
    )


def _until_left(depth: Depth, worker: WorkerProcess, left: int) -> None:
    lowest, progress = sys.maxsize, time.monotonic()
    while (now := depth.read()) > left:
        if now < lowest:
            lowest, progress = now, time.monotonic()
        elif time.monotonic() - progress > PATIENCE or not worker.running:
            raise RuntimeError(f"{worker.name} stopped at {now} messages:\n{worker.tail()}")
        time.sleep(POLL)


def _drain(depth: Depth, worker: WorkerProcess) -> None:
    _until_left(depth, worker, 0)


def _check(stage: Stage, server: RedisServer, worker: WorkerProcess, variant: Variant, count: int) -> None:
    """Checks that every task was executed once, and that nothing is left: no run in the ledger, and no lock."""
    with client(server.url(RUN_DB)) as app:
        stats = app.control.inspect(destination=[worker.hostname], timeout=30).stats() or {}
    ran = stats.get(worker.hostname, {}).get("total", {}).get(EMPTY, 0)
    if ran != count:
        stage.problem(f"{variant.name}: {ran} of {count} tasks were run")
    deadline = time.monotonic() + 10
    with redis.Redis.from_url(server.url(RUN_DB)) as looking:
        while left := _left_over(looking):
            if time.monotonic() > deadline:
                stage.problem(f"{variant.name}: {left} runs or locks are left over")
                break
            time.sleep(0.1)


def _left_over(looking: redis.Redis) -> int:
    patterns = key_of("{bench}:", "run", "*"), "SINGLETONLOCK_*"
    return sum(1 for pattern in patterns for _ in looking.scan_iter(pattern, count=1000))


def _summary(variant: Variant, samples: dict[str, list[Sample]]) -> dict[str, Any]:
    own, reference = samples[variant.name], samples.get(variant.against)
    result: dict[str, Any] = {"title": variant.title, "against": variant.against, "rounds": [vars(s) for s in own]}
    for figure in ("per_second", "main_us", "children_us", "redis_us", "total_us", "others"):
        result[figure] = median(getattr(s, figure) for s in own)
    if reference:
        ratios = [mine.per_second / other.per_second for mine, other in zip(own, reference, strict=True)]
        result |= {"ratio": median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)}
        result["cpu_ratio"] = median(m.total_us / o.total_us for m, o in zip(own, reference, strict=True))
        result["main_cpu_ratio"] = median(m.main_us / o.main_us for m, o in zip(own, reference, strict=True))
    return result
